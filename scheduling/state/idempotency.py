"""Who has an ``Idempotency-Key``: one tenant's keys in Redis, one method per script (``docs/internals/state.md``).

A key is *running* while a gateway holds it for a request (a lease of :data:`CLAIM_MS`, like a slot) and *done* once
that request completed. A request that ended in any other way frees it. Neither the key nor the body it came with is
ever stored: only what :mod:`scheduling.gateway.entry.idempotency` makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from scheduling.core.outcomes import Reason
from scheduling.state.resp import RespConnection
from scheduling.state.script import Script, load_family
from scheduling.state.types import BATCH, LEASE_MS

CLAIM_MS: Final = LEASE_MS  # a key held by a gateway that died is free after this
PURGED: Final = 100  # expired entries that one call removes
_CONSTANTS: Final = {"CLAIM_MS": CLAIM_MS, "PURGED": PURGED}


class ClaimStatus(StrEnum):
    MINE = "mine"  # the caller may run, and holds the key
    RUNNING = "running"  # another request of the same body holds it
    DONE = "done"  # another request of the same body completed
    OTHER = "other"  # it was used with another body


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer of ``claim``. Beyond ``status`` it tells of the request that has the key."""

    status: ClaimStatus
    request_id: str = ""
    reason: Reason | None = None  # done: how it completed
    answer: bytes = b""  # done: as it was given to ``settle``; empty where none is kept
    age_s: float = 0.0  # running: since it took the key
    ends_s: float = 0.0  # running: until its hold runs out, if nobody renews it
    heard: bool = True  # running: whether its gateway listens, so is alive


class HoldStatus(StrEnum):
    HELD = "held"
    DONE = "done"
    LOST = "lost"  # another request has the key


@dataclass(frozen=True, slots=True)
class Ticket:
    """What shared state needs of one request with a key: the key's and the body's digests, and who it is."""

    tenant: str
    key: str
    fingerprint: str
    request_id: str


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """For how long a tenant's done keys are remembered [ms], and how many, with how many bytes of answers."""

    kept_ms: int
    keys: int
    bytes: int


@cache
def load_idempotency_scripts() -> dict[str, Script]:
    """The scripts by name."""
    return load_family("idempotency", ("claim", "hold", "settle", "release"), _CONSTANTS)


class IdempotencyStore:
    """The keys of all tenants. Every method raises :class:`StateUnavailable` as those of ``PoolStore`` do, and may be
    called again with the same ticket."""

    def __init__(
        self, resp: RespConnection, gateway: str, limits: KeepLimits, scripts: Mapping[str, Script] | None = None
    ) -> None:
        self._resp = resp
        self._gateway = gateway
        self._limits = limits
        self._scripts = load_idempotency_scripts() if scripts is None else scripts

    async def claim(self, t: Ticket) -> Claim:
        """Takes the key for the ticket's request, unless another one has it."""
        reply = await self._resp.eval(
            self._scripts["claim"],
            prefix_of(t.tenant),
            (t.key, t.fingerprint, t.request_id, self._gateway, self._limits.kept_ms),
        )
        status = ClaimStatus(reply[0].decode())
        if status is ClaimStatus.MINE:
            return Claim(status)
        request_id = reply[1].decode()
        if status is ClaimStatus.DONE:
            return Claim(status, request_id, Reason(reply[2].decode()), reply[3])
        if status is ClaimStatus.RUNNING:
            return Claim(status, request_id, age_s=reply[2] / 1000, ends_s=reply[3] / 1000, heard=bool(reply[4]))
        return Claim(status, request_id)

    async def hold(self, tenant: str, tickets: Sequence[Ticket]) -> list[HoldStatus]:
        """Renews claims of one tenant; answers in their order."""
        statuses: list[HoldStatus] = []
        for batch in _batches(tickets):
            flat: list[str | int] = [self._gateway, self._limits.kept_ms]
            for t in batch:
                flat += (t.key, t.fingerprint, t.request_id)
            reply = await self._resp.eval(self._scripts["hold"], prefix_of(tenant), flat)
            statuses += [HoldStatus(word.decode()) for word in reply]
        return statuses

    async def settle(self, t: Ticket, reason: Reason, answer: bytes = b"") -> bool:
        """The ticket's request completed. False where another one has its key, so that nothing was changed."""
        limits = self._limits
        reply = await self._resp.eval(
            self._scripts["settle"],
            prefix_of(t.tenant),
            (t.key, t.fingerprint, t.request_id, self._gateway, reason.value, limits.kept_ms, limits.keys,
             limits.bytes, answer),
        )  # fmt: skip
        return bool(reply == b"ok")

    async def release(self, t: Ticket) -> bool:
        """The ticket's request did not complete: its key is free. False where it did not have it."""
        reply = await self._resp.eval(self._scripts["release"], prefix_of(t.tenant), (t.key, t.request_id))
        return bool(reply == b"ok")


def prefix_of(tenant: str) -> bytes:
    """All keys of a tenant have one hash tag."""
    return f"qm:idem:{{{tenant}}}:".encode()


def _batches(items: Sequence[Ticket]) -> Iterable[Sequence[Ticket]]:
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))
