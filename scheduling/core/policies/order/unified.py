"""The default: what can be in time, by class band, then deadline slack, then cost, then debt.

Question: which waiting request goes next, in a pool that nobody has tuned?
Formula: in this order of precedence:

1. *In time or not* (``queues/relegated.py``, ``queues/bands.py``): timely reserved, timely elastic, late reserved, late
   elastic, then spot and preemptible, which have the surplus only, each with its own late ones behind. Timely reserved
   ones go with the elastic while they have time left (``queues/pressing.py``). Whatever is reserved for an owner it has
   either way: the scheduler gives an owner within its share a turn before all others, where slots are short or its
   request is pressing (``core/scheduler/late_owners.py``: how far with late ones).
2. *Deadline and work* within a band: the smallest ``P = deadline + alpha * work left`` [s] (QoServe eq. 4 and 5).
   ``alpha`` is in proportion to what a prompt token takes: ``alpha_ms`` where a replica prefills 8,500 a second, and
   ``alpha_low_ms`` until the waiting prompts of classes with a baseline would take the pool ``busy_s`` at the rate at
   which they leave. A request without an SLO counts as due ``patience_s`` after its arrival.
3. *Cost* among those without an SLO: ``floor(ln G + rank * ln tier_ratio)``, then ``G``, the mean cost that is left,
   ``E[X - age | X > age]`` of ``X = O^2/2 + I*O`` [token steps of KV]. Costs within a factor of e count as equal, and a
   rank is worth ``tier_ratio`` times the cost. The mean, because what runs here runs to its end. With ``preempts`` = 1,
   inside an engine that takes running requests out for better ones, ``G`` is the Gittins index of what is left of
   ``X = O^2/2 + I*(O + 300)``.
4. *Standing* (``queues/standing.py``): what an entitlement is owed, and what it had of its class, moves its requests by
   ``ln f`` grades of cost, or by ``debt_s`` seconds of deadline for each of them (fewer where some in the band are
   promised less than others). In spot and preemptible, where
   nothing is promised, entitlements take turns by what they had (``queues/fair.py``), and this orders the requests of
   each.
5. *Long waits* (``queues/overdue.py``): at the latest every ``every``-th turn goes to the request that has waited
   longest, once that is more than ``patience_s`` past its deadline.

Inputs: service class, deadlines, prompt tokens, output-length distribution or expected output, tokens generated, tier
rank, standings. Each may be missing: without SLOs this is mean cost (with ``preempts`` SageSched with a cost for
prefill), without standings nobody is owed anything, with nothing at all it is fifo.
Cost: O(log n) per decision and O(m) for a distribution of m values when pushed; O(entitlements) when standings change;
O(n log n) when alpha does.
Who starves: nobody: a request that is overdue waits for at most 2 * ``every`` turns for each one that was asked for
earlier.
Source: QoServe 3.4 and 3.6; SageSched 3.2-3.3; EWSJF 4.1 (similar lengths together, nobody starves); DriftSched
(tiers); token pools eq. 1-3. Ours: the cost of prefill. A prompt token keeps the whole engine busy for ``a`` seconds,
in which a full cache of K tokens could have made ``a/step * K`` token steps; that is 100 to 600 for the presets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import floor, inf, log

from scheduling.core.deadline import PACE_S, due_by_deadline_s, ordering_deadline_s, prefill_due_s
from scheduling.core.policies.contracts import Key, Maker, RequestQueue
from scheduling.core.policies.gittins_index import CostDistribution, cost_of, service_cost
from scheduling.core.policies.order.hybrid import Hybrid, work_left
from scheduling.core.policies.parameters import NO_UNIT, above, at_least, one_of, parameter
from scheduling.core.policies.queues.bands import BAND_OF, BANDS, BandQueue
from scheduling.core.policies.queues.fair import Fair
from scheduling.core.policies.queues.keyed import LOOK_PAST
from scheduling.core.policies.queues.leaving import LeavingRate
from scheduling.core.policies.queues.overdue import OverdueTurns
from scheduling.core.policies.queues.paired import PairedQueue
from scheduling.core.policies.queues.pressing import PressingQueue
from scheduling.core.policies.queues.relegated import Relegate
from scheduling.core.policies.queues.standing import StandingQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.policies.rounds import CountingRound, Round
from scheduling.core.types import PREFILL_PER_S, QueuedRequest, ServiceClass

PREFILL_STEPS = 300.0  # token steps of KV that one prompt token's prefill is worth
MAX_MISSES = 2 * LOOK_PAST  # requests without room that one round looks past
SURPLUS = BAND_OF[ServiceClass.SPOT]  # the first band without a baseline
ACROSS, WITHIN = 1, 2  # how requests that cannot be in time give way
BUCKET_TOKENS = 100  # a preempted request is ranked again each time it has generated this many more


@ordering("unified")
@dataclass(frozen=True, slots=True)
class Unified:
    """Requests with an SLO by deadline, the others by cost; class, debt and share count, and long waits get turns."""

    alpha_ms: float = parameter(
        2.0,
        "How much later a request with an SLO is put for each token of work left under load, at 8,500 prompt tokens/s"
        " of a replica; less where it is faster.",
        "ms/token",
        at_least(0),
    )
    alpha_low_ms: float = parameter(
        0.25,
        "The same while little waits; where it is more than alpha_ms, load has no effect.",
        "ms/token",
        at_least(0),
    )
    busy_s: float = parameter(
        8.0,
        "How long the waiting prompts of classes with a baseline would take the pool from which on it counts as loaded,"
        " until they would take half of that.",
        "s",
        above(0),
    )
    tier_ratio: float = parameter(
        3.0, "How many times the cost a better tier's request may have and still go first.", NO_UNIT, at_least(1)
    )
    debt_s: float = parameter(
        5.0,
        "How much earlier or later the deadlines of an entitlement count for each e-fold of its standing: debt, burst"
        " and share.",
        "s",
        at_least(0),
    )
    patience_s: float = parameter(
        600.0, "How long after its deadline a request is overdue and gets turns out of order.", "s", above(0)
    )
    every: int = parameter(  # with 1 every turn would go to the oldest
        32, "One turn in so many goes to the request that has been overdue longest.", "turns", at_least(2)
    )
    relegate: int = parameter(
        1,
        "How requests that cannot be in time give way: 0 not at all, 1 to all of classes with a baseline that can,"
        " 2 within their class only.",
        NO_UNIT,
        one_of(0, ACROSS, WITHIN),
    )
    preempts: int = parameter(
        0, "Whether the engine interrupts running requests for better ones: 0 no, 1 yes.", NO_UNIT, one_of(0, 1)
    )
    pace_s: float = parameter(
        PACE_S,
        "Time that an output token is expected to take where only the last one has a deadline, until it is measured.",
        "s/token",
        at_least(0),
    )

    @property
    def weighs_bursts(self) -> bool:
        """Who bursts goes later by its standing."""
        return self.debt_s > 0

    @property
    def relegates_owners(self) -> bool:
        """Late requests of an owner give way as others' do."""
        return self.relegate == ACROSS

    def queue(self) -> RequestQueue:
        look = _Look(self)
        promises = partial(_Promises, self, look)  # no closure: a copy of the queue makes lanes that have its own look
        surplus = Fair().around(promises, MAX_MISSES)
        if self.relegate:
            late = Relegate(pace_s=self.pace_s)
            bands = partial(_across, due_s=look.due_s) if self.relegate == ACROSS else _within
            queue = bands(partial(late.around, due_s=look.due_s), promises, surplus)
        else:
            queue = _bands(promises, surplus)
        return OverdueTurns(queue, self.patience_s, self.every)

    def urgency(self, request: QueuedRequest) -> Key:
        """When a request with an SLO should have been served [s] under load, before anything is measured."""
        return (Hybrid.priority(request, self.alpha_ms, self.pace_s),)

    def due_s(self, request: QueuedRequest) -> float:
        """Urgency; without an SLO the least work that arrived first is due first, and nothing is put off for ever."""
        return due_by_deadline_s(request, self.pace_s, self.alpha_ms / 1e3 * work_left(request))

    def price(self, request: QueuedRequest) -> Key:
        """Grade and cost [token steps] of a request without an SLO."""
        cost = index_left(request) if self.preempts else mean_left(request)
        return (float(floor(log(max(1.0, cost)) + request.rank * log(self.tier_ratio))), cost)

    def describe_price(self, request: QueuedRequest) -> str:
        grade, cost = self.price(request)
        return f"cost {cost:.3g} token steps, rank {request.rank}: grade {grade:.0f}"


