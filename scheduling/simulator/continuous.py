"""An engine that batches continuously: every step may begin and end sequences.

One step: the decoding sequences advance by a token each, and what is left of the token budget goes to prompts, in the
policy's order, in chunks (Sarathi-Serve; vLLM). A prompt's last chunk gives its first token. KV blocks: a prompt's are
reserved when it is admitted, and none of the watermark's share is given to a new one; a sequence that needs another
block when none is free preempts the last admitted (or the one of worst rank), which is prefilled again from the start,
its generated tokens included. No sequence is admitted in a step that preempted. The head of the queue is not passed
over when it does not fit.

Speed: decoding sequences are counted, not visited. They all gain one token per step, so a heap of the steps at which
they end, the number of them and the sum of their contexts are all there is; the blocks they need follow from how many
stand at which place within a block. Stretches in which nothing is decided (only decodes, or whole chunks of one prompt)
are jumps in closed form.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from scheduling.core.inside_engine.chunking import DecodeSlack, next_token_due_s, prefill_budget, tokens_to_catch_up
from scheduling.core.inside_engine.step import last_first, place_among_running, progressed
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.relegation import smoothed_rate
from scheduling.core.types import QueuedRequest
from scheduling.simulator.engine import DECODE, DONE, WAITING, EngineConfig, Estimator, Sequence
from scheduling.simulator.exact import ExactStep, run, steps_to
from scheduling.simulator.intake import Intake
from scheduling.simulator.kernel import FS, NEVER, to_s
from scheduling.simulator.workload import SimRequest


class ContinuousEngine(Intake):
    """Continuous batching with chunked prefill."""

    def __init__(self, config: EngineConfig, policy: OrderingPolicy, *, estimator: Estimator | None = None) -> None:
        super().__init__(config, policy, estimator=estimator)
        self.prefilled: list[Sequence] = []  # whose first token has come, in that order
        self._exact = ExactStep(config.truth)
        self._ends: list[tuple[int, int, Sequence]] = []  # (step after which it ends, order, sequence)
        self._slack = DecodeSlack() if config.dynamic_chunks else None
        # Chunks of equal size are decided once, so a prompt of several is a jump.
        self._preempts = config.preempt_prefills
        self._may_jump = config.jumps and not config.dynamic_chunks and not self._rates
        self._place = place_among_running(policy)

    def check(self, sim: SimRequest) -> None:
        if self.config.kv_tokens:
            need, kv = self.kv.of(sim.input_tokens + sim.output_tokens), self.kv
            if need > kv.total - kv.reserve:
                raise ValueError(
                    f"{sim.queued.id} needs {need} KV blocks with its output; the engine has {kv.total} "
                    f"and keeps {kv.reserve} back"
                )

    # --- one stretch

    def stretch(self, horizon: int = NEVER) -> bool:
        self._round = None
        arrival = self.next_arrival
        if arrival <= self.clock:
            self._take_arrivals()
            arrival = self.next_arrival
            self.blocked = False
            if self.current is not None and self._preempts:
                self._reconsider(self.current)
        kv = self.kv
        admit = self.decodes <= kv.free or not kv.total or self._make_room()  # none begins more than a block a step
        current = self.current
        if current is None and admit and not self.blocked:
            current = self.current = self._select()
        if current is None:
            if self.decodes:
                self._decode(min(arrival, horizon) if admit else self.clock)
            elif admit and arrival == NEVER:
                return False
            elif admit:
                self.clock = arrival
            return True
        room = self.config.token_budget - self.decodes if self._slack is None else self._room(current, self._slack)
        left = current.prompt - current.prefilled
        if room <= 0:
            self._decode(arrival if arrival < horizon else horizon)
        elif room < left:
            # A policy hears of an arrival before whatever ends after it: shares count what was there then.
            self._chunks(current, room, left, arrival if arrival < horizon else horizon)
        else:
            self._fill(current, room, left, admit)
        return True

    def _room(self, sequence: Sequence, slack: DecodeSlack) -> int:
        """Prompt tokens that the next step may take, where that depends on how much time the decoding ones have."""
        now_s = to_s(self.clock)
        return prefill_budget(
            self._planner,
            self.decodes,
            self.kv_dec,
            sequence.prefilled,
            lambda step_s, alone_s: slack.time_left_s(self.step_no, now_s, step_s, alone_s),
            margin=self.config.margin,
            most=self.config.max_chunk,
            least=self.config.min_chunk,
        )

    def _decode(self, horizon: int) -> None:
        """Decode-only steps up to the next end, or to the first step that ends at ``horizon`` or later."""
        exact, decodes = self._exact, self.decodes
        first = exact.step(0, decodes, self.kv_dec, 0)
        growth = exact.c * decodes
        count = 1
        if self.config.jumps:
            count = self._steps_to_end()
            if count > 1 and self.kv.total:
                count = min(count, self.kv.sure_steps(decodes))
            if count > 1:
                count = steps_to(first, growth, horizon - self.clock, count)
        self._advance(first if count == 1 else run(first, growth, count), count)

    def _chunks(self, sequence: Sequence, room: int, left: int, horizon: int) -> None:
        """Whole chunks of one prompt: as many as there are before anything else can happen."""
        exact, decodes, prefilled = self._exact, self.decodes, sequence.prefilled
        first = exact.step(room, decodes, self.kv_dec, room * (2 * prefilled + room))
        growth = exact.c * decodes + 2 * exact.e2 * room * room
        count = 1
        if self._may_jump:
            count = (left - 1) // room
            if decodes and count > 1:
                count = min(count, self._steps_to_end())
                if self.kv.total and count > 1:
                    count = min(count, self.kv.sure_steps(decodes))
            if count > 1 and horizon != NEVER:
                count = steps_to(first, growth, horizon - self.clock, count)
        if sequence.start_fs < 0:
            self._begin(sequence)
        sequence.prefilled = prefilled + count * room
        self.counters.prefill_tokens += count * room
        duration = first if count == 1 else run(first, growth, count)
        if self._rates:
            self.rate = smoothed_rate(self.rate, room, duration / FS)
        self._advance(duration, count)

    def _fill(self, sequence: Sequence, room: int, left: int, admit: bool) -> None:
        """A step that ends at least one prompt, and fills what room is left with the next ones."""
        ended: list[Sequence] = []
        taken, pp2 = 0, 0
        candidate: Sequence | None = sequence
        self.current = None
        while candidate is not None:
            take = min(room - taken, left)
            if candidate.start_fs < 0:
                self._begin(candidate)
            pp2 += take * (2 * candidate.prefilled + take)
            taken += take
            candidate.prefilled += take
            if take < left:
                self.current = candidate
                break
            ended.append(candidate)
            if taken >= room or not admit:
                break
            candidate = self._select()
            if candidate is not None:
                left = candidate.prompt - candidate.prefilled
        duration = self._exact.step(taken, self.decodes, self.kv_dec, pp2)
        self.counters.prefill_tokens += taken
        if self._rates:
            self.rate = smoothed_rate(self.rate, taken, duration / FS)
        self._advance(duration, 1)
        for done in ended:
            self._first_token(done)

    def _advance(self, duration: int, count: int) -> None:
        """``count`` steps have passed: every decoding sequence has as many tokens more, and some have ended."""
        counters = self.counters
        decodes = self.decodes
        if decodes and self.kv.total:
            self.kv.advance(self.step_no, count, decodes)
        self.clock += duration
        self.step_no = step = self.step_no + count
        counters.steps += count
        counters.stretches += 1
        counters.busy_fs += duration
        if not decodes:
            return
        self.kv_dec += count * decodes
        counters.output_tokens += count * decodes
        counters.between += count * decodes
        counters.between_fs += duration * decodes
        ends = self._ends
        while ends and ends[0][0] <= step:
            at, _, sequence = heappop(ends)
            if sequence.state == DECODE and sequence.finish_step == at:
                self._leave_decodes(sequence)
                self._release(sequence, sequence.context + step - sequence.joined_step - 1)
                self._end(sequence, self.clock)

    def _steps_to_end(self) -> int:
        ends = self._ends
        while ends[0][2].state != DECODE or ends[0][2].finish_step != ends[0][0]:
            heappop(ends)
        return ends[0][0] - self.step_no

    # --- sequences

    def _begin(self, sequence: Sequence) -> None:
        sequence.start_fs = self.clock
        self.counters.cached_tokens += sequence.prefilled

    def _first_token(self, sequence: Sequence) -> None:
        """Its prompt has been processed in the step that just ended, which also made a token."""
        if sequence.first_fs < 0:
            sequence.first_fs = self.clock
            self.counters.prompt_tokens += sequence.sim.input_tokens
            self.prefilled.append(sequence)
        self.counters.output_tokens += 1
        sequence.generated += 1
        more = sequence.sim.output_tokens - sequence.generated
        if more == 0:
            self._release(sequence, sequence.prompt)
            self._end(sequence, self.clock)
            return
        sequence.state = DECODE
        sequence.context = sequence.prompt + 1
        sequence.joined_step = self.step_no
        sequence.finish_step = self.step_no + more
        self.decodes += 1
        self.kv_dec += sequence.context
        kv = self.kv
        if kv.total:
            kv.places[(sequence.context - self.step_no) % kv.block] += 1
        heappush(self._ends, (sequence.finish_step, sequence.order, sequence))
        if self._slack is not None:
            slo = sequence.sim.slo
            pace = slo.tbt_s if slo.tbt_s is not None else self.config.ttlt_pace_s
            due = next_token_due_s(self._due(sequence), pace, sequence.generated)
            tokens = tokens_to_catch_up(sequence.queued, to_s(sequence.first_fs), sequence.generated)
            self._slack.join(sequence.order, due, pace, self.step_no, tokens)

    def _leave_decodes(self, sequence: Sequence) -> None:
        self.decodes -= 1
        self.kv_dec -= sequence.context + self.step_no - sequence.joined_step
        kv = self.kv
        if kv.total:
            kv.places[(sequence.context - sequence.joined_step) % kv.block] -= 1
        if self._slack is not None:
            self._slack.leave(sequence.order)

    def _release(self, sequence: Sequence, tokens: int) -> None:
        """Gives back the slot, and the blocks of ``tokens`` tokens."""
        del self.admitted[sequence.queued.id]
        if self.kv.total:
            self.kv.release(tokens, sequence.sim.whole_blocks)
        self.blocked = False

    # --- KV blocks

    def _make_room(self) -> bool:
        """Preempts until the next step's blocks are free. False when it had to: nothing is admitted in this step."""
        kv, step = self.kv, self.step_no
        if kv.begun_in(step) <= kv.free:
            return True
        while self.decodes and kv.begun_in(step) > kv.free:
            self._recompute(self._victim())
        return False

    def _victim(self) -> Sequence:
        if self.config.victims == "priority":
            return max(self.admitted.values(), key=lambda s: (s.queued.rank, s.order))
        if self.config.victims == "policy":
            running = ((self._place(self._so_far(s)), s.order, s.queued.id) for s in self.admitted.values())
            return self.admitted[last_first(running)[0]]
        return max(self.admitted.values(), key=lambda s: s.order)

    def _so_far(self, sequence: Sequence) -> QueuedRequest:
        """What policies are told of a running request now: its output moves while it is counted, not visited."""
        if sequence.state != DECODE:
            return self._as_it_is(sequence)
        generated = sequence.generated + self.step_no - sequence.joined_step
        return progressed(sequence.queued, sequence.prompt, generated)

    def _recompute(self, victim: Sequence) -> None:
        """Takes everything from a running sequence; it waits again and starts from the beginning."""
        self._take_from(victim)
        victim.recomputed += victim.prefilled
        victim.state = WAITING
        victim.prompt = victim.sim.input_tokens + victim.generated
        victim.prefilled = 0
        self.counters.preemptions += 1
        self._note(victim, "preempt")
        self._wait(victim)
        self._forget_ends()

    def _take_from(self, sequence: Sequence) -> None:
        """Slot and blocks of a running sequence; what it had generated is counted."""
        if self.paused.pop(sequence.queued.id, None) is not None:
            self._unwait(sequence)
        if sequence.state == DECODE:
            produced = self.step_no - sequence.joined_step
            kv_tokens = sequence.context + produced - 1
            self._leave_decodes(sequence)
            sequence.generated += produced
        else:
            kv_tokens = sequence.prompt
        self._release(sequence, kv_tokens)
        if sequence is self.current:
            self.current = None

    def _forget_ends(self) -> None:
        if len(self._ends) > 2 * self.decodes + 64:
            self._ends = [e for e in self._ends if e[2].state == DECODE and e[2].finish_step == e[0]]
            heapify(self._ends)

    def cancel(self, sequence: Sequence) -> bool:
        """Ends a request before its time, at the engine's clock, with what it has generated so far; its ``end_fs``
        stays -1. False when it has ended already."""
        if sequence.end_fs >= 0 or sequence.state == DONE:
            return False
        name = sequence.queued.id
        if name not in self.live:  # sent, and not yet looked at
            self.inbox.remove(sequence)
            self.next_arrival = self.inbox[self.taken].sim.arrival_fs if self.taken < len(self.inbox) else NEVER
            sequence.state = DONE
            return True
        if name in self.admitted:
            self._take_from(sequence)
        else:
            self._unwait(sequence)
        sequence.state = DONE
        del self.live[name]
        self._note(sequence, "cancel")
        self._forget_ends()
        return True
