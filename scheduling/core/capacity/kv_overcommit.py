"""KV overcommit: how many KV tokens of a replica may be reserved, since requests use less than they reserve.

Question: a request reserves its prompt and its whole output bound, but most answers are far shorter. How much may be
reserved so that what is really held just fits the cache? If every bound were reserved in full, most of the cache and of
the slots would stay empty where clients ask for 16,000 tokens and get 1,000. The engine alone would do better: it takes
what comes, and preempts when its cache is full.

Formula: for each entitlement, ``used`` is the share of their reservation that its ended requests held on average (the
prompt and :data:`HELD` of the answer), weighted by reservation x time held, since long requests hold longest. With
``N`` ended and ``n`` running requests, the entitlement's share is ``(N used + n (1 + used) / 2) / (N + n)``: one that
runs counts as halfway between ``used`` and its full reservation, because the slow ones have not ended yet. ``s`` is the
mean of the entitlements' shares, weighted by what they reserve now, plus one standard deviation divided by the root of
the number of requests that fit a replica, less what their prompts have in common there (as a share of the reservation:
that of prompts x ``1 - sharing``, :class:`scheduling.core.capacity.kv_sharing.KvSharing`). A replica offers ``TARGET /
s`` times its cache, at least 1 and at most :data:`MAX_OVERCOMMIT` times. While nothing is known, nothing is
overcommitted. :class:`KvPressure` corrects that by what the engine shows: it takes some of the offer back where the
cache is full or requests are preempted, and offers more where room is left although the offer binds. A new leader
starts from its predecessor's offer (:meth:`KvUse.inherit`).
Inputs: requests as they end; what runs of each entitlement; each engine's KV usage and preemptions once a second.
Source: ours; overcommit as of memory in hypervisors, by history as in Borg's resource reclamation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome

TARGET = 1.0  # share of a cache that running requests are expected to fill
HELD = 0.5  # share of an answer that the cache holds on average, as it grows from nothing
MAX_OVERCOMMIT = 16.0  # times its cache that a replica may be reserved
MEMORY = 1024  # requests of an entitlement that count
FULL, CALM = 0.97, 0.9  # share of a cache in use from which, and below which, less or more is offered
ROOMY = 0.5  # below this what is expected to fit is offered again, whatever is usual
PAUSE_S = 5.0  # between two changes of a replica's part, and since the last pressure before it grows
STEP_BACK, HALF = 0.9, 0.5  # of the part that is left where the cache is full, and where a request is preempted
BACK, LEAST_PART, MOST_PART = 0.1, 0.05, 3.0  # by which the part grows; below this it is 0; it is no more than that
STEP = 0.05  # the factor is rounded down to this, so that offers change less often


@dataclass(slots=True)
class _Use:
    """Sums over an entitlement's ended requests; the latest :data:`MEMORY` count most."""

    requests: float = 0.0
    weight: float = 0.0  # reservation [tokens] x time held [s]
    used: float = 0.0  # the same x share that was held
    squares: float = 0.0
    prompts: float = 0.0  # likewise: share of the prompt alone
    reserved: float = 0.0  # [tokens], summed

    def add(self, reserved: int, share: float, prompt: float, held_s: float) -> None:
        keep, weight = 1.0 - 1.0 / MEMORY, reserved * held_s
        self.requests = keep * self.requests + 1.0
        self.weight = keep * self.weight + weight
        self.used = keep * self.used + weight * share
        self.squares = keep * self.squares + weight * share * share
        self.prompts = keep * self.prompts + weight * prompt
        self.reserved = keep * self.reserved + reserved

    def share(self, running: int) -> float:
        """Share of its reservation that a request is expected to hold, with ``running`` of them."""
        if not self.weight:
            return 1.0
        used = self.used / self.weight
        return (self.requests * used + running * (1.0 + used) / 2) / (self.requests + running)

    @property
    def variance(self) -> float:
        return max(0.0, self.squares / self.weight - (self.used / self.weight) ** 2) if self.weight else 0.0

    @property
    def prompt_share(self) -> float:
        """Share of their reservation that prompts are; 0 while that is not known."""
        return self.prompts / self.weight if self.weight else 0.0

    @property
    def usual(self) -> float:
        """Mean reservation of a request [tokens]."""
        return self.reserved / self.requests if self.requests else 0.0


