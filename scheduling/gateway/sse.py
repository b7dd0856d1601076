"""What accounting must see in a stream, found in its bytes.

Frames pass through unchanged; only whole frames leave, so that a failure can be told in a frame of its own. JSON is
parsed once per stream, for the usage frame. The byte patterns cannot occur inside a JSON string: a quote or a line end
is escaped there.
"""

from __future__ import annotations

import re

import msgspec

from scheduling.gateway.openai_types import AnswerTail

MAX_FRAME_BYTES = 4 * 1024 * 1024
_BOUNDARY = re.compile(rb"\r?\n\r?\n")
_FINISH = re.compile(rb'"finish_reason": ?"([a-z_]{1,32})"')
_NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_decode_tail = msgspec.json.Decoder(AnswerTail).decode


class FrameTooLong(Exception):
    """A frame exceeds every sensible size: the engine is broken."""


class Frames:
    """One stream's scanner. ``strip_usage``: the client did not ask for the usage frame that we had the engine add."""

    __slots__ = ("_rest", "_strip_usage", "count", "done", "failed", "finish", "input_tokens", "output_tokens")

    def __init__(self, strip_usage: bool) -> None:
        self._strip_usage = strip_usage
        self._rest = b""
        self.count = 0  # frames with a piece of the answer
        self.finish = ""  # the engine's finish_reason
        self.input_tokens = 0  # of the usage frame
        self.output_tokens: int | None = None
        self.done = False  # ``[DONE]`` was seen
        self.failed = False  # the engine ended the stream with an error frame, which is not passed on

    def feed(self, data: bytes) -> bytes:
        """The whole frames that ``data`` completes, ready to be sent; may be empty."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not data.endswith(b"\n\n"):
            cut = _last_boundary(data)
            self._rest = data[cut:]
            if len(self._rest) > MAX_FRAME_BYTES:
                raise FrameTooLong
            if not cut:
                return b""
            data = data[:cut]
        if not self.finish and (found := _FINISH.search(data)) is not None:
            self.finish = found[1].decode("ascii")
        if b'"choices":[]' in data or b"[DONE]" in data or b'"error"' in data or b'"choices": []' in data:
            return self._carefully(data)
        self.count += data.count(b"\n\n") or 1
        return data

    def _carefully(self, data: bytes) -> bytes:
        """Frame by frame: only for the few reads near a stream's end."""
        out = []
        start = 0
        for boundary in _BOUNDARY.finditer(data):
            frame = data[start : boundary.end()]
            payload = data[start : boundary.start()].lstrip(b"\r\n")
            start = boundary.end()
            if payload.startswith(b"data:"):
                payload = payload[5:].lstrip(b" ")
                if payload == b"[DONE]":
                    self.done = True
                    out.append(frame)
                    break
                if payload.startswith(b'{"error"'):
                    self.failed = True
                    break
                if _NO_CHOICES.search(payload) is not None and self._usage(payload):
                    if self._strip_usage:
                        continue
                elif payload.startswith(b"{"):
                    self.count += 1
            out.append(frame)
        return b"".join(out)

    def _usage(self, payload: bytes) -> bool:
        try:
            tail = _decode_tail(payload)
        except (msgspec.MsgspecError, ValueError):
            return False
        if tail.usage is None or tail.choices:
            return False
        self.input_tokens = tail.usage.prompt_tokens
        self.output_tokens = tail.usage.completion_tokens or 0
        return True


def _last_boundary(data: bytes) -> int:
    """Where the last whole frame ends; 0 if none does."""
    end = data.rfind(b"\n\n")
    other = data.rfind(b"\n\r\n")
    if end < 0 and other < 0:
        return 0
    return max(end + 2 if end >= 0 else 0, other + 3 if other >= 0 else 0)
