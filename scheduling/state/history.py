"""What was predicted and what came of it, shared by the gateways of a pool: a bounded stream in Redis.

Every gateway appends the requests it saw end and reads everybody's, its own included, so that all learn the same in the
same order; one that starts reads the stream from its beginning. Lengths, names and embeddings; never a prompt.

``qm:{<pool>}:history2`` is a stream of the last 10,000 ended requests, ``2 <sealed observation>``, or ``r <category>``
where an operator reset what was learned (an empty category: of all). They are divided fairly among tenants: one that
has less than an equal share loses nothing to a storm of another. ``qm:{<pool>}:drift`` is what a gateway knows, as
JSON for whoever shows it; it is written every few seconds and expires.

Observations are sealed (AES-GCM) with a key of the deployment and the pool: who reads Redis cannot test whether a
prompt was asked, nor whether two prompts are alike; who writes to it cannot teach. What cannot be opened, such as
entries of another version or secret, is passed over.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from scheduling.state.resp import RespConnection
from scheduling.state.script import Script, load_family

KEPT: Final = 10_000  # observations: the window of similar prompts
ENTRIES_KEPT: Final = 2 * KEPT  # of the stream, resets among them
APPENDED_AT_ONCE: Final = 10  # Redis serves admissions in between
DRIFT_TTL_S: Final = 600  # a drift nobody renews is not shown for ever
_FIELD: Final = b"2"  # the format's version
_NONCE: Final = 12
_OWNER: Final = 8  # bytes of a tenant's name in the shares, as a digest


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
    features: bytes = b""  # ``scheduling.core.estimate.features``; empty from gateways that do not look for them
    # ``scheduling.core.estimate.others.Others``; None from gateways that do not tell: who learns asks for itself
    others: tuple[int, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget what drift taught, of one category or (empty) of all."""

    category: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Observation).decode


class Seal:
    """Closes and opens the observations of one pool. ``secret``: the deployment's, the same in every gateway."""

    def __init__(self, secret: bytes, pool: str) -> None:
        from cryptography.exceptions import InvalidTag  # 20 ms, and not every process needs it
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        own = hmac.digest(secret, b"history\0" + pool.encode(), "sha256")
        self._cipher = AESGCM(hmac.digest(own, b"observations", "sha256"))
        self._owners = hmac.digest(own, b"owners", "sha256")
        self._wrong = InvalidTag

    def owner(self, tenant: str) -> str:
        """Stands for a tenant in the shares."""
        return hmac.digest(self._owners, tenant.encode(), "sha256")[:_OWNER].hex()

    def close(self, observation: Observation) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, _encode(observation), _FIELD)

    def open(self, sealed: bytes) -> Observation | None:
        """None for what was not closed with this key, or is no observation."""
        if len(sealed) <= _NONCE:
            return None
        try:
            return _decode(self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _FIELD))
        except (self._wrong, msgspec.DecodeError):
            return None


def history_key(pool: str) -> str:
    return f"qm:{{{pool}}}:history2"


def drift_key(pool: str) -> str:
    return f"qm:{{{pool}}}:drift"


@cache
def load_history_scripts() -> dict[str, Script]:
    """The scripts by name."""
    return load_family("history", ("append",), {})


def decode_fields(fields: Sequence[bytes], seal: Seal) -> Observation | Reset | None:
    """One entry; None for what nobody here wrote."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    if _FIELD in named:
        return seal.open(named[_FIELD])
    return Reset(named[b"r"].decode(errors="replace")) if b"r" in named else None


class HistoryStream:
    """One pool's stream. Every method raises ``StateUnavailable`` while Redis does not answer."""

    def __init__(self, resp: RespConnection, pool_id: str, secret: bytes = b"", kept: int = KEPT) -> None:
        self._resp = resp
        self._prefix = f"qm:{{{pool_id}}}:".encode()
        self._key = history_key(pool_id)
        self._drift_key = drift_key(pool_id)
        self._seal = Seal(secret, pool_id)
        self._kept = kept

    async def append(self, observations: Sequence[Observation]) -> None:
        """Adds to the end; of more than are kept, the oldest of the tenant with most leave."""
        for start in range(0, len(observations), APPENDED_AT_ONCE):
            words: list[bytes | str | int] = [self._kept]
            for seen in observations[start : start + APPENDED_AT_ONCE]:
                words += (self._seal.owner(seen.tenant), self._seal.close(seen))
            await self._resp.eval(load_history_scripts()["append"], self._prefix, words)

    async def reset(self, category: str = "") -> None:
        """Tells every gateway to forget. It stays in the stream, so that one that starts later forgets as well."""
        await self._resp.call("XADD", self._key, "MAXLEN", "~", ENTRIES_KEPT, "*", "r", category)

    async def read(self, after: str, count: int) -> list[tuple[str, Observation | Reset | None]]:
        """At most ``count`` entries after that id ("0": from the beginning), oldest first, without waiting."""
        reply: Any = await self._resp.call("XREAD", "COUNT", count, "STREAMS", self._key, after)
        if not reply:
            return []
        return [(entry_id.decode(), decode_fields(fields, self._seal)) for entry_id, fields in reply[0][1]]

    async def show(self, drift: bytes) -> None:
        """Puts what this gateway knows where the dashboard finds it."""
        await self._resp.call("SET", self._drift_key, drift, "EX", DRIFT_TTL_S)
