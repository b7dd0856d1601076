"""Whether a replica fails what others do: by the share of its attempts, as gateways report them. Pure.

Outlier ejection as Envoy has it (failure percentage over a sliding window, a minimum volume, an ejection time that
grows with each ejection), with two additions. A replica comes back to one slot, and gets more as it answers. And one
that fails less than half goes as well where others fail distinctly less of the same tenants' attempts (:func:`worse`),
and so does one that answers without content what others answer.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scheduling.state.types import Attempts

WINDOW_S = 10.0
REFUSALS_S = 30.0  # a replica that admits nothing is paused, and so asked rarely
FEWEST = 5  # failures in the window that say anything
SHARE = 0.5  # of its attempts
COMPARED_S = 60.0  # a tenant's attempts at several replicas are compared for so long, and for WINDOW_S
WORSE_SHARE = 0.2  # of the attempts compared; below it half a pool would be lost for few failures
WORSE_BY = 3.5  # standard deviations more failures than chance would leave to it: once in 4,000 windows
OTHERS_TRIED = 20  # attempts of other tenants, of which some would have failed as well
OTHERS_ANSWERED = 1  # likewise for answers without content, which a client can ask for
BACK_FIRST_S = 5.0  # out for at least so long after the first ejection, twice as long after each further one
BACK_LAST_S = 300.0
FORGIVEN_S = 120.0  # of answers without an ejection: the next one is a first one again
GROW_S = 5.0  # without a failure: twice the slots, also where nothing was asked of it


@dataclass(slots=True)
class Outlier:
    """One replica's attempts, what it is offered less than it has, and until when. Seconds of one monotonic clock."""

    why: str = ""  # of the last failure or refusal
    paused_until_s: float = 0.0
    back_from_s: float = 0.0  # not probed before
    _allowed: int | None = None  # slots; None: all
    _grown_s: float = 0.0
    _ejections: int = 0
    _ejected_s: float = 0.0
    _seen: deque[tuple[float, Attempts]] = field(default_factory=deque)

    def report(self, attempts: Attempts, now_s: float) -> str:
        """One gateway's figures. Why it is to be ejected; "" where it is not."""
        seen = self._seen
        seen.append((now_s, attempts))
        while seen and seen[0][0] <= now_s - COMPARED_S:
            seen.popleft()
        self.why = attempts.why or self.why
        if attempts.failed or attempts.refused:
            self._grown_s = now_s
        elif attempts.succeeded:
            self._grow(now_s)
        recent = [a for at_s, a in seen if at_s > now_s - WINDOW_S]
        failed = sum(a.failed for a in recent)
        tried = max(failed, sum(a.tried for a in recent))  # a stream may have begun before the window
        if failed >= FEWEST and failed >= SHARE * tried:
            return f"{failed} of {tried} attempts failed in {WINDOW_S:.0f} s{self._last}"
        longer = [a for at_s, a in seen if at_s > now_s - REFUSALS_S]
        refused, good = sum(a.refused for a in longer), sum(a.succeeded for a in longer)
        if refused >= FEWEST and not good:
            return f"{refused} attempts in {REFUSALS_S:.0f} s, none admitted{self._last}"
        return ""

    def compared(self, what: _Compared, now_s: float, within_s: float) -> dict[str, tuple[int, int]]:
        """Attempts, and bad ones among them, by tenant."""
        tried: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for at_s, attempts in self._seen:
            if at_s > now_s - within_s:
                for tenant, (n, bad) in what.by_tenant(attempts).items():
                    tried[tenant] += n
                    failed[tenant] += bad
        return {tenant: (max(n, failed[tenant]), failed[tenant]) for tenant, n in tried.items()}

    def tried(self, now_s: float, within_s: float) -> int:
        """All attempts of so long."""
        return sum(a.tried for at_s, a in self._seen if at_s > now_s - within_s)

    def failed(self, why: str) -> None:
        """A gateway says that an attempt failed, and why, beside the figures of :meth:`report`."""
        self.why = why or self.why

    @property
    def doubt(self) -> str:
        """Why a generation is asked of it, for people."""
        return f"requests failed there{self._last}"

    @property
    def _last(self) -> str:
        """What its last failure was; nothing where no gateway has said."""
        return f" ({self.why})" if self.why else ""

    def moved(self, now_s: float, within_s: float) -> bool:
        """Whether pieces of answers arrived from it lately."""
        return any(a.moved for at_s, a in self._seen if at_s > now_s - within_s)

    def pause(self, pause_s: float, running: int, why: str, now_s: float) -> None:
        """It gets nothing for so long, and then one more than it runs."""
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)
        self._allowed = running + 1
        self._grown_s = self.paused_until_s
        self.failed(why)

    def ejected(self, now_s: float) -> None:
        """It is out for a while, and comes back to one slot."""
        if now_s - self._ejected_s > BACK_LAST_S + FORGIVEN_S:
            self._ejections = 0
        self.back_from_s = now_s + min(BACK_LAST_S, BACK_FIRST_S * 2.0 ** min(self._ejections, 10))
        self._ejections += 1
        self._ejected_s = now_s
        self._allowed = 1
        self._seen.clear()

    def returned(self, now_s: float) -> None:
        """A probe went well. What failed before does not count again: gateways tell of it about a second later."""
        self._grown_s = now_s
        self._seen.clear()

    def offered(self, slots: int, now_s: float) -> int:
        """How many of its slots may be used now."""
        if now_s < self.paused_until_s:
            return 0
        if self._allowed is not None and now_s - self._grown_s >= GROW_S:
            self._grow(now_s)
        if self._allowed is None or self._allowed >= slots:
            self._allowed = None
            return slots
        return self._allowed

    def says(self, now_s: float) -> str:
        """For people: that it is offered less than it has, and why; "" where it is not."""
        if now_s < self.paused_until_s:
            return f"paused for {self.paused_until_s - now_s:.0f} s{self._last}"
        if self._allowed is not None:
            slots = "1 slot" if self._allowed == 1 else f"{self._allowed} slots"
            return f"{slots} for now: it was out, and gets more as it answers"
        return ""

    def _grow(self, now_s: float) -> None:
        self._grown_s = now_s
        if self._allowed is not None and now_s >= self.paused_until_s:
            self._allowed *= 2


