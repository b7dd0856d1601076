"""Who is prefilled next, and who has to give way?

What an engine that batches continuously asks before every step. The policy's queue says who is next; the slots and the
KV cache say whether it may be admitted (nobody is passed over when it may not); relegation puts back what cannot be in
time any more; an arrival may make the prompt in progress give way between two chunks. The steps themselves are
:mod:`scheduling.simulator.continuous`.
"""

from __future__ import annotations

from scheduling.core.deadline import prefill_due_s
from scheduling.core.policies.contracts import OrderingPolicy, RequestQueue
from scheduling.core.policies.relegation import Relegation, judge, may_interrupt
from scheduling.simulator.engine import PREFILL, WAITING, Engine, EngineConfig, Estimator, Sequence
from scheduling.simulator.kernel import to_s
from scheduling.simulator.kv_blocks import KvBlocks
from scheduling.simulator.workload import BLOCK_TOKENS


class Intake(Engine):
    """Waiting, relegated and paused prompts of an engine."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        super().__init__(config, policy, estimator=estimator)
        self.step_no = 0
        self.current: Sequence | None = None  # the prompt whose chunks are being processed
        self.admitted: dict[str, Sequence] = {}  # running: prefill begun, or decoding; in order of admission
        self.decodes = 0
        self.kv_dec = 0  # sum of the decoding sequences' contexts
        self.kv = KvBlocks(config.kv_tokens, config.block, config.watermark, BLOCK_TOKENS)
        self.blocked = False  # the head of the queue found no room; asked again when something ends or arrives
        self.paused: dict[str, Sequence] = {}  # prompts that gave way between chunks; they wait, but keep their blocks
        self.relegated: RequestQueue | None = policy.queue() if config.relegate else None
        self._rates = config.relegate or config.selective  # deadlines are minded: the prefill rate has to be known
        self.rate = config.first_rate  # moving average of prefill throughput [tokens/s]
        self.low_waiting: dict[str, Sequence] = {}
        self.backlog = 0  # prompt tokens of important requests that wait and are not relegated
        self._planner = config.planner or config.truth
        self._order = 0

    def _due(self, sequence: Sequence) -> float:
        """When its prefill has to be done [s]."""
        return prefill_due_s(sequence.queued, self.config.ttlt_pace_s)

    def _arrived(self, sequence: Sequence) -> None:
        if self.relegated is not None:
            self._book_waiting(sequence, +1)

    def _book_waiting(self, sequence: Sequence, sign: int) -> None:
        if sequence.sim.important:
            self.backlog += sign * (sequence.prompt - sequence.prefilled)
        elif sign > 0 and sequence.state == WAITING:
            self.low_waiting[sequence.queued.id] = sequence
        else:
            self.low_waiting.pop(sequence.queued.id, None)

    def _reconsider(self, current: Sequence) -> None:
        """Something arrived: the prompt that is being processed goes back into the queue and is chosen again, or not.

        Only if a pause of one step leaves it time enough (selective preemption), where deadlines are minded at all.
        """
        if self._rates:
            left = current.prompt - current.prefilled
            pause = self._planner.step(self.config.max_chunk, self.decodes, self.kv_dec)
            if not may_interrupt(self._due(current), to_s(self.clock), left, self.rate, pause):
                return
        elif self._stays_first(current):
            return
        self.paused[current.queued.id] = current
        self._wait(current)
        self.current = self._select()

    def _wait(self, sequence: Sequence) -> None:
        """Back to where it was chosen from."""
        if sequence.relegated:
            self._push_relegated(sequence)
            return
        self._push_back(sequence, self.queue)
        if self.relegated is not None:
            self._book_waiting(sequence, +1)

    def _unwait(self, sequence: Sequence) -> None:
        """Out of where it waits."""
        if sequence.relegated and self.relegated is not None:
            self.relegated.discard(sequence.queued.id)
            return
        self.queue.discard(sequence.queued.id)
        if self.relegated is not None:
            self._book_waiting(sequence, -1)

    def _select(self) -> Sequence | None:
        """The prompt to process next, admitted; None when nothing waits or what waits has no room."""
        sequence = self._choose()
        if sequence is None:
            return None
        if sequence.state == PREFILL:
            del self.paused[sequence.queued.id]
            return sequence
        kv = self.kv
        if len(self.admitted) < self.config.max_seqs and (
            not kv.total or kv.admit(sequence.prompt, self.step_no, sequence.sim.whole_blocks)
        ):
            self._order += 1
            sequence.order = self._order
            sequence.state = PREFILL
            self.admitted[sequence.queued.id] = sequence
            if self.decisions is not None:
                self._note(sequence, "admit")
            return sequence
        self._wait(sequence)
        if self.paused:  # what is begun goes on rather than that the engine stands still
            _, resumed = self.paused.popitem()
            self._unwait(resumed)
            return resumed
        self.blocked = True
        return None

    def _choose(self) -> Sequence | None:
        """What the policy serves next; requests that cannot be in time are relegated on the way."""
        queue = self.queue
        if self.relegated is None:
            return self._pop(queue) if len(queue) else None
        now = to_s(self.clock)
        while len(queue) and (sequence := self._pop(queue)) is not None:
            self._book_waiting(sequence, -1)
            if sequence.state == PREFILL:
                return sequence  # begun already: what it holds would be wasted
            verdict = judge(
                self._due(sequence),
                now,
                sequence.prompt,
                self.rate,
                low=not sequence.sim.important,
                low_waiting=bool(self.low_waiting),
                backlog_tokens=self.backlog,
            )
            if verdict is Relegation.SERVE:
                return sequence
            if verdict is Relegation.RELEGATE:
                self._push_relegated(sequence)
                continue
            for low in self.low_waiting.values():
                queue.discard(low.queued.id)
                self._push_relegated(low)
            self.low_waiting.clear()
            return sequence
        return self._pop(self.relegated) if len(self.relegated) else None

    def _push_relegated(self, sequence: Sequence) -> None:
        assert self.relegated is not None
        if not sequence.relegated:
            sequence.relegated = True
            self.counters.relegations += 1
            self._note(sequence, "relegate")
        self._push_back(sequence, self.relegated)