def mean_left(request: QueuedRequest) -> float:
    """The mean cost of what is left of a request [token steps of KV]; of one that outlived every length that was
    thought possible, as much as it has had."""
    age = service_cost(request.input_tokens, request.generated)
    return cost_of(request).mean_remaining(age) or age


def index_left(request: QueuedRequest) -> float:
    """The Gittins index of what is left of a request [token steps of KV], its prefill included.

    One that outlived every length that was thought possible is expected to go on for as much as it has had.
    """
    prompt = request.input_tokens
    generated = request.generated // BUCKET_TOKENS * BUCKET_TOKENS
    prefilled = prompt if request.generated else request.prefilled
    lengths, probabilities = request.output_lengths, request.output_probabilities
    if not lengths:
        lengths, probabilities = (max(1.0, request.output_tokens),), (1.0,)
    return _index(lengths, probabilities, prompt, prefilled, generated)


@lru_cache(maxsize=8192)  # an engine that preempts pushes the same running requests again and again
def _index(
    lengths: tuple[float, ...], probabilities: tuple[float, ...], prompt: int, prefilled: int, generated: int
) -> float:
    costs = tuple(service_cost(prompt, length) + PREFILL_STEPS * prompt for length in lengths)
    age = service_cost(prompt, generated) + PREFILL_STEPS * prefilled
    index = CostDistribution(costs, probabilities).index(age)
    return age if index == inf else index


