"""An engine whose running set is chosen anew whenever the order may have changed.

Preemptive continuous batching as SageSched assumes it: a running sequence that is no longer among the first gives its
place away between two steps and keeps what it has computed (its KV cache is swapped out; the papers call that cost
negligible and none is charged here). The order is asked for when a request arrives, when one ends, when a running one
has generated another ``bucket_tokens``, and when the cache is full: then the last in order wait.

Who runs: the first in the policy's order, as many as there are slots and KV tokens for; the first that does not fit
ends it. One step: prompts in the order of their sequences up to the token budget, and a token for each that decodes.
"""

from __future__ import annotations

from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.simulator.engine import DECODE, PREFILL, WAITING, Engine, EngineConfig, Estimator, Sequence
from scheduling.simulator.exact import ExactStep, run, steps_to
from scheduling.simulator.kernel import NEVER
from scheduling.simulator.workload import SimRequest


class RankedEngine(Engine):
    """Mode ``ranked``. O(running) per stretch, O(running * push) per choice."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        super().__init__(config, policy, estimator=estimator)
        self.running: list[Sequence] = []  # in the policy's order
        self._exact = ExactStep(config.truth)
        self.stale = False  # something happened that may change the order

    def check(self, sim: SimRequest) -> None:
        if 0 < self.config.kv_tokens < sim.input_tokens + sim.output_tokens:
            raise ValueError(f"{sim.queued.id} is larger than the KV cache of {self.config.kv_tokens} tokens")

    def stretch(self, horizon: int = NEVER) -> bool:
        self._round = None
        arrival = self.next_arrival
        if arrival <= self.clock:
            self._take_arrivals()
            arrival = self.next_arrival
            self.stale = True
        if self.stale or self._kv_after(1) > (self.config.kv_tokens or NEVER):
            self._choose()
        if not self.running:
            if arrival == NEVER:
                return False
            self.clock = arrival
            return True
        if any(sequence.state == PREFILL for sequence in self.running):
            self._mixed_step()
        else:
            self._decode(min(arrival, horizon))
        return True

    def _choose(self) -> None:
        """The first in order run; who ran before and is not among them waits."""
        before = self.running
        for sequence in before:
            self._push_back(sequence, self.queue)
        self.running, used = [], 0
        while len(self.running) < self.config.max_seqs and len(self.queue):
            following = self._pop(self.queue)
            if following is None:
                break
            used += following.prompt + following.generated + 1
            if self.config.kv_tokens and used > self.config.kv_tokens:
                self._push_back(following, self.queue)
                break
            self.running.append(following)
        chosen = {sequence.queued.id for sequence in self.running}
        for sequence in before:
            if sequence.queued.id not in chosen:
                sequence.state = WAITING
                self.counters.preemptions += 1
                self._note(sequence, "preempt")
        for sequence in self.running:
            if sequence.state == WAITING:
                sequence.state = DECODE if sequence.generated else PREFILL
                self._note(sequence, "admit")
        self.stale = False

    def _kv_after(self, steps: int) -> int:
        return sum(s.prompt + s.generated + steps for s in self.running)

    def _mixed_step(self) -> None:
        decoding = [s for s in self.running if s.state == DECODE]
        room = self.config.token_budget - len(decoding)
        taken = pp2 = 0
        ready: list[Sequence] = []
        for sequence in self.running:
            if sequence.state != PREFILL or taken >= room:
                continue
            if sequence.start_fs < 0:
                sequence.start_fs = self.clock
            take = min(room - taken, sequence.prompt - sequence.prefilled)
            pp2 += take * (2 * sequence.prefilled + take)
            taken += take
            sequence.prefilled += take
            if sequence.prefilled == sequence.prompt:
                ready.append(sequence)
        context = sum(s.prompt + s.generated for s in decoding)
        self.counters.prefill_tokens += taken
        self._pass(self._exact.step(taken, len(decoding), context, pp2), 1)
        for sequence in ready:
            sequence.state = DECODE
            sequence.first_fs = self.clock
        self._grow(decoding + ready, 1)

    def _decode(self, horizon: int) -> None:
        running = self.running
        count = 1
        first = self._exact.step(0, len(running), sum(s.prompt + s.generated for s in running), 0)
        growth = self._exact.c * len(running)
        if self.config.jumps:
            bucket = self.config.bucket_tokens
            count = min(min(s.sim.output_tokens - s.generated, bucket - s.generated % bucket) for s in running)
            if self.config.kv_tokens:
                count = min(count, max(1, (self.config.kv_tokens - self._kv_after(0)) // len(running)))
            count = steps_to(first, growth, horizon - self.clock, count)
        self._pass(run(first, growth, count), count)
        self._grow(running, count)

    def _pass(self, duration: int, count: int) -> None:
        self.clock += duration
        self.counters.steps += count
        self.counters.stretches += 1
        self.counters.busy_fs += duration

    def _grow(self, sequences: list[Sequence], count: int) -> None:
        """Each has ``count`` tokens more; some have ended, some have crossed a bucket."""
        ended = False
        self.counters.output_tokens += count * len(sequences)
        for sequence in sequences:
            sequence.generated += count
            if sequence.generated == sequence.sim.output_tokens:
                ended = True
                self._end(sequence, self.clock)
            elif sequence.generated % self.config.bucket_tokens == 0:
                self.stale = True
        if ended:
            self.running = [s for s in self.running if s.end_fs < 0]
            self.stale = True
