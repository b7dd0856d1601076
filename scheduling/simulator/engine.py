"""What every engine model has in common: its settings, a request's life in it, and how it is driven.

An engine is a state machine. :meth:`Engine.stretch` does one step, or one jump over steps in which nothing is decided,
and moves the engine's own clock; :meth:`Engine.offer` hands it a request that arrives. ``run`` drives one engine alone
to the end; :mod:`scheduling.simulator.cluster` drives several, and clients that wait for answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from scheduling.core.engine.step_time import StepTime
from scheduling.core.inside_engine.step import progressed
from scheduling.core.policies.contracts import Contest, CountsService, OrderingPolicy, RequestQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PoolView, QueuedRequest
from scheduling.simulator.kernel import FS, NEVER
from scheduling.simulator.workload import SimRequest

MODES = ("continuous", "ranked", "whole_batch", "padded_batch", "slots")
WAITING, PREFILL, DECODE, DONE = range(4)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine and its scheduler. ``truth`` is how long steps take, ``planner`` what the scheduler believes of that.

    Raises ValueError that names the setting.
    """

    truth: StepTime
    planner: StepTime | None = None  # None: it knows the truth
    mode: str = "continuous"
    token_budget: int = 256  # tokens per step, decodes included
    max_seqs: int = 256  # sequences at once; the size of a batch, the number of slots
    kv_tokens: int = 0  # KV cache; 0: not limited
    block: int = 16  # tokens per KV block
    watermark: float = 0.01  # share of the blocks that no new sequence may take
    # What a full cache preempts: "tail" the last admitted, "priority" the worst rank first, "policy" the last by
    # the policy, of what is left of it
    victims: str = "tail"
    preempt_prefills: bool = False  # an arrival that goes first interrupts a prefill between two chunks
    selective: bool = False  # ... only where its own deadline holds; so it is wherever ``relegate`` is on
    dynamic_chunks: bool = False
    max_chunk: int = 2500
    min_chunk: int = 128
    margin: float = 1.2
    ttlt_pace_s: float = 0.4  # pace per token that a request with only a TTLT target is held to (QoServe's artifact)
    relegate: bool = False
    first_rate: float = 8500.0  # prefill tokens/s believed before the first step
    bucket_tokens: int = 200  # ranked: a running sequence is ranked again each time it has generated this many more
    jumps: bool = True  # False: every step by itself; the outcome is the same

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        if self.victims not in ("tail", "priority", "policy"):
            raise ValueError(f"victims is 'tail', 'priority' or 'policy', not {self.victims!r}")
        for name in ("token_budget", "max_seqs", "block", "max_chunk", "min_chunk", "bucket_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.min_chunk > self.max_chunk:
            raise ValueError("min_chunk must not be above max_chunk")
        if self.kv_tokens < 0 or not 0 <= self.watermark < 1:
            raise ValueError("kv_tokens must be at least 0 and watermark in [0, 1)")


class Estimator(Protocol):
    """Beliefs that are formed at arrival and learn from what has ended."""

    def estimate(self, request: SimRequest) -> QueuedRequest:
        """What policies are told of a request that arrives now."""

    def observe(self, request: SimRequest) -> None:
        """A request has ended: its true length may be learned from."""


class Sequence:
    """A request's life in one engine. Times are femtoseconds, -1 while they have not come."""

    __slots__ = (
        "context",
        "end_fs",
        "finish_step",
        "first_fs",
        "generated",
        "joined_step",
        "order",
        "prefilled",
        "prompt",
        "queued",
        "recomputed",
        "relegated",
        "replica",
        "sim",
        "start_fs",
        "state",
    )

    def __init__(self, sim: SimRequest, queued: QueuedRequest) -> None:
        self.sim = sim
        self.queued = queued
        self.state = WAITING
        self.prompt = sim.input_tokens  # to prefill: after a preemption what was generated is prompt as well
        self.prefilled = 0
        self.generated = 0  # tokens made before it joined the decoding ones
        self.context = 0  # tokens when it joined them
        self.joined_step = 0
        self.finish_step = 0
        self.order = 0  # of admission
        self.start_fs = self.first_fs = self.end_fs = -1
        self.recomputed = 0  # prefilled tokens that preemption threw away
        self.relegated = False
        self.replica = 0


@dataclass(slots=True)
class Counters:
    """Sums over a run."""

    steps: int = 0
    stretches: int = 0  # steps and jumps that were computed
    busy_fs: int = 0
    prefill_tokens: int = 0  # recomputed ones included
    prompt_tokens: int = 0  # as vLLM counts them: a prompt all at once, when its prefill ends
    cached_tokens: int = 0  # likewise: of a prompt that begins, what need not be computed
    output_tokens: int = 0
    between_fs: int = 0  # time between the tokens of answers, added up
    between: int = 0  # how many such times
    preemptions: int = 0
    relegations: int = 0


Decision = tuple[int, str, str]  # instant [fs], request, what


class Engine:
    """Base of the engine models. One policy, one queue, one owner."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        self.config = config
        self.policy = policy
        self.clock = 0
        self.queue = policy.queue()
        self._contest = self.queue if isinstance(self.queue, Contest) else None
        self._counts = self.queue if isinstance(self.queue, CountsService) else None
        self.inbox: list[Sequence] = []  # arrivals in order; those before ``taken`` were pushed into the queue
        self.taken = 0
        self.next_arrival = NEVER  # of those not yet taken [fs]
        self.finished: list[Sequence] = []
        self.live: dict[str, Sequence] = {}
        self.counters = Counters()
        self.decisions: list[Decision] | None = None  # a list here records every decision, for the laws
        self._estimator = estimator
        self._view = PoolView({})
        self._round: Round | None = None  # one for each step

    def offer(self, sim: SimRequest) -> Sequence:
        """A request that arrives, in order of arrival. Raises ValueError when it could never run or comes too early."""
        self.check(sim)
        sequence = Sequence(sim, sim.queued)
        if self.inbox and sim.arrival_fs < self.inbox[-1].sim.arrival_fs:
            raise ValueError(f"{sim.queued.id} arrived before {self.inbox[-1].queued.id}, which was offered earlier")
        if self.taken == len(self.inbox):
            self.next_arrival = sim.arrival_fs
        self.inbox.append(sequence)
        return sequence

    def check(self, sim: SimRequest) -> None:
        """Raises ValueError for a request that this engine can never run."""

    def stretch(self, horizon: int = NEVER) -> bool:
        """One step or jump; no jump goes past the first step that ends at ``horizon`` or later.

        False when there is nothing to do: the queue is empty, nothing runs and nothing is about to arrive.
        """
        raise NotImplementedError

    def run(self, requests: Iterable[SimRequest], after: Callable[[Engine], None] | None = None) -> list[Sequence]:
        """Runs a workload to its end. ``after`` is called after every stretch (tests check the laws there)."""
        for request in requests:
            self.offer(request)
        stretch = self.stretch
        if after is None:
            while stretch():
                pass
        else:
            while stretch():
                after(self)
        return self.finished

    def _take_arrivals(self) -> bool:
        """Pushes what has arrived by now into the queue; True when something came."""
        inbox, clock, taken = self.inbox, self.clock, self.taken
        estimator, live, queue = self._estimator, self.live, self.queue
        while taken < len(inbox) and inbox[taken].sim.arrival_fs <= clock:
            sequence = inbox[taken]
            taken += 1
            if estimator is not None:
                sequence.queued = estimator.estimate(sequence.sim)
            live[sequence.queued.id] = sequence
            queue.push(sequence.queued, sequence.queued.arrival_s)
            self._arrived(sequence)
        came = taken > self.taken
        self.taken = taken
        self.next_arrival = inbox[taken].sim.arrival_fs if taken < len(inbox) else NEVER
        return came

    def _arrived(self, sequence: Sequence) -> None:
        """For engines that keep track of what waits."""

    def _end(self, sequence: Sequence, at_fs: int) -> None:
        sequence.end_fs = at_fs
        sequence.state = DONE
        del self.live[sequence.queued.id]
        self.finished.append(sequence)
        if self._counts is not None:
            self._counts.settle(sequence.queued.id, sequence.sim.input_tokens, sequence.sim.output_tokens)
        if self._estimator is not None:
            self._estimator.observe(sequence.sim)

    def _note(self, sequence: Sequence, what: str) -> None:
        if self.decisions is not None:
            self.decisions.append((self.clock, sequence.queued.id, what))

    def _pop(self, queue: RequestQueue) -> Sequence | None:
        """The request that the policy serves next, out of the queue."""
        request = queue.select(self._round or self._new_round(), self.clock / FS)
        return None if request is None else self.live[request.id]

    def _stays_first(self, sequence: Sequence) -> bool:
        """Whether the queue says, without being changed, that nothing which waits goes before ``sequence``."""
        queue = self._contest
        if queue is None:
            return False
        return not queue.goes_before(self._as_it_is(sequence), self._round or self._new_round())

    def _push_back(self, sequence: Sequence, queue: RequestQueue) -> None:
        """Into a queue again, with what has been done of it."""
        queue.push(self._as_it_is(sequence), self.clock / FS)

    def _as_it_is(self, sequence: Sequence) -> QueuedRequest:
        """What policies are told of a request of which something has been done."""
        sequence.queued = progressed(sequence.queued, sequence.prefilled, sequence.generated)
        return sequence.queued

    def _new_round(self) -> Round:
        """Everything fits: an engine looks for room after its policy has chosen."""
        self._round = Round(self._view, lambda request: True)
        return self._round