def _promised_s(request: QueuedRequest) -> float:
    """After its arrival, to the millisecond: the same for all of a tier."""
    return round(ordering_deadline_s(request) - request.arrival_s, 3)


def _bands(owners: Maker, surplus: Maker) -> BandQueue:
    """Each band by itself."""
    return BandQueue(tuple((owners if n < SURPLUS else surplus)(f"{band}/") for n, band in enumerate(BANDS)))


def _within(late: Callable[[Maker], Maker], owners: Maker, surplus: Maker) -> BandQueue:
    """Bands that relegate each by itself."""
    return _bands(late(owners), late(surplus))


def _across(
    late: Callable[[Maker], Maker], owners: Maker, surplus: Maker, due_s: Callable[[QueuedRequest], float]
) -> BandQueue:
    """Bands: those with a baseline relegate together, each of the surplus by itself."""

    def together(group: str) -> RequestQueue:
        pressing, others = (owners(f"{group}{band}/") for band in BANDS[:SURPLUS])
        return PressingQueue(pressing, others, due_s)

    parts = (late(together)(""), *(late(surplus)(f"{band}/") for band in BANDS[SURPLUS:]))
    return BandQueue(parts, ("", *BANDS[SURPLUS:]), {c: max(0, band - SURPLUS + 1) for c, band in BAND_OF.items()})


