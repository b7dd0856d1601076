"""Which trace does a request belong to? Ids that a gateway and a worker find without talking to each other.

Everything follows from the request's id and the client's ``traceparent`` (W3C Trace Context): the gateway names the
dispatch span to the engine before the worker writes it. What a record carries is one line, ``operation traceparent``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

CHAT, COMPLETION = "chat", "text_completion"  # OpenTelemetry's names of operations (gen_ai.operation.name)
EMBEDDINGS = "embeddings"
RERANK, SCORE, CLASSIFY = "rerank", "score", "classify"  # it has no names for these
TRANSCRIPTION = "transcription"
DISPATCH = "dispatch"
_LONGEST = 128  # a later version may say more than 55 characters
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one request."""

    operation: str
    trace_id: int
    parent_id: int | None  # the client's span; None: the request begins the trace
    sampled: bool  # the client's choice; without one: yes


def trace_line(operation: str, traceparent: bytes | None) -> str:
    """What a record carries. A ``traceparent`` that is not valid is dropped, as the standard wants."""
    if traceparent is None or len(traceparent) > _LONGEST:
        return operation
    match = _FORM.fullmatch(traceparent)
    if match is None:
        return operation
    version, trace, parent, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0") or not parent.strip(b"0"):
        return operation
    return f"{operation} 00-{trace.decode()}-{parent.decode()}-{flags.decode()}"


def trace_of(request_id: str, line: str) -> Trace:
    """The trace of a request whose record carries ``line`` (:func:`trace_line`)."""
    operation, _, traceparent = line.partition(" ")
    if not traceparent:
        return Trace(operation, _number(16, request_id), None, True)
    _, trace, parent, flags = traceparent.split("-")
    return Trace(operation, int(trace, 16), int(parent, 16), bool(int(flags, 16) & 1))


def span_id(request_id: str, name: str) -> int:
    """The id of one of the request's spans; ``name`` is that of the span."""
    return _number(8, f"{request_id}/{name}")


def engine_traceparent(request_id: str, line: str) -> str:
    """``traceparent`` for the engine: its spans become children of the request's dispatch span."""
    trace = trace_of(request_id, line)
    return f"00-{trace.trace_id:032x}-{span_id(request_id, DISPATCH):016x}-{trace.sampled:02x}"


def _number(size: int, text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1  # zero is no id
