"""What a request needs on its way through a gateway."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from scheduling.catalog import CatalogCache
from scheduling.core.types import PoolSpec
from scheduling.gateway.answers.long_answers import LongAnswers
from scheduling.gateway.conclusion import Conclusion
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.auth import Keyring
from scheduling.gateway.entry.idempotency import Idempotency
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.entry.storms import Storms
from scheduling.gateway.estimate.client_timeouts import ClientTimeouts
from scheduling.gateway.estimate.forecasts import Forecasts
from scheduling.gateway.estimate.input_tokens import InputCounter
from scheduling.gateway.in_flight import InFlight
from scheduling.gateway.ports import GatewayMetrics
from scheduling.state.store import PoolStore


@dataclass(frozen=True, slots=True)
class Services:
    """What the parts of one gateway share. ``avoided``: replicas that its requests leave to others."""

    config: GatewayConfig
    catalog: CatalogCache
    keyring: Callable[[], Keyring]
    stores: Callable[[str], PoolStore]
    in_flight: InFlight
    conclusion: Conclusion
    upstream: Upstream
    long_answers: LongAnswers
    forecasts: Forecasts
    counter: InputCounter
    metrics: GatewayMetrics
    state_available: Callable[[], bool]
    quotas: Quotas
    idempotency: Idempotency
    storms: Storms
    client_timeouts: ClientTimeouts
    avoided: Callable[[PoolSpec], Collection[str]]
