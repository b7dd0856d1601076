"""Fair shares of what is served, in tokens: a virtual token counter for every entitlement.

Question: whose turn is it?
Formula: ``c_e += (input_weight * input + output_weight * output) / weight`` when a request of ``e`` is granted, with
the estimate, and corrected when what it used is known; the smallest ``c`` of those that wait and may run goes next,
and within an entitlement the policy. Who begins to wait is lifted to ``min c`` of those that wait already, or where
nobody does to ``c`` of the one that waited last: time without demand is no credit. An entitlement that runs as many as
it may does not count as waiting, and is lifted likewise when it may run again. What was granted elsewhere (on arrival,
or by hand-outs while nobody led) counts as if it had waited for no time: while it runs by the mean of what its
entitlement's requests used, at its end by what it used.
Inputs: input tokens and expected output tokens; the tier's weight.
Cost: O(log entitlements) on top of the policy's, which sees one entitlement at a time.
Who starves: nobody. Between two entitlements that wait all the time, service per weight differs by at most twice the
largest request per weight, whatever either sends.
Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), algorithm 2, with weights 1 and 2; here a
whole request is charged at once, as a grant cannot be taken back token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from scheduling.core.policies.contracts import Maker, RequestQueue, Served, Shares, counts_service
from scheduling.core.policies.parameters import NO_UNIT, at_least, parameter
from scheduling.core.policies.queues.keyed import LOOK_PAST
from scheduling.core.policies.queues.least import Least
from scheduling.core.policies.registry import modifier
from scheduling.core.policies.rounds import CountingRound, Round
from scheduling.core.types import QueuedRequest, ServiceClass

CHARGES_KEPT = 32_768  # granted requests whose charge can still be corrected
SPARE_COUNTERS = 1024  # counters of idle entitlements that are kept in any case
MEAN_SHARE = 0.1  # of the newest request in the mean of what requests used
MISSES = 4 * LOOK_PAST  # requests without room that one round looks past, over all entitlements


@modifier("fair")
@dataclass(frozen=True, slots=True)
class Fair:
    """Tokens served, in proportion to weights."""

    layer: ClassVar[int] = 2
    weighs_bursts: ClassVar[bool] = True

    input_weight: float = parameter(1.0, "What an input token counts in an entitlement's share.", NO_UNIT, at_least(0))
    output_weight: float = parameter(
        2.0, "What an output token counts in an entitlement's share.", NO_UNIT, at_least(0)
    )

    def __post_init__(self) -> None:
        if self.input_weight + self.output_weight == 0:
            raise ValueError("input_weight or output_weight must be above 0")

    def around(self, make: Maker, misses: int = MISSES) -> Maker:
        """``misses``: of an order that bounds what one round looks past over all its queues. Asked further, each of
        thousands of lanes would say that it has nothing."""
        groups: dict[str, Counters] = {}

        def make_queue(group: str) -> RequestQueue:
            return FairQueue(groups.setdefault(group, Counters(self, group)), make, group, misses)

        return make_queue

    def tokens(self, input_tokens: float, output_tokens: float) -> float:
        """What was served, in input tokens."""
        return self.input_weight * input_tokens + self.output_weight * output_tokens


@dataclass(frozen=True, slots=True)
class _Charge:
    entitlement: str
    amount: float  # tokens / weight
    weight: float
    at_s: float
    sequences: int


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """What runs of one entitlement and was not granted here, in sequences, and what it is charged until it ends."""

    count: int = 0
    amount: float = 0.0  # tokens / weight


_NONE = _Elsewhere()


class Counters:
    """Virtual token counters of entitlements that compete with each other. Several queues may share them: a request
    that is moved from one to another stays in the same competition. A
    :class:`scheduling.core.policies.contracts.Shares`."""

    def __init__(self, policy: Fair, group: str = "") -> None:
        self.group = group
        self._policy = policy
        self._value: dict[str, float] = {}
        self._waiting: dict[str, int] = {}  # requests by entitlement, over all queues
        self._active = Least()  # those that wait and may run
        self._last = ""  # who was active last
        self._charges: OrderedDict[str, _Charge] = OrderedDict()
        self._granted: dict[str, int] = {}  # sequences that are charged, by entitlement
        self._elsewhere: dict[str, _Elsewhere] = {}
        self._mean: dict[str, float] = {"": 0.0}  # tokens of one sequence, by entitlement; "": over all
        self._mirrors: list[Least] = []
        self._crowd = SPARE_COUNTERS  # so many counters are looked through for idle ones
        self._resumed: float | None = None  # the floor until something is served

    def mirror_in(self, names: Least) -> None:
        """Keeps the values in ``names`` up to date."""
        self._mirrors.append(names)

    def __getitem__(self, entitlement: str) -> float:
        """Tokens served per weight."""
        return self._value[entitlement]

    def arrive(self, request: QueuedRequest, now_s: float) -> None:
        """One more of its requests waits. A grant that is taken back at once leaves no trace."""
        name = request.entitlement
        charge = self._take_charge(request.id)
        if charge is not None:
            self._add(charge.entitlement, -charge.amount)
        count = self._waiting.get(name, 0)
        self._waiting[name] = count + 1
        if count == 0:
            self._activate(name, lift=charge is None or now_s > charge.at_s)

    def leave(self, name: str) -> None:
        """One of its requests waits no longer."""
        self._waiting[name] -= 1
        if self._waiting[name] == 0:
            del self._waiting[name]
            self.rest(name)
            self._forget_idle()

    def rest(self, name: str) -> None:
        """It runs as much as it may."""
        if name in self._active:
            self._active.drop(name)
            self._last = name

    def wake(self, name: str) -> None:
        """It may run again."""
        if name in self._waiting and name not in self._active:
            self._activate(name, lift=True)

    def charge(self, request: QueuedRequest, now_s: float) -> None:
        """It was granted."""
        weight = max(request.weight, 1e-9)
        amount = self._policy.tokens(request.input_tokens, request.output_tokens) / weight
        self._charges[request.id] = _Charge(request.entitlement, amount, weight, now_s, request.sequences)
        self._granted[request.entitlement] = self._granted.get(request.entitlement, 0) + request.sequences
        if len(self._charges) > CHARGES_KEPT:
            self._take_charge(next(iter(self._charges)))
        self._resumed = None
        self._add(request.entitlement, amount)

    def charged(self, request_id: str) -> str:
        """The entitlement that was charged for it; "": none is."""
        charge = self._charges.get(request_id)
        return "" if charge is None else charge.entitlement

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        """Replaces a request's charge with what it used; False where it was not charged here."""
        charge = self._take_charge(request_id)
        if charge is None:
            return False
        used = self._policy.tokens(input_tokens, output_tokens) / charge.weight
        self._add(charge.entitlement, used - charge.amount)
        return True

    def serve(self, served: Served) -> None:
        """A request ended that was granted elsewhere: it is charged what it used."""
        self._resumed = None
        name, used = served.entitlement, self._policy.tokens(served.input_tokens, served.output_tokens)
        each = used / served.sequences
        for key in (name, ""):
            mean = self._mean.get(key, 0.0)
            self._mean[key] = mean + MEAN_SHARE * (each - mean) if mean else each
        charged = 0.0
        if (runs := self._elsewhere.get(name)) is None:
            self._lift([name])
        else:
            ended = min(served.sequences, runs.count)
            charged = runs.amount * ended / runs.count
            self._set_elsewhere(name, runs.count - ended, runs.amount - charged)
        self._add(name, used / max(served.weight, 1e-9) - charged)
        self._forget_idle()

    def watch(self, running: Mapping[str, tuple[int, float]]) -> None:
        """Charges the mean for each running sequence that was not granted here, until it ends."""
        elsewhere = {name: (max(0, n - self._granted.get(name, 0)), weight) for name, (n, weight) in running.items()}
        elsewhere = dict.fromkeys(self._elsewhere, (0, 1.0)) | elsewhere
        self._lift([name for name, (n, _) in elsewhere.items() if n > self._elsewhere.get(name, _NONE).count])
        for name, (n, weight) in elsewhere.items():
            amount = n * (self._mean.get(name) or self._mean[""]) / max(weight, 1e-9)
            if change := amount - self._elsewhere.get(name, _NONE).amount:
                self._add(name, change)
            self._set_elsewhere(name, n, amount)
        self._forget_idle()

    def kept(self) -> dict[str, float]:
        """The counters without the charges of running requests, which the next leader charges anew. Under "": the
        lowest counter of the active entitlements, or that of the last one that was active."""
        values = dict(self._value)
        charged = [(c.entitlement, c.amount) for c in self._charges.values()]
        for name, amount in chain(charged, ((name, runs.amount) for name, runs in self._elsewhere.items())):
            if name in values:
                values[name] -= amount
        active = [values[name] for name in self._value if name in self._active]
        values[""] = min(active, default=values.get(self._last, 0.0))
        return values

    def resume(self, kept: Mapping[str, float]) -> None:
        """Goes on from saved counters. Until something is served, every waiting entitlement is lifted to the counter
        saved under "", so that those that waited before take turns and none is put last."""
        self._value = dict(kept)
        self._resumed = kept.get("", 0.0)
        self._crowd = max(self._crowd, 2 * len(kept))

    def _take_charge(self, request_id: str) -> _Charge | None:
        charge = self._charges.pop(request_id, None)
        if charge is not None:
            left = self._granted[charge.entitlement] - charge.sequences
            if left:
                self._granted[charge.entitlement] = left
            else:
                del self._granted[charge.entitlement]
        return charge

    def _set_elsewhere(self, name: str, count: int, amount: float) -> None:
        if count:
            self._elsewhere[name] = _Elsewhere(count, amount)
        else:
            self._elsewhere.pop(name, None)

    def _lift(self, names: list[str]) -> None:
        """They have got something elsewhere: as if they had waited, all of them for the same moment."""
        floor = self._value.get(self._active.first() or self._last, 0.0)
        names = [name for name in names if name not in self._active]
        for name in names:
            self._set(name, max(self._value.get(name, 0.0), floor))
        if names:
            self._last = min(names, key=lambda name: (self._value[name], name))

    def _activate(self, name: str, *, lift: bool) -> None:
        value = self._value.get(name, 0.0)
        if lift:
            floor = self._resumed
            if floor is None:
                floor = self._value.get(self._active.first() or self._last, 0.0)
            value = max(value, floor)
        self._active.put(name, value)
        self._set(name, value)

    def _add(self, name: str, amount: float) -> None:
        self._set(name, self._value.get(name, 0.0) + amount)

    def _set(self, name: str, value: float) -> None:
        self._value[name] = value
        for names in (self._active, *self._mirrors):
            if name in names:
                names.put(name, value)

    def _forget_idle(self) -> None:
        """Drops counters that would be lifted anyway when their entitlements come back."""
        if len(self._value) > self._crowd:
            last = self._value.get(self._last, 0.0)
            floor = self._value.get(self._active.first() or self._last, 0.0)
            self._value = {
                name: v
                for name, v in self._value.items()
                if name in self._waiting or name in self._elsewhere or v > floor
            }
            self._value[self._last] = last
            self._mean = {name: mean for name, mean in self._mean.items() if name in self._value or not name}
            self._crowd = 2 * len(self._value) + SPARE_COUNTERS


