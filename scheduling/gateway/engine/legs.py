"""The first of two replicas: where a prompt is computed before another one writes the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec
from scheduling.gateway.engine.failures import AttemptFailed
from scheduling.gateway.engine.relay import Relay
from scheduling.gateway.errors import Refusal
from scheduling.gateway.stages import Submitted
from scheduling.state.store import PoolStore
from scheduling.state.types import NO_BACKEND_RETRY_MS, StateUnavailable


async def prefill_elsewhere(
    submitted: Submitted,
    body: bytes,
    store: PoolStore,
    relay: Relay,
    spec_of: Callable[[str], Awaitable[BackendSpec]],
) -> bytes:
    """Has the prompt computed by a prefill replica; the body for the decode replica. The leg ends here in any case:
    what another attempt needs it asks for anew. Raises :class:`AttemptFailed`, with ``submitted.prefill_at`` saying
    whose it is, or :class:`Refusal`."""
    request, attempt = submitted.estimated.request, submitted.attempt
    try:
        replica = await store.take_leg(request.id, attempt, request.prefill_tokens, submitted.prefill_failed)
    except StateUnavailable:
        why = "no prefill replica could be asked for"
        raise AttemptFailed(Reason.STATE_UNAVAILABLE, why, suspect=False) from None
    if replica is None:
        raise AttemptFailed(Reason.LEASE_LOST, "its lease was lost before its prompt was computed", suspect=False)
    if not replica:
        raise Refusal(Reason.NO_BACKEND, retry_s=NO_BACKEND_RETRY_MS / 1000)
    submitted.prefill_at = replica
    try:
        handed = await relay.prefill(submitted, await spec_of(replica), body)
    finally:
        store.tell_end_leg(request.id, attempt)
    submitted.prefill_at = ""
    return handed
