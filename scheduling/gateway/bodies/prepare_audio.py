"""``/v1/audio/transcriptions``: from a form with a file to the form that an engine gets.

A recording is read in pieces of half a minute, each a sequence of its own in the engine. So it counts as several
prompts: the output bound holds for each, and no more may run at once than the entitlement allows. How long it is only
the engine finds out; until then a second is taken for 16 kB, as speech is compressed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec

from scheduling.core.estimate.tokens import raw_tokens
from scheduling.core.types import PoolSpec
from scheduling.gateway.answers.answer_types import FAILED, WRONG, Asked, Broken, Usage, WholeAnswer, broken
from scheduling.gateway.bodies.audio_types import TranscriptionRequest
from scheduling.gateway.bodies.checks import check_bound, invalid
from scheduling.gateway.bodies.explain import explained
from scheduling.gateway.bodies.media import AUDIO_BYTES
from scheduling.gateway.bodies.openai_types import MAX_CHOICES, ChatRequest, Message, consume
from scheduling.gateway.bodies.prepare import MESSAGE_TOKENS, Form, Prepared

TOKENS_PER_S = 25  # that a second of audio is charged as
PIECE_S = 30  # as vLLM cuts a recording
MOST_S = 3_600  # an engine's count of seconds that is believed: silence of an hour has a few kilobytes
MAX_FIELDS = 32
MAX_PART_HEAD = 1024  # bytes before a field's value
# No client can know it: what a file contains ends no field of our form.
BOUNDARY = secrets.token_hex(24)
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"

_NAME = re.compile(rb';\s*name="([^"\r\n]{1,100})"', re.IGNORECASE)
_FIRST = re.compile(rb"--([0-9A-Za-z'()+_,\-./:=? ]{1,70})\r\n")
_LISTS = ("timestamp_granularities[]",)
_OTHERS = {"timestamp_granularities": "timestamp_granularities[]"}  # as some clients write it


class UploadForm(Form[TranscriptionRequest]):
    """A body that is a form with a file."""

    __slots__ = ()

    def parse(self, data: bytes) -> TranscriptionRequest:
        values: dict[str, Any] = {}
        for name, value in _parts(data):
            name = _OTHERS.get(name, name)
            if name == "file":
                taken: Any = value
            else:
                try:
                    taken = value.decode()
                except UnicodeDecodeError:
                    raise invalid(f"{name[:100]}: It is no UTF-8 text.", name[:100]) from None
            if name in _LISTS:
                values.setdefault(name, []).append(taken)
            elif name in values:
                raise invalid(f"{name[:100]} is given twice.", name[:100])
            else:
                values[name] = taken
        if values.get("file") == b"":
            raise invalid("The file is empty: send the recording.", "file")
        if "file" not in values:
            raise invalid("file is missing: send the recording in a field of this name.", "file")
        try:
            return msgspec.convert(values, TranscriptionRequest, strict=False, dec_hook=consume, builtin_types=(bytes,))
        except msgspec.ValidationError as exc:
            raise invalid(*explained(str(exc), TranscriptionRequest)) from None


TRANSCRIPTION_FORM = UploadForm(TranscriptionRequest)


def _parts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and values of a form's fields. Refuses (400) a body that is not a form."""
    first = _FIRST.match(data)
    if first is None:
        raise invalid("The body is no form: send multipart/form-data, with the recording in the field file.")
    mark = b"\r\n--" + first[1]
    at, count = first.end(), 0
    while True:
        count += 1
        head_end = data.find(b"\r\n\r\n", at, at + MAX_PART_HEAD)
        end = data.find(mark, max(at, head_end))
        name = None if head_end < 0 else _NAME.search(data, at, head_end)
        if name is None or end < 0 or count > MAX_FIELDS:
            raise invalid(f"The form cannot be read: at most {MAX_FIELDS} named fields, each with its end.")
        yield name[1].decode("utf-8", "replace"), data[head_end + 4 : end]
        after = data[end + len(mark) : end + len(mark) + 2]
        if after == b"--":
            return
        if after != b"\r\n":
            raise invalid("The form cannot be read: a field ends neither it nor the next one.")
        at = end + len(mark) + 2


class Recording(Prepared, eq=False):
    """A recording that may be sent."""

    def upstream(
        self, model: str, priority: int | None, cache_salt: str | None = None, name: str = "", digest: str = ""
    ) -> bytes:
        """The form for the engine. Its form knows neither priority nor salt."""
        body = self.body
        body.model = model
        fields: list[bytes] = []
        for key, value in msgspec.to_builtins(body, enc_hook=_omit, builtin_types=(bytes,)).items():
            if key == "file" or value is None:
                continue
            for one in value if isinstance(value, list) else [value]:
                fields.append(_field(key, b"", str(one).encode()))
        fields.append(_field("file", b'; filename="audio"\r\ncontent-type: application/octet-stream', body.file))
        return b"".join([*fields, b"--%b--\r\n" % BOUNDARY.encode()])


def _omit(value: object) -> object:
    raise TypeError(f"{type(value).__name__} goes to no engine")


def _field(name: str, more: bytes, value: bytes) -> bytes:
    head = b'--%b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n'
    return head % (BOUNDARY.encode(), name.encode(), more) + value + b"\r\n"


def fit_recording(body: TranscriptionRequest, pool: PoolSpec) -> Prepared:
    """Checks the request against what the pool serves, and applies the output bound."""
    check_bound(body.max_completion_tokens, pool, "max_completion_tokens")
    given = body.max_completion_tokens is not None
    bound = body.max_completion_tokens or pool.default_output_tokens
    body.max_completion_tokens = bound
    audio = len(body.file) / AUDIO_BYTES + 1
    pieces = max(1, -(-int(audio) // (PIECE_S * TOKENS_PER_S)))
    if pieces > MAX_CHOICES:
        longest = MAX_CHOICES * PIECE_S * TOKENS_PER_S * AUDIO_BYTES
        raise invalid(f"The file has {len(body.file)} bytes; at most {longest} can be sent at once.", "file")
    words = f"{body.prompt or ''} {body.hotwords or ''}".strip()
    text = raw_tokens(words) + MESSAGE_TOKENS
    plain = ChatRequest(model=body.model, messages=[Message("user", words)])
    return Recording(
        body, False, False, False, bound, text * pieces + audio, False, 0, given, False, pieces, longest=text,
        media=audio, plain=plain, bound_field="max_completion_tokens",
    )  # fmt: skip


class _Seconds(msgspec.Struct):
    seconds: float | None = None


class _Written(msgspec.Struct):
    text: str
    usage: _Seconds | None = None
    duration: float | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Written, strict=False).decode


def read_transcription(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    """A whole answer, passed as it is: it names no model. Raises :class:`Broken`."""
    try:
        data.decode()
        answer = _decode(data)
    except WRONG:
        raise broken(data, "the answer is not a transcription") from None
    if bytes(answer.error) not in (b"", b"null"):
        raise Broken(FAILED, by_engine=True)
    seconds = answer.usage.seconds if answer.usage is not None else answer.duration
    believed = seconds is not None and 0 <= seconds <= MOST_S
    given = round(seconds * TOKENS_PER_S) if believed and seconds is not None else asked.input_tokens
    written = min(round(raw_tokens(answer.text)), asked.output_bound)
    return WholeAnswer("", "stop", Usage(given, given + written, written), believed, data)
