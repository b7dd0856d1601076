"""A body made ready for one pool, as the gateway does it for a key that opens nothing else."""

from __future__ import annotations

from scheduling.core.outcomes import Reason
from scheduling.core.types import PoolSpec
from scheduling.gateway.bodies.prepare import Prepared, fit, parse
from scheduling.gateway.errors import Refusal


def prepare(data: bytes, chat: bool, pool: PoolSpec) -> Prepared:
    body = parse(data, chat)
    if body.model != pool.model and body.model not in pool.aliases:
        raise Refusal(Reason.UNKNOWN_MODEL, model=body.model, param="model")
    return fit(body, pool)
