"""How an endpoint's clients are told that a request ended: the same reason, in the format of their API."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.gateway.errors import Refusal, error_bytes, error_event, message_of
from scheduling.gateway.headers import Header

_encode = msgspec.json.Encoder().encode
# https://docs.anthropic.com/en/api/errors
_ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 409: "invalid_request_error", 413: "request_too_large",
    422: "invalid_request_error", 429: "rate_limit_error", 431: "request_too_large", 503: "overloaded_error",
    504: "timeout_error", 408: "timeout_error",
}  # fmt: skip


class Dialect:
    """OpenAI's, and what others have differently."""

    def names(self, request_id: str) -> list[Header]:
        """The headers that tell the id of the request."""
        return [(b"x-request-id", request_id.encode("ascii"))]

    def body(self, refusal: Refusal, request_id: str) -> bytes:
        """Of an answer that is an error."""
        return error_bytes(refusal.reason, refusal.param, **refusal.fields)

    def event(self, reason: Reason, request_id: str, number: int) -> bytes:
        """The last of a stream that cannot be completed; ``number``: how many events were sent before it."""
        return error_event(reason)


class _Messages(Dialect):
    """Anthropic's."""

    def names(self, request_id: str) -> list[Header]:
        name = request_id.encode("ascii")
        return [(b"x-request-id", name), (b"request-id", name)]  # its SDKs read the second

    def body(self, refusal: Refusal, request_id: str) -> bytes:
        return self._error(refusal.reason, refusal.status, request_id, refusal.param, **refusal.fields)

    def event(self, reason: Reason, request_id: str, number: int) -> bytes:
        return b"event: error\ndata: %b\n\n" % self._error(reason, ENDINGS[reason].status, request_id)

    @staticmethod
    def _error(reason: Reason, status: int, request_id: str, param: str | None = None, **fields: Any) -> bytes:
        kind, message = _ANTHROPIC.get(status, "api_error"), message_of(reason, **fields)
        if param is not None and param not in message:  # its errors have no field of that name
            message = f"{param}: {message}"
        error = {"type": kind, "message": message}
        return _encode({"type": "error", "error": error, "request_id": request_id})


class _Responses(Dialect):
    """OpenAI's newer one: errors as before, but a stream's events have names and numbers."""

    def event(self, reason: Reason, request_id: str, number: int) -> bytes:
        event = {
            "type": "error", "code": reason.value, "message": message_of(reason), "param": None,
            "sequence_number": number,
        }  # fmt: skip
        return b"event: error\ndata: %b\n\n" % _encode(event)


OPENAI, MESSAGES, RESPONSES = Dialect(), _Messages(), _Responses()