@dataclass(slots=True)
class KvUse:
    """What the requests of a pool use of what they reserve."""

    _of: dict[str, _Use] = field(default_factory=dict)  # entitlement
    _inherited: float = 1.0  # share that the former leader expected over all entitlements
    _ended: int = 0  # requests seen since

    def inherit(self, overcommit: float) -> None:
        """Starts from the ``overcommit`` of the former leader. What runs was granted by it; starting from 1 would grant
        nothing until most of that has ended."""
        self._inherited = min(1.0, TARGET / max(TARGET, overcommit))

    def ended(self, entitlement: str, reserved: int, input_tokens: int, output_tokens: int, held_s: float) -> None:
        """A request ended that had reserved so many KV tokens and ran so long [s]."""
        if reserved > 0 and held_s > 0.0:
            self._ended += 1
            prompt = max(0, input_tokens)
            used = prompt + HELD * max(0, output_tokens)
            shares = min(1.0, used / reserved), min(1.0, prompt / reserved)
            self._of.setdefault(entitlement, _Use()).add(reserved, *shares, held_s)

    def read(self, records: Iterable[LedgerRecord]) -> None:
        """Counts requests that ended; those whose engine failed tell nothing."""
        for r in records:
            if r.granted_s is not None and r.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
                reserved = r.input_tokens_est + r.output_bound
                self.ended(r.entitlement, reserved, r.input_tokens, r.output_tokens, r.done_s - r.granted_s)

    def keep(self, entitlements: Mapping[str, object]) -> None:
        """Forgets all other entitlements."""
        for name in [name for name in self._of if name not in entitlements]:
            del self._of[name]

    def overcommit(self, running: Mapping[str, tuple[int, int]], kv_tokens: int, most: float = MAX_OVERCOMMIT) -> float:
        """How many times its cache a replica of ``kv_tokens`` may be reserved, 1 to ``most``. ``running``: by
        entitlement, how many requests run and what they reserve [tokens]."""
        return self.expected(running).overcommit(kv_tokens, most)

    def expected(self, running: Mapping[str, tuple[int, int]]) -> Expected:
        """What the pool's requests are expected to hold; ``running`` as above. O(entitlements): computed once
        for all replicas."""
        reserved = filled = spread = prompts = count = 0.0
        for name in running.keys() | self._of.keys():
            use, (n, tokens) = self._of.get(name, _UNKNOWN), running.get(name, (0, 0))
            weight = tokens + use.usual  # and one request more
            reserved += weight
            filled += weight * use.share(n + 1)
            spread += weight * use.variance
            prompts += weight * use.prompt_share
            count += n + (use.usual > 0)
        before = (1.0 - 1.0 / MEMORY) ** self._ended if self._inherited < 1.0 else 0.0
        if not reserved or not count:
            return Expected(1.0, 0.0, 0.0, 0.0, self._inherited, before)
        means = filled / reserved, spread / reserved, prompts / reserved, reserved / count
        return Expected(*means, self._inherited, before)