@dataclass(frozen=True, slots=True)
class _Compared:
    """What of attempts is compared between replicas."""

    by_tenant: Callable[[Attempts], Mapping[str, tuple[int, int]]]  # attempts, and bad ones among them
    verb: str  # of bad ones, in the past
    others: int  # attempts of other tenants at the replica, of which some would have been bad as well
    all_told: bool  # tenants without bad ones are told of as well


FAILURES = _Compared(lambda attempts: attempts.by_tenant, "failed", OTHERS_TRIED, False)
EMPTY = _Compared(lambda attempts: attempts.empty_by_tenant, "were answered without content", OTHERS_ANSWERED, True)


def worse(one: Outlier, others: Iterable[Outlier], now_s: float) -> str:
    """Why a replica is to be ejected because others fail distinctly fewer of the same attempts, or give content where
    it gives none; empty if it is not.

    Each tenant's attempts at it are compared with the same tenant's at the others (the test of Cochran, Mantel and
    Haenszel), so that a tenant whose requests fail wherever they run, or that this replica alone served, shows nothing.
    Where other tenants use the replica as well, one of them has to have failures there. The shorter time is for one
    that began to fail lately, the longer one for little traffic.
    """
    others = list(others)
    for what in (FAILURES, EMPTY):
        for within_s in (WINDOW_S, COMPARED_S):
            if why := _worse(one, others, what, now_s, within_s):
                return why
    return ""


def _worse(one: Outlier, others: list[Outlier], what: _Compared, now_s: float, within_s: float) -> str:
    here = one.compared(what, now_s, within_s)
    if sum(bad for _, bad in here.values()) < FEWEST:
        return ""  # before all others are looked through, as nearly always
    pairs = _pairs(here, [other.compared(what, now_s, within_s) for other in others])
    tried, failed, at_others, failed_at_others = (sum(pair[i] for pair in pairs) for i in range(4))
    if failed < FEWEST or failed < WORSE_SHARE * tried or not _beyond_chance(pairs):
        return ""
    with_failures = [n for n, bad in here.values() if bad]
    all_tried = sum(n for n, _ in here.values()) if what.all_told else one.tried(now_s, within_s)
    if len(with_failures) == 1 and all_tried - with_failures[0] >= what.others:
        return ""
    last = f" ({one.why})" if one.why and what is FAILURES else ""
    beside = f"{failed_at_others} of {at_others} of the same tenants at other replicas"
    return f"{failed} of {tried} attempts {what.verb} in {within_s:.0f} s, {beside}{last}"


def _pairs(
    here: dict[str, tuple[int, int]], others: list[dict[str, tuple[int, int]]]
) -> list[tuple[int, int, int, int]]:
    """By tenant: attempts and failures at one replica, and at the others. Tenants that ran on one side only are left
    out."""
    pairs = []
    for tenant, (tried, failed) in here.items():
        elsewhere = [at.get(tenant, (0, 0)) for at in others]
        pairs.append((tried, failed, sum(n for n, _ in elsewhere), sum(bad for _, bad in elsewhere)))
    return [pair for pair in pairs if pair[0] and pair[2]]


def _beyond_chance(pairs: list[tuple[int, int, int, int]]) -> bool:
    """Whether more attempts fail here than if each tenant's failures had met any of its attempts alike."""
    excess = variance = 0.0
    for here, failed_here, there, failed_there in pairs:
        both, failed = here + there, failed_here + failed_there
        excess += failed_here - here * failed / both
        variance += here * there * failed * (both - failed) / (both * both * (both - 1))
    return excess > WORSE_BY * math.sqrt(variance)
