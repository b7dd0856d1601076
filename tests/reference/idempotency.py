"""The scripts of ``Idempotency-Key`` in Python, in memory: what the model-based test holds the real ones to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduling.core.outcomes import Reason
from scheduling.state.idempotency import CLAIM_MS, PURGED, Claim, ClaimStatus, HoldStatus, KeepLimits, Ticket


@dataclass(slots=True)
class Held:
    """One key."""

    request_id: str
    gateway: str
    began_ms: int
    fingerprint: str
    reason: Reason | None  # None: it runs
    ends_ms: int
    answer: bytes = b""

    def words(self) -> str:
        state = "r" if self.reason is None else "d"
        reason = "-" if self.reason is None else self.reason.value
        return f"{state} {self.request_id} {self.gateway} {self.began_ms} {self.fingerprint} {reason}"


class ReferenceIdempotency:
    """One tenant's keys. ``clock_ms`` plays Redis ``TIME``, ``listens`` says whether a gateway is heard."""

    def __init__(self, limits: KeepLimits, clock_ms: Callable[[], int], listens: Callable[[str], bool]) -> None:
        self._limits = limits
        self._now = clock_ms
        self._listens = listens
        self.entries: dict[str, Held] = {}

    def flush(self) -> None:
        self.entries.clear()

    def claim(self, gateway: str, t: Ticket) -> Claim:
        now = self._now()
        x = self._find(t.key, now)
        if x is None:
            self.entries[t.key] = Held(t.request_id, gateway, now, t.fingerprint, None, now + CLAIM_MS)
            self._tidy(now)
            return Claim(ClaimStatus.MINE)
        if x.fingerprint != t.fingerprint:
            return Claim(ClaimStatus.OTHER, x.request_id)
        if x.reason is not None:
            return Claim(ClaimStatus.DONE, x.request_id, x.reason, x.answer)
        if x.request_id != t.request_id:
            return Claim(
                ClaimStatus.RUNNING,
                x.request_id,
                age_s=max(0, now - x.began_ms) / 1000,
                ends_s=(x.ends_ms - now) / 1000,
                heard=self._listens(x.gateway),
            )
        return Claim(ClaimStatus.MINE)

    def hold(self, gateway: str, tickets: Sequence[Ticket]) -> list[HoldStatus]:
        now = self._now()
        found = []
        for t in tickets:
            x = self._find(t.key, now)
            if x is not None and x.request_id != t.request_id:
                found.append(HoldStatus.LOST)
            elif x is not None and x.reason is not None:
                found.append(HoldStatus.DONE)
            else:
                began = now if x is None else x.began_ms
                self.entries[t.key] = Held(t.request_id, gateway, began, t.fingerprint, None, now + CLAIM_MS)
                found.append(HoldStatus.HELD)
        self._tidy(now)
        return found

    def settle(self, gateway: str, t: Ticket, reason: Reason, answer: bytes) -> bool:
        now, limits = self._now(), self._limits
        x = self._find(t.key, now)
        if x is not None and x.request_id != t.request_id:
            return False
        if x is not None and x.reason is not None:
            return True
        kept = answer if len(answer) <= limits.bytes else b""
        began = now if x is None else x.began_ms
        self.entries[t.key] = Held(t.request_id, gateway, began, t.fingerprint, reason, now + limits.kept_ms, kept)
        for _ in range(PURGED):
            done = [k for k, e in self.entries.items() if e.reason is not None]
            if len(done) <= limits.keys:
                break
            del self.entries[min(done, key=self._age)]
        for _ in range(PURGED):
            if self.bytes <= limits.bytes:
                break
            self.entries[min((k for k, e in self.entries.items() if e.answer), key=self._age)].answer = b""
        self._tidy(now)
        return True

    def release(self, t: Ticket) -> bool:
        x = self._find(t.key, self._now())
        if x is None or x.request_id != t.request_id:
            return False
        del self.entries[t.key]
        return True

    @property
    def bytes(self) -> int:
        """Of all answers."""
        return sum(len(e.answer) for e in self.entries.values())

    def _age(self, key: str) -> tuple[int, str]:
        return self.entries[key].ends_ms, key

    def _find(self, key: str, now: int) -> Held | None:
        x = self.entries.get(key)
        if x is not None and x.ends_ms <= now:
            del self.entries[key]
            return None
        return x

    def _tidy(self, now: int) -> None:
        for done in (False, True):
            over = [k for k, e in self.entries.items() if (e.reason is not None) is done and e.ends_ms <= now]
            for key in sorted(over, key=self._age)[:PURGED]:
                del self.entries[key]