@dataclass(frozen=True, slots=True)
class Expected:
    """The share of their reservation that a pool's requests are expected to hold, and its variance. ``prompts``: the
    share of prompts alone, as far as it is known; ``usual``: the mean reservation [tokens], 0 without requests;
    ``inherited``: the share that the former leader expected, which still counts for ``before`` (0 to 1)."""

    share: float
    variance: float
    prompts: float
    usual: float
    inherited: float
    before: float

    def overcommit(self, kv_tokens: int, most: float = MAX_OVERCOMMIT, sharing: float = 1.0) -> float:
        """How many times its cache a replica of ``kv_tokens`` may be reserved, 1 to ``most``. ``sharing``: the part of
        its prompts' tokens that its engine holds, 0 to 1."""
        if kv_tokens <= 0:
            return 1.0
        fit = max(1.0, kv_tokens / (self.usual * self.share)) if self.usual * self.share else 1.0
        share = min(1.0, self.share + math.sqrt(self.variance / fit)) - self.prompts * (1.0 - sharing)
        share = self.before * self.inherited + (1.0 - self.before) * share
        return max(1.0, math.floor(min(most, TARGET / max(share, TARGET / MAX_OVERCOMMIT)) / STEP) * STEP)


_UNKNOWN = _Use()


@dataclass(slots=True)
class KvPressure:
    """Corrects the overcommit of one replica by what its engine shows. Fed about once a second.

    A cache that is in use up to :data:`FULL` without a preemption is where it should be, so little is taken back; a
    preempted request is computed again, so half is. What is not reserved says nothing about what more would fill:
    the part exceeds 1 only while the offer binds, and goes back to 1 when it no longer does.
    """

    part: float = 1.0  # of what is expected to fit beyond the cache
    binds: bool = False  # whether one more usual request would exceed what is offered
    usual: float = 0.0  # share of the cache that it is expected to hold
    _known: bool = False
    _less_s: float = -math.inf  # when the part last fell
    _more_s: float = -math.inf  # and rose
    _full_s: float = -math.inf  # when the cache was last seen full, or a preemption
    _preemptions: float | None = None

    def seen(self, now_s: float, usage: float | None, preemptions: float | None) -> None:
        """``usage``: share of the KV cache in use; None: the engine does not say, so nothing is overcommitted.
        ``preemptions``: since the engine started; None: it does not say. ``now_s``: a monotonic clock [s]."""
        before = self._preemptions
        preempted = before is not None and preemptions is not None and preemptions > before
        self._preemptions, self._known = preemptions, usage is not None
        if usage is None:
            return
        if preempted or usage >= FULL:
            self._full_s = now_s
            if now_s - self._less_s >= PAUSE_S:  # before that, what runs has not ended yet
                part = self.part * (HALF if preempted else STEP_BACK)
                self.part = part if part >= LEAST_PART else 0.0
                self._less_s = now_s
        elif self._calm(usage) and now_s - max(self._full_s, self._more_s) >= PAUSE_S:
            more = self.binds and self._fits(usage)
            most = max(1.0, self.part + BACK if more else self.part - BACK)
            self.part = min(MOST_PART, most, self.part + BACK)
            self._more_s = now_s

    def _fits(self, usage: float) -> bool:
        """Whether another usual request would."""
        return usage < FULL - self.usual

    def _calm(self, usage: float) -> bool:
        """Whether more is offered. A cache may be smaller than what is usual in its pool; as much as is expected to fit
        returns there as well."""
        return usage < CALM and (self._fits(usage) or (usage < ROOMY and self.part < 1.0))

    def inherit(self, part: float = 1.0) -> None:
        """The former leader was told how full the cache is: overcommit goes on until the engine is asked. ``part``: of
        what the pool inherits (:func:`scheduling.core.capacity.kv_room.inherited`)."""
        self._known, self.part = True, part

    def offered(self, kv_tokens: int, overcommit: float, most: float = MAX_OVERCOMMIT, pace: float = 1.0) -> int:
        """KV tokens that the replica offers, with ``kv_tokens`` in its cache; at most ``most`` times these. ``pace``:
        how much of what goes beyond the expected its steps allow, 0 to 1
        (:attr:`scheduling.core.capacity.kv_sharing.KvSharing.pace`).
        """
        if not self._known:
            return kv_tokens
        part = min(1.0, self.part) + max(0.0, self.part - 1.0) * pace
        return int(kv_tokens * min(most, 1.0 + (overcommit - 1.0) * part))