class _Lane:
    """What waits of one entitlement."""

    __slots__ = ("concurrency", "queue")

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.concurrency = 0


class FairQueue:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` of one queue per entitlement."""

    def __init__(self, counters: Counters, make: Maker, group: str, misses: int) -> None:
        self._counters = counters
        self._make = make
        self._group = group
        self._misses = misses
        self._lanes: dict[str, _Lane] = {}
        self._home: dict[str, str] = {}  # request id -> entitlement
        self._able = Least()  # lanes that may have something for this round
        counters.mirror_in(self._able)
        self._kept_out: dict[str, int] = {}  # lanes at their limit, or without a turn; with their concurrency
        self._aside: list[str] = []  # lanes that had nothing with room in this round
        self._round: Round | None = None  # it was asked in last
        self._counting: CountingRound | None = None  # and what its lanes are asked in
        self._last: tuple[str, float, RequestQueue] | None = None  # selected last, its counter then, and out of what

    def __len__(self) -> int:
        return len(self._home)

    def __iter__(self) -> Iterator[QueuedRequest]:
        for lane in self._lanes.values():
            yield from lane.queue

    def explain(self, request: QueuedRequest) -> str:
        if self._last is not None and self._last[0] == request.id:
            _, served, queue = self._last
        else:
            served, queue = self._counters[request.entitlement], self._lanes[request.entitlement].queue
        return f"served {served:,.0f} per weight, {queue.explain(request)}"

    def push(self, request: QueuedRequest, now_s: float) -> None:
        name = request.entitlement
        home = self._home.get(request.id)
        if home is not None and home != name:
            self.discard(request.id)
            home = None
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(self._make(self._group))
        lane.concurrency = request.concurrency
        lane.queue.push(request, now_s)
        if home is None:
            self._home[request.id] = name
            self._counters.arrive(request, now_s)
        if name in self._kept_out:
            self._kept_out[name] = request.concurrency
        else:
            self._able.put(name, self._counters[name])

    def discard(self, request_id: str) -> bool:
        name = self._home.get(request_id)
        if name is None:
            return False
        self._lanes[name].queue.discard(request_id)
        self._took(request_id, name)
        return True

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        counting = self._counting
        if counting is None or round_ is not self._round:
            counting = self._begin(round_)
        while (name := self._able.first()) is not None:
            lane = self._lanes[name]
            if round_.keeps_out(name, lane.concurrency):
                self._able.drop(name)
                self._kept_out[name] = lane.concurrency
                if round_.has_turn(name):
                    self._counters.rest(name)
                continue
            if counting.misses >= self._misses:
                return None
            request = lane.queue.select(counting, now_s)
            if request is None:
                self._able.drop(name)
                self._aside.append(name)
                continue
            self._last = (request.id, self._counters[name], lane.queue)
            self._took(request.id, name)
            self._counters.charge(request, now_s)
            return request
        return None

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        lane = self._lanes.get(self._counters.charged(request_id))
        if lane is not None and counts_service(lane.queue):  # an order that takes turns itself
            lane.queue.settle(request_id, input_tokens, output_tokens)
        return self._counters.settle(request_id, input_tokens, output_tokens)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        yield self._counters

    def _begin(self, round_: Round) -> CountingRound:
        """What had no room in the last round may have it now."""
        self._round, self._counting = round_, round_.counting_misses()
        for name in self._aside:
            if name in self._lanes and name not in self._kept_out:
                self._able.put(name, self._counters[name])
        self._aside.clear()
        for name in round_.lets_in(self._kept_out):
            concurrency = self._kept_out.pop(name)
            if not round_.bursts(name, concurrency):  # bursting entitles to no more than before
                self._counters.wake(name)
            self._able.put(name, self._counters[name])
        return self._counting

    def _took(self, request_id: str, name: str) -> None:
        """A request is no longer in its lane; an empty lane is not kept."""
        del self._home[request_id]
        if not len(self._lanes[name].queue):
            del self._lanes[name]
            self._able.drop(name)
            self._kept_out.pop(name, None)
        self._counters.leave(name)
