"""A pool's keys in memory: what the prelude of the scripts is to Redis (``scripts/prelude.lua``), in Python.

Leases and waiting entries change only together with their totals, here as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.admission import refill
from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendView
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.types import BATCH, ENDED_MS, LEASE_MS, Fenced, SweptRequest


@dataclass(slots=True)
class Bucket:
    level: float
    at: int
    rate: float
    depth: float


@dataclass(frozen=True, slots=True)
class Dump:
    """Every key of a pool, as plain values."""

    meta: Mapping[str, str]
    ready: Mapping[str, str]
    leases: Mapping[str, int]
    held: Mapping[str, bytes]
    waiting: Mapping[str, int]
    queue: Mapping[str, bytes]
    totals: Mapping[str, int]
    buckets: Mapping[str, float]
    events: Sequence[tuple[str, bytes]]
    ledger: Sequence[tuple[bytes, ...]]
    ended: Mapping[str, str]


class PoolMemory:
    """The keys of one pool and the moves that scripts make on them. ``clock_ms`` plays Redis ``TIME``."""

    def __init__(self, pool_id: str, clock_ms: Callable[[], int]) -> None:
        self.pool_id = pool_id
        self._now = clock_ms
        self.flush()

    def flush(self) -> None:
        """What FLUSHALL does."""
        self.meta: dict[str, int | float | str] = {}
        self.ready: dict[str, tuple[int, int]] = {}
        self.leases: dict[str, int] = {}
        self.held: dict[str, Entry] = {}
        self.waiting: dict[str, int] = {}
        self.queue: dict[str, Entry] = {}
        self.totals: dict[str, int] = {}
        self.buckets: dict[str, Bucket] = {}
        self.service: dict[str, float] = {}
        self.events: list[tuple[str, bytes]] = []
        self.ledger: list[tuple[bytes, ...]] = []
        self._ended: dict[str, tuple[Reason, int]] = {}

    def ended(self, request_id: str) -> Reason | None:
        """How a request ended, while that is remembered."""
        known = self._ended.get(request_id)
        if known is None:
            return None
        if known[1] <= self._now():
            del self._ended[request_id]
            return None
        return known[0]

    def dump(self) -> Dump:
        """Every key, as Redis would show it."""
        buckets: dict[str, float] = {}
        for ent, b in self.buckets.items():
            buckets |= {f"{ent}:level": b.level, f"{ent}:at": b.at, f"{ent}:rate": b.rate, f"{ent}:depth": b.depth}
        buckets |= {f"{ent}:service_ms": ms for ent, ms in self.service.items()}
        return Dump(
            meta={k: f"{v:.3f}" if k == "service_ms" else str(v) for k, v in self.meta.items()},
            ready={name: f"{slots} {kv}" for name, (slots, kv) in self.ready.items()},
            leases=dict(self.leases),
            held={k: codec.encode_entry(e) for k, e in self.held.items()},
            waiting=dict(self.waiting),
            queue={k: codec.encode_entry(e) for k, e in self.queue.items()},
            totals=dict(self.totals),
            buckets=buckets,
            events=list(self.events),
            ledger=list(self.ledger),
            ended={k: r.value for k in list(self._ended) if (r := self.ended(k)) is not None},
        )

    # --- the moves

    def _total(self, name: str) -> int:
        return self.totals.get(name, 0)

    def _inflight(self, ent: str) -> int:
        return self._total(f"e:{ent}:run") + self._total(f"e:{ent}:wait")

    def _backends(self) -> tuple[BackendView, ...]:
        return tuple(
            BackendView(
                name, slots, kv, self._total(f"b:{name}:run"), self._total(f"b:{name}:kv"),
                self._total(f"b:{name}:work"),
            )
            for name, (slots, kv) in self.ready.items()
        )  # fmt: skip

    def _shift(self, name: str, delta: int) -> None:
        new = self._total(name) + delta
        if new:
            self.totals[name] = new
        else:
            self.totals.pop(name, None)

    def _count_lease(self, e: Entry, sign: int) -> None:
        ent, b = f"e:{e.entitlement}", f"b:{e.backend}"
        for name, delta in (
            ("run", 1), (f"{ent}:run", 1), (f"{ent}:kv", e.kv),
            (f"{b}:run", 1), (f"{b}:kv", e.kv), (f"{b}:work", e.work),
        ):  # fmt: skip
            self._shift(name, sign * delta)

    def _count_waiting(self, e: Entry, sign: int) -> None:
        ent = f"e:{e.entitlement}"
        for name, delta in (("wait", 1), ("bytes", e.body_bytes), (f"{ent}:wait", 1), (f"{ent}:kv", e.kv)):
            self._shift(name, sign * delta)

    def _put_lease(self, request_id: str, e: Entry, expiry: int) -> None:
        self.leases[request_id], self.held[request_id] = expiry, e
        self._count_lease(e, 1)

    def _drop_lease(self, request_id: str) -> Entry:
        e = self.held.pop(request_id)
        del self.leases[request_id]
        self._count_lease(e, -1)
        return e

    def _put_waiting(self, request_id: str, e: Entry, now: int) -> None:
        self.waiting[request_id], self.queue[request_id] = now + LEASE_MS, e
        self._count_waiting(e, 1)
        self.events.append(("q", request_id.encode() + b" " + codec.encode_entry(e)))

    def _drop_waiting(self, request_id: str) -> Entry:
        e = self.queue.pop(request_id)
        del self.waiting[request_id]
        self._count_waiting(e, -1)
        return e

    def _ring(self, kind: str, value: str) -> None:
        self.events.append((kind, value.encode()))

    def _ring_free(self, backend: str) -> None:
        if self._total("wait"):
            self._ring("f", backend)

    def _mark_ended(self, request_id: str, reason: Reason) -> None:
        self._ended[request_id] = (reason, self._now() + ENDED_MS)

    def _level(self, ent: str, rate: float, depth: float, now: int) -> float:
        b = self.buckets.get(ent)
        return depth if b is None else refill(b.level, b.at, rate, depth, now)

    def _set_level(self, ent: str, level: float, now: int, rate: float, depth: float) -> None:
        self.buckets[ent] = Bucket(float(f"{level:.6f}"), now, rate, depth)

    def _settle(self, e: Entry, actual: int, now: int) -> None:
        b = self.buckets.get(e.entitlement)
        if e.charge == 0 or b is None:
            return
        level = refill(b.level, b.at, b.rate, b.depth, now)
        self._set_level(e.entitlement, min(b.depth, level + e.charge - actual), now, b.rate, b.depth)

    def _learn_service(self, ent: str, ms: int) -> None:
        old = self.meta.get("service_ms")
        self.meta["service_ms"] = _average(None if old is None else float(old), ms)
        self.service[ent] = _average(self.service.get(ent), ms)

    def _fence(self, epoch: int) -> None:
        if self.meta.get("epoch") != epoch:
            raise Fenced

    def _due(self, expiries: Mapping[str, int], now: int) -> list[str]:
        return [name for at, name in sorted((at, name) for name, at in expiries.items()) if at <= now][:BATCH]

    def _bury(self, request_id: str, e: Entry, now: int) -> SweptRequest:
        self._mark_ended(request_id, Reason.GATEWAY_LOST)
        self.ledger.append((b"swept", codec.encode_entry(e), b"at", str(now).encode()))
        return SweptRequest(request_id, e.attempt, e.entitlement, e.backend, e.gateway)


def _average(old: float | None, new: int) -> float:
    mean = float(new) if old is None else 0.9 * old + 0.1 * new
    return float(f"{mean:.3f}")
