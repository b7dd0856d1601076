"""What was predicted and what came of it, shared by the gateways of a pool: a bounded stream in Redis.

Every gateway appends the requests it saw end and reads everybody's, its own included, so that all learn the same in the
same order; one that starts reads the stream from its beginning. Lengths, names and embeddings; never a prompt.

``qm:{<pool>}:history`` is a stream of about the last 10,000 ended requests, ``o <observation>``, or ``r <category>``
where an operator reset what was learned (an empty category: of all). ``qm:{<pool>}:drift`` is what a gateway knows, as
JSON for whoever shows it; it is written every few seconds and expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scheduling.state.resp import RespConnection

KEPT: Final = 10_000  # observations: the window of similar prompts
DRIFT_TTL_S: Final = 600  # a drift nobody renews is not shown for ever


class Observation(msgspec.Struct, frozen=True, array_like=True):
    """One ended request. The embedding is packed (``scheduling.estimation.embedding``), empty where there was none."""

    application: str
    tenant: str
    model: str
    category: str
    input_tokens: int
    actual: int  # output tokens
    cut: bool  # ended by its bound
    source: str  # which predictor had spoken
    raw_p90: float  # what it had said, before calibration
    embedding: bytes = b""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget what drift taught, of one category or (empty) of all."""

    category: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Observation).decode


def history_key(pool: str) -> str:
    return f"qm:{{{pool}}}:history"


def drift_key(pool: str) -> str:
    return f"qm:{{{pool}}}:drift"


def decode_fields(fields: Sequence[bytes]) -> Observation | Reset | None:
    """One entry; None for what nobody here wrote."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    if b"o" in named:
        try:
            return _decode(named[b"o"])
        except msgspec.DecodeError:
            return None
    return Reset(named[b"r"].decode(errors="replace")) if b"r" in named else None


class HistoryStream:
    """One pool's stream. Every method raises ``StateUnavailable`` while Redis does not answer."""

    def __init__(self, resp: RespConnection, pool_id: str, kept: int = KEPT) -> None:
        self._resp = resp
        self._key = history_key(pool_id)
        self._drift_key = drift_key(pool_id)
        self._kept = kept

    async def append(self, observations: Sequence[Observation]) -> None:
        """Adds to the end, in one write; the oldest leave."""
        await asyncio.gather(
            *[self._resp.call("XADD", self._key, "MAXLEN", "~", self._kept, "*", "o", _encode(o)) for o in observations]
        )

    async def reset(self, category: str = "") -> None:
        """Tells every gateway to forget. It stays in the stream, so that one that starts later forgets as well."""
        await self._resp.call("XADD", self._key, "MAXLEN", "~", self._kept, "*", "r", category)

    async def read(self, after: str, count: int) -> list[tuple[str, Observation | Reset | None]]:
        """At most ``count`` entries after that id ("0": from the beginning), oldest first, without waiting."""
        reply: Any = await self._resp.call("XREAD", "COUNT", count, "STREAMS", self._key, after)
        if not reply:
            return []
        return [(entry_id.decode(), decode_fields(fields)) for entry_id, fields in reply[0][1]]

    async def show(self, drift: bytes) -> None:
        """Puts what this gateway knows where the dashboard finds it."""
        await self._resp.call("SET", self._drift_key, drift, "EX", DRIFT_TTL_S)