class _Look:
    """What all bands share: how much a round has looked past, which bounds it when many large requests wait for KV
    cache, how fast the pool is, and how much waits in it."""

    def __init__(self, policy: Unified) -> None:
        self._policy = policy
        self._round: Round | None = None
        self._counting: CountingRound | None = None
        self._slower, self._pace_s = 1.0, policy.pace_s
        self._rate = LeavingRate()
        self._waiting: dict[str, int] = {}  # prompt tokens by request, of classes with a baseline
        self._backlog = 0  # their sum
        self._last = ""  # the one that was taken last
        self.busy = False

    def counting(self, round_: Round, now_s: float) -> CountingRound:
        """What all bands are asked in for this round."""
        counting = self._counting
        if counting is None or round_ is not self._round:
            self._round = round_
            counting = self._counting = round_.counting_misses()
            speed = round_.view.prefill_per_s(PREFILL_PER_S)
            self._slower = PREFILL_PER_S / speed
            self._pace_s = round_.view.token_s or self._policy.pace_s
            self._rate.look(round_.view, now_s, speed)
            limit_s = self._policy.busy_s * (0.5 if self.busy else 1.0)
            self.busy = self._backlog > limit_s * max(1.0, self._rate.per_s)
        return counting

    def came(self, request: QueuedRequest) -> None:
        if BAND_OF[request.service_class] >= SURPLUS:
            return
        tokens = request.input_tokens - request.prefilled
        if request.prefilled or request.id == self._last:
            self._rate.selected(-tokens, pending=True)  # what of it was not served has not left
            self._last = ""
        self._waiting[request.id] = tokens
        self._backlog += tokens

    def left(self, request_id: str) -> None:
        self._backlog -= self._waiting.pop(request_id, 0)

    def taken(self, request: QueuedRequest | None) -> None:
        """By a round; None: it took nothing."""
        tokens = 0
        if request is not None and request.id in self._waiting:
            tokens, self._last = self._waiting[request.id], request.id
            self.left(request.id)
        self._rate.selected(tokens, pending=bool(self._waiting))

    def urgency(self, request: QueuedRequest) -> Key:
        """:meth:`Unified.urgency` by what is measured."""
        return (Hybrid.priority(request, self._alpha_ms(busy=True), self._pace_s),)

    def low_urgency(self, request: QueuedRequest) -> Key:
        """The same while little waits."""
        return (Hybrid.priority(request, self._alpha_ms(busy=False), self._pace_s),)

    def due_s(self, request: QueuedRequest) -> float:
        """When its prefill has to be done [s]: order and relegation go by this one time."""
        return prefill_due_s(request, self._pace_s)

    def describe_urgency(self, request: QueuedRequest) -> str:
        return self._describe(request, busy=True)

    def describe_low_urgency(self, request: QueuedRequest) -> str:
        return self._describe(request, busy=False)

    def _describe(self, request: QueuedRequest, busy: bool) -> str:
        deadline = prefill_due_s(request, self._pace_s) - request.arrival_s
        work = self._alpha_ms(busy) / 1e3 * work_left(request)
        return f"due {deadline + work:.2f} s after arrival: deadline {deadline:.2f} + work {work:.2f}"

    def _alpha_ms(self, busy: bool) -> float:
        most = self._policy.alpha_ms
        return self._slower * (most if busy else min(most, self._policy.alpha_low_ms))


class _Promises:
    """One band: requests with an SLO by urgency, the others by cost."""

    def __init__(self, policy: Unified, look: _Look, _group: str) -> None:
        self._look = look
        self._patience_s = policy.patience_s
        self._timed = PairedQueue(
            StandingQueue(look.low_urgency, look.describe_low_urgency, policy.debt_s, _promised_s),
            StandingQueue(look.urgency, look.describe_urgency, policy.debt_s, _promised_s),
        )
        self._free = StandingQueue(policy.price, policy.describe_price, unit=1.0)

    def __len__(self) -> int:
        return len(self._timed) + len(self._free)

    def __iter__(self) -> Iterator[QueuedRequest]:
        yield from self._timed
        yield from self._free

    def explain(self, request: QueuedRequest) -> str:
        return self._place(request).explain(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        self._place(request).push(request, now_s)
        self._look.came(request)

    def discard(self, request_id: str) -> bool:
        if not (self._timed.discard(request_id) or self._free.discard(request_id)):
            return False
        self._look.left(request_id)
        return True

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        chosen = self._select(self._look.counting(round_, now_s), now_s)
        self._look.taken(chosen)
        return chosen

    def _select(self, counting: CountingRound, now_s: float) -> QueuedRequest | None:
        self._timed.turn(self._look.busy)
        while counting.misses < MAX_MISSES:
            place = self._next(counting)
            if place is None:
                return None
            # Asking the other queue may have made the scheduler keep room, so that nothing here fits any more.
            if (request := place.select(counting, now_s)) is not None:
                return request
        return None

    def _next(self, round_: Round) -> PairedQueue[StandingQueue] | StandingQueue | None:
        """The queue whose first request goes: the one that is due earlier."""
        timed = self._timed.peek(round_) if len(self._timed) else None
        free = self._free.peek(round_) if len(self._free) else None
        if timed is None or free is None:
            return self._free if timed is None and free is not None else self._timed if timed is not None else None
        due_s = (self._look.urgency if self._look.busy else self._look.low_urgency)(timed)[0]
        return self._timed if due_s <= free.arrival_s + self._patience_s else self._free

    def _place(self, request: QueuedRequest) -> PairedQueue[StandingQueue] | StandingQueue:
        promised = request.ttft_deadline_s is not None or request.ttlt_deadline_s is not None
        return self._timed if promised else self._free
