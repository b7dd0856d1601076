"""Engines that do not batch continuously: whole batches, padded batches, and plain slots.

* ``whole_batch``: up to ``max_seqs`` requests at once; the next batch begins when all have ended, and only then is any
  of them answered (``LLM.generate`` called on a list, as DriftSched does).
* ``padded_batch``: the same, and every prompt is padded to the longest, every sequence decodes until the last has
  ended (static batching, before continuous batching was invented).
* ``slots``: ``max_seqs`` requests at once, each with a service time of its own that does not depend on the others:
  ``a * input + t0 * output`` (token pools' arithmetic).
"""

from __future__ import annotations

from heapq import heappop, heappush

from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import DECODE, Engine, EngineConfig, Estimator, Sequence
from scheduling.simulator.exact import ExactStep, run
from scheduling.simulator.kernel import NEVER
from scheduling.simulator.ranked import RankedEngine
from scheduling.simulator.workload import SimRequest


class BatchEngine(Engine):
    """Whole and padded batches. A stretch is one batch."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        super().__init__(config, policy, estimator=estimator)
        self._exact = ExactStep(config.truth)
        self._padded = config.mode == "padded_batch"

    def check(self, sim: SimRequest) -> None:
        if 0 < self.config.kv_tokens < sim.input_tokens + sim.output_tokens:
            raise ValueError(f"{sim.queued.id} is larger than the KV cache of {self.config.kv_tokens} tokens")

    def stretch(self, horizon: int = NEVER) -> bool:
        self._round = None
        self._take_arrivals()
        batch = self._gather()
        if not batch:
            arrival = self.next_arrival
            if arrival == NEVER:
                return False
            self.clock = arrival
            return True
        start = self.clock
        self._prefill(batch)
        first = self.clock
        if self._padded:
            self._decode_padded(batch)
        else:
            self._decode(batch)
        for sequence in batch:
            sequence.start_fs, sequence.first_fs = start, first
            self.counters.output_tokens += sequence.sim.output_tokens
            self._end(sequence, self.clock)
        self.counters.busy_fs += self.clock - start
        self.counters.stretches += 1
        return True

    def _gather(self) -> list[Sequence]:
        """The next batch, in the policy's order; it ends at the first request for which there is no KV cache."""
        batch: list[Sequence] = []
        kv_tokens, longest, most = self.config.kv_tokens, 0, 0
        used = 0
        while len(batch) < self.config.max_seqs and len(self.queue):
            sequence = self._pop(self.queue)
            if sequence is None:
                break
            sim = sequence.sim
            if self._padded:
                longest, most = max(longest, sim.input_tokens), max(most, sim.output_tokens)
                used = (len(batch) + 1) * (longest + most)
            else:
                used += sim.input_tokens + sim.output_tokens
            if kv_tokens and used > kv_tokens:
                self._push_back(sequence, self.queue)
                break
            sequence.state = DECODE
            self._note(sequence, "admit")
            batch.append(sequence)
        return batch

    def _prefill(self, batch: list[Sequence]) -> None:
        """All prompts, in steps of the token budget; a padded batch goes in one piece."""
        exact, budget = self._exact, self.config.token_budget
        lengths = [sequence.sim.input_tokens for sequence in batch]
        self.counters.prefill_tokens += sum(lengths)
        if self._padded:
            longest = max(lengths)
            self.clock += exact.step(longest * len(batch), 0, 0, longest * longest * len(batch))
            self.counters.steps += 1
            return
        taken, pp2 = 0, 0
        for length in lengths:
            done = 0
            while done < length:
                take = min(length - done, budget - taken)
                pp2 += take * (2 * done + take)
                taken, done = taken + take, done + take
                if taken == budget:
                    self.clock += exact.step(taken, 0, 0, pp2)
                    self.counters.steps += 1
                    taken, pp2 = 0, 0
        if taken:
            self.clock += exact.step(taken, 0, 0, pp2)
            self.counters.steps += 1

    def _decode(self, batch: list[Sequence]) -> None:
        """Sequences leave the batch as they end: one closed form per distinct length. Prefill made the first token."""
        order = sorted(batch, key=lambda sequence: sequence.sim.output_tokens)
        running = len(batch)
        context = sum(sequence.sim.input_tokens + 1 for sequence in batch)
        produced, place = 1, 0
        while True:
            while place < len(order) and order[place].sim.output_tokens == produced:
                context -= order[place].sim.input_tokens + produced
                running, place = running - 1, place + 1
            if not running:
                return
            count = order[place].sim.output_tokens - produced
            self._run(running, context, count)
            context += running * count
            produced += count

    def _decode_padded(self, batch: list[Sequence]) -> None:
        longest = max(sequence.sim.input_tokens for sequence in batch)
        count = max(sequence.sim.output_tokens for sequence in batch) - 1
        self._run(len(batch), len(batch) * (longest + 1), count)

    def _run(self, running: int, context: int, count: int) -> None:
        exact = self._exact
        first, growth = exact.step(0, running, context, 0), exact.c * running
        self.counters.steps += count
        if self.config.jumps:
            self.clock += run(first, growth, count)
        else:
            for step in range(count):
                self.clock += first + growth * step


class SlotsEngine(Engine):
    """Fixed service times. A stretch goes to the next arrival or end."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        super().__init__(config, policy, estimator=estimator)
        self._exact = ExactStep(config.truth)
        self._ends: list[tuple[int, int, Sequence]] = []
        self._started = 0
        self._counted_fs = 0  # up to here the time is in the counters

    @property
    def running(self) -> int:
        return len(self._ends)

    def offer(self, sim: SimRequest) -> Sequence:
        # Between two events nothing changes, so an arrival that was not foreseen finds the engine as it was.
        self.clock = min(self.clock, max(sim.arrival_fs, self._counted_fs))
        return super().offer(sim)

    def stretch(self, horizon: int = NEVER) -> bool:
        self._round = None
        if self._ends:
            self.counters.busy_fs += self.clock - self._counted_fs
        self._counted_fs = self.clock
        while self._ends and self._ends[0][0] <= self.clock:
            at, _, sequence = heappop(self._ends)
            self._end(sequence, at)
        self._take_arrivals()
        while len(self._ends) < self.config.max_seqs and len(self.queue):
            chosen = self._pop(self.queue)
            if chosen is None:
                break
            self._start(chosen)
        following = min(self.next_arrival, self._ends[0][0] if self._ends else NEVER)
        if following == NEVER:
            return False
        self.counters.stretches += 1
        self.clock = following
        return True

    def _start(self, sequence: Sequence) -> None:
        sim, exact = sequence.sim, self._exact
        sequence.state = DECODE
        sequence.start_fs = self.clock
        sequence.first_fs = self.clock + exact.a * sim.input_tokens + exact.t0
        self._started += 1
        end = sequence.first_fs + exact.t0 * (sim.output_tokens - 1)
        heappush(self._ends, (end, self._started, sequence))
        self.counters.prefill_tokens += sim.input_tokens
        self.counters.output_tokens += sim.output_tokens
        self._note(sequence, "admit")


def make_engine(config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> Engine:
    """The engine of the mode that the settings name."""
    if config.mode == "continuous":
        return ContinuousEngine(config, policy, estimator=estimator)
    if config.mode == "ranked":
        return RankedEngine(config, policy, estimator=estimator)
    if config.mode == "slots":
        return SlotsEngine(config, policy, estimator=estimator)
    return BatchEngine(config, policy, estimator=estimator)
