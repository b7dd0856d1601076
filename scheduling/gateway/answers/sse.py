"""A stream of an engine, frame by frame: every event that leaves was read as a completion chunk.

A frame is one line ``data: <JSON object>``; other line ends, comments and further fields of server-sent events are
taken off, so what a client gets is always our own framing around JSON that was validated. Frames that are right leave
as the bytes they came in. The first that is not ends the stream: ``failed`` says why, and the caller tells the client.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduling.gateway.answers.answer_types import (
    ABSENT,
    FRAMES_SLACK,
    Asked,
    Broken,
    ChatChunk,
    TextChunk,
    Usage,
    finish_of,
    own_count,
    plain_frames,
    read_chunk,
    refuses_input,
    settle_usage,
    usage_chunk,
    with_usage,
    without_usage,
)

MAX_FRAME_BYTES = 4 * 1024 * 1024
# Of a stream: as much as a whole answer, and so much for each frame that may come. One with twenty alternatives to its
# token and their bytes has 2 to 4 KB.
MAX_STREAM_BYTES, FRAME_BYTES = 64 * 1024 * 1024, 16 * 1024
# Of an event, which has one to four, and a comment line before it for each time its connection was kept alive. Each
# costs more than the bytes of it, while every stream waits: so many take 0.2 ms.
MAX_LINES = 1024
DONE = b"data: [DONE]\n\n"
_DATA = b"data: "
_END = b"\n\n"
_FIELDS = (b"event", b"id", b"retry")  # of server-sent events, beside data; clients of this API know none of them


class Frames:
    """One stream. ``strip_usage``: the client did not ask for the usage frame that we had the engine add."""

    __slots__ = (
        "_asked",
        "_begun",
        "_bytes",
        "_characters",
        "_finished",
        "_first",
        "_most",
        "_rest",
        "_strip_usage",
        "_unbegun",
        "_usage_sent",
        "believed",
        "count",
        "done",
        "failed",
        "finish",
        "refused",
        "seen",
        "surplus",
        "suspect",
        "usage",
    )

    def __init__(self, strip_usage: bool, asked: Asked) -> None:
        self._strip_usage = strip_usage
        self._asked = asked
        self._most = 2 * asked.output_bound + FRAMES_SLACK + 4 * asked.choices
        self._rest = bytearray()
        self._bytes = 0  # that came
        self._characters = 0  # of the answer
        self.seen = 0  # frames of any kind
        self._first: ChatChunk | TextChunk | None = None
        self._finished: set[int] = set()  # answers that have ended
        self._unbegun = set(range(asked.choices)) if asked.choices > 1 else set()  # of several, those without a token
        self._begun: Callable[[], None] | None = None  # to be called when all have one
        self._usage_sent = False
        self.count = 0  # frames with a piece of the answer
        self.finish = ""  # the engine's finish_reason
        self.usage: Usage | None = None  # once the engine told it or the stream is complete
        self.believed = True  # whether it is what the engine said
        self.done = False  # ``[DONE]`` was seen, after an answer
        self.surplus = False  # something came after ``[DONE]``
        self.failed = ""  # why the stream cannot go on: in words for operators
        self.refused = b""  # the engine's error where it is all that came, and is about the input
        self.suspect = True  # whether that makes the replica one to look at

    @property
    def id(self) -> str:
        """What the answer calls itself."""
        return self._first.id if self._first is not None else ""

    @property
    def empty(self) -> bool:
        """Whether nothing of the answer has content."""
        return not self._characters

    @property
    def tokens(self) -> int:
        """Output tokens by our own count."""
        frames = max(0, self.count - (self._asked.choices if self._asked.chat else 0))  # first frames name the role
        return own_count(frames, self._characters, self._asked.output_bound)

    def when_begun(self, tell: Callable[[], None]) -> None:
        """Of a stream with a token: calls ``tell`` when each of its answers has one. Of a single answer that is now."""
        if self._unbegun:
            self._begun = tell
        else:
            tell()

    def feed(self, data: bytes) -> bytes:
        """The whole frames that ``data`` completes, ready to be sent; may be empty. Never raises."""
        self._bytes += len(data)
        if self._bytes > MAX_STREAM_BYTES and self._bytes > MAX_STREAM_BYTES + FRAME_BYTES * self._most:
            self._fail("the stream is longer than any answer that was asked for")
            return b""
        if self._rest:
            start = max(0, len(self._rest) - 3)
            self._rest += data
            if _last_boundary(self._rest, start) <= start:
                if len(self._rest) > MAX_FRAME_BYTES:
                    self._fail("a frame without end")
                return b""
            data = bytes(self._rest)
            self._rest.clear()
        if not data.endswith(b"\n\n"):
            cut = _last_boundary(data, 0)
            self._rest += data[cut:]
            if len(self._rest) > MAX_FRAME_BYTES:
                self._fail("a frame without end")
            if not cut:
                return b""
            data = data[:cut]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                return self._each(data, check=True)
        return self._each(data)

    def _each(self, data: bytes, *, check: bool = False) -> bytes:
        """``check``: some of it is not UTF-8."""
        frames = data.split(b"\n\n")
        out: list[bytes] = []
        as_it_was, number = True, -1
        if not check and (plain := self._plain(frames, 0)):
            if plain == len(frames) - 1 and not frames[-1]:
                return data
            out, number = [_END.join(frames[:plain]), _END], plain - 1
        while (number := number + 1) < len(frames):
            frame = frames[number]
            if not check and number and frame.startswith(_DATA) and (plain := self._plain(frames, number)):
                out += (_END.join(frames[number : number + plain]), _END)
                number += plain - 1
                continue
            if not frame:
                as_it_was = as_it_was and number == len(frames) - 1
                continue
            try:
                payload = frame[6:] if frame.startswith(_DATA) and b"\n" not in frame else _payload(frame)
                if payload is None:
                    as_it_was = False
                    continue
                if payload == b"[DONE]":
                    out.append(self._end())
                    self.surplus = bool(self._rest) or any(frames[number + 1 :])
                    as_it_was = as_it_was and not self.surplus and out[-1] == DONE
                    break
                if check:
                    payload.decode()
                sent = self._one(payload)
            except UnicodeDecodeError:
                self._fail("a frame is not UTF-8")
                as_it_was = False
                break
            except Broken as exc:
                self._fail(exc.why)
                self.suspect = not exc.by_engine
                if exc.by_engine and self._first is None and payload is not None and refuses_input(payload):
                    self.refused = payload
                as_it_was = False
                break
            if sent is payload and payload is not None and len(frame) == len(payload) + 6:
                out.append(frame + b"\n\n")
            else:
                as_it_was = False
                if sent:
                    out.append(b"data: %b\n\n" % sent)
        return data if as_it_was else b"".join(out)

    def _plain(self, frames: list[bytes], at: int) -> int:
        """How many frames from the one at ``at`` on are pieces of the only answer, which has begun. They are counted,
        and may be passed on as they are."""
        first, asked = self._first, self._asked
        if first is None or asked.choices != 1:
            return 0
        last = min(len(frames), at + self._most - self.seen)
        count, characters = plain_frames(
            frames if not at and last == len(frames) else frames[at:last], first.id, asked.chat
        )
        self.seen += count
        self.count += count
        self._characters += characters
        return count

    def _one(self, payload: bytes) -> bytes:
        """What is sent to the client for one frame; empty for a frame that is not passed on. Raises :class:`Broken`."""
        if b"\r" in payload or b"\n" in payload:
            raise Broken("a frame has a line end within its JSON")
        chunk = read_chunk(payload, self._asked.chat)
        self.seen += 1
        if self.seen > self._most:
            raise Broken("the stream has more frames than were asked for")
        first = self._first
        if first is None:
            self._first = chunk
        elif chunk.id != first.id:
            raise Broken("a frame of another answer")
        has_usage = chunk.usage is not ABSENT and bytes(chunk.usage) != b"null"
        if chunk.choices:
            if len(chunk.choices) > self._asked.choices:
                raise Broken("a frame of more answers than were asked for")
            for piece in chunk.choices:
                if piece.index >= self._asked.choices:
                    raise Broken("a frame of an answer that was not asked for")
                self.count += 1
                self._characters += piece.characters
                if self._unbegun and (piece.characters or piece.finish_reason):
                    self._begins(piece.index)
                if piece.finish_reason and piece.index not in self._finished:
                    self._finished.add(piece.index)
                    self.finish = finish_of((self.finish, piece.finish_reason))
            return without_usage(payload) if has_usage else payload  # a running count is nothing that was asked for
        if not has_usage:
            return payload
        if self.usage is not None:
            return b""
        self._settle(chunk)
        if self._strip_usage:
            return b""
        assert self.usage is not None
        self._usage_sent = True
        return with_usage(payload, self.usage)

    def _begins(self, index: int) -> None:
        self._unbegun.discard(index)
        if not self._unbegun and self._begun is not None:
            self._begun()

    def _settle(self, chunk: ChatChunk | TextChunk | None) -> None:
        frames = max(0, self.count - (self._asked.choices if self._asked.chat else 0))
        raw = chunk.usage if chunk is not None else ABSENT
        self.usage, self.believed = settle_usage(raw, self._asked, frames, self._characters)

    def _end(self) -> bytes:
        """``[DONE]``, after the usage frame if the client still has to get one. Raises :class:`Broken`."""
        if self._first is None or len(self._finished) < self._asked.choices:
            raise Broken("the stream ended without an answer")
        self.done = True
        if self.usage is None:
            self._settle(None)
        if self._strip_usage or self._usage_sent:
            return DONE
        assert self.usage is not None
        return b"data: %b\n\n" % usage_chunk(self._first, self.usage) + DONE

    def _fail(self, why: str) -> None:
        self.failed = self.failed or why


def _payload(frame: bytes) -> bytes | None:
    """The data of a frame that is not simply one ``data: `` line; None where it has none. Raises :class:`Broken`."""
    data: bytes | None = None
    for line in lines_of(frame):
        if not line or line.startswith(b":"):  # a comment: engines and proxies send them to keep a connection alive
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            if data is not None:
                raise Broken("a frame has several lines of data")
            data = value.strip(b" ")
        elif name not in _FIELDS:
            raise Broken("the stream is not made of server-sent events")
    return data


def lines_of(event: bytes) -> list[bytes]:
    """The lines of an event. Raises :class:`Broken` for more than any has."""
    if event.count(b"\n") >= MAX_LINES:
        raise Broken(f"an event has more than {MAX_LINES} lines")
    return event.split(b"\n")


def _last_boundary(data: bytes | bytearray, start: int) -> int:
    """Where the last whole frame from ``start`` on ends; ``start`` if none does."""
    end = data.rfind(b"\n\n", start)
    other = data.rfind(b"\n\r\n", start)
    return max(end + 2 if end >= 0 else start, other + 3 if other >= 0 else start)
