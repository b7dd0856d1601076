"""An attempt that failed at its engine, and what an engine's error answer means for the client and for the replica."""

from __future__ import annotations

from scheduling.core.engine.status import INPUT_REFUSED, NOT_ADMITTED, NOT_SERVED, misconfigured, what_it_means
from scheduling.core.outcomes import Reason
from scheduling.gateway.answers.answer_types import input_error
from scheduling.gateway.engine.engine_connection import Connection
from scheduling.gateway.errors import Refusal
from scheduling.gateway.stages import Submitted


class AttemptFailed(Exception):
    """An attempt failed at the engine. ``suspect``: its replica should be probed; ``misconfigured``: no request can be
    the cause; ``refused``: it admitted nothing, and wants to be asked again after ``retry_after_s``; ``lacks``: it does
    not have the adapter, and serves everything else; ``refusal``: what the client is told if the input is at fault, as
    the engine says and another replica would."""

    def __init__(
        self,
        reason: Reason,
        why: str,
        *,
        suspect: bool,
        misconfigured: bool = False,
        refused: bool = False,
        retry_after_s: float | None = None,
        lacks: bool = False,
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(why)
        self.refusal = refusal
        self.lacks = lacks
        self.reason = reason
        self.why = why
        self.suspect = suspect
        self.misconfigured = misconfigured
        self.refused = refused
        self.retry_after_s = retry_after_s


class Unnamed(Exception):
    """An error without a request id came on a reused connection: it may be a late answer to an earlier request."""


async def read_error_body(connection: Connection) -> bytes:
    parts = []
    size = 0
    while size < 64 * 1024 and (data := await connection.read()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)


def _input_refused(answer: bytes) -> AttemptFailed:
    detail, param = input_error(answer)
    refusal = Refusal(Reason.INVALID_REQUEST, param=param, detail=detail or "The engine refused it.")
    return AttemptFailed(Reason.BACKEND_ERROR, "refuses the input", suspect=False, refusal=refusal)


def failure_in_stream(submitted: Submitted, connection: Connection, answer: bytes) -> Exception:
    """An input that the engine refuses in the first event of its stream: vLLM answers 200 before it has checked all of
    it."""
    reused = connection.reused
    connection.abort()
    submitted.connection = None
    submitted.ran = False
    return Unnamed() if reused else _input_refused(answer)


def failure_of_status(submitted: Submitted, connection: Connection, answer: bytes) -> Exception:
    """What an engine's error status means. The engine's own words reach the client only if they are about the input."""
    status = connection.status
    connection.abort()  # an error names no request, so what follows on this connection could be another's
    submitted.connection = None
    submitted.ran = False
    if status in INPUT_REFUSED:
        return _input_refused(answer)
    adapter, endpoint = submitted.access.pool.adapter, submitted.identified.endpoint
    no_path = status == 404 and b'"detail"' in answer  # a model that is not there is an "error"
    if adapter and status == 404 and not no_path:
        return AttemptFailed(
            Reason.NO_ADAPTER, f"answers 404: it has not got adapter {adapter!r} any more", suspect=False, lacks=True
        )
    detail = f"The engines behind this model do not serve {endpoint.upstream}."
    unserved = Refusal(Reason.INVALID_REQUEST, status=404, detail=detail)
    if status in NOT_SERVED and endpoint.optional:
        return unserved
    if no_path:  # a model that makes vectors only; or it is no engine, which its leader sees by itself
        return AttemptFailed(
            Reason.BACKEND_ERROR, f"answers 404: it has no {endpoint.upstream}", suspect=False, refusal=unserved
        )
    why = what_it_means(status, submitted.access.pool.upstream_model)
    if status in NOT_ADMITTED:
        return AttemptFailed(
            Reason.NO_BACKEND, why, suspect=False, refused=True, retry_after_s=connection.retry_after_s
        )
    return AttemptFailed(Reason.BACKEND_ERROR, why, suspect=True, misconfigured=misconfigured(status))
