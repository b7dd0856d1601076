"""Laws that every run of an engine model keeps, whatever the policy; checked after every event in tests.

They continue the numbers of :mod:`scheduling.core.scheduler.invariants`, which are about one decision of the dispatch
loop; these are about the engine behind it and about whole runs. Every check recounts from the requests themselves: the
engine's running totals are what is being judged.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import takewhile

from scheduling.core.scheduler.invariants import Violation
from scheduling.simulator.batches import SlotsEngine
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import DECODE, DONE, PREFILL, WAITING, Decision, Engine, Sequence
from scheduling.simulator.ranked import RankedEngine
from scheduling.simulator.result import Outcome

ENGINE_LAWS: dict[int, str] = {
    11: "no request is lost: each that arrived waits, runs or has ended, and is in one place",
    12: "tokens are counted once: the decoding sequences and their contexts are what the engine believes",
    13: "no more sequences run than there are slots",
    14: "KV blocks are neither lost nor given twice, and none is given that is not there",
    15: "work is conserved: the engine does not stand still while something could run",
    16: "time does not run backwards, and nothing starts before it arrives or ends before it starts",
    17: "every token is made: what ended has as many as it was to have, and policies do not change the sum",
    18: "mean number in the system = arrival rate x mean time in it (Little)",
    19: "no decision depends on a true length before it shows",
}


class LawWatch:
    """Checks an engine after each stretch: ``engine.run(requests, after=LawWatch())`` collects what was broken."""

    def __init__(self) -> None:
        self.broken: list[Violation] = []
        self._clock = 0

    def __call__(self, engine: Engine) -> None:
        self.broken += check_places(engine)
        if isinstance(engine, ContinuousEngine):
            self.broken += check_continuous(engine)
        if isinstance(engine, RankedEngine):
            self.broken += check_ranked(engine)
        if isinstance(engine, SlotsEngine) and engine.running > engine.config.max_seqs:
            self.broken.append(Violation(13, f"{engine.running} of {engine.config.max_seqs}"))
        if engine.clock < self._clock:
            self.broken.append(Violation(16, f"the clock went from {self._clock} to {engine.clock}"))
        self._clock = engine.clock


def check_places(engine: Engine) -> list[Violation]:
    """Law 11. O(requests that arrived)."""
    broken = []
    queued = [request.id for request in engine.queue]
    if isinstance(engine, ContinuousEngine) and engine.relegated is not None:
        queued += [request.id for request in engine.relegated]
    if len(set(queued)) != len(queued):
        broken.append(Violation(11, "a request waits twice"))
    waiting = set(queued)
    for sequence in engine.inbox[: engine.taken]:
        name, state = sequence.queued.id, sequence.state
        alive = engine.live.get(name) is sequence
        if alive == (state == DONE):
            broken.append(Violation(11, f"{name} has state {state} and is {'' if alive else 'not '}alive"))
        if state == WAITING and name not in waiting:
            broken.append(Violation(11, f"{name} waits nowhere"))
        if state in (DECODE, DONE) and name in waiting:
            broken.append(Violation(11, f"{name} waits though it has state {state}"))
    return broken


def check_continuous(engine: ContinuousEngine) -> list[Violation]:
    """Laws 12 to 15 of a continuously batching engine."""
    broken = []
    config = engine.config
    running = list(engine.admitted.values())
    decoding = [sequence for sequence in running if sequence.state == DECODE]
    contexts = [sequence.context + engine.step_no - sequence.joined_step for sequence in decoding]
    if len(decoding) != engine.decodes or sum(contexts) != engine.kv_dec:
        broken.append(
            Violation(12, f"{engine.decodes} decode with {engine.kv_dec}, counted {len(decoding)} with {sum(contexts)}")
        )
    for sequence, context in zip(decoding, contexts, strict=True):
        if context - sequence.sim.input_tokens >= sequence.sim.output_tokens:
            broken.append(Violation(12, f"{sequence.queued.id} decodes past its end"))
    if len(running) > config.max_seqs:
        broken.append(Violation(13, f"{len(running)} of {config.max_seqs}"))
    kv = engine.kv
    if kv.total:
        blocks = sum(-(-(context - 1) // config.block) for context in contexts)
        blocks += sum(-(-s.prompt // config.block) for s in running if s.state == PREFILL)
        if blocks + kv.free != kv.total or kv.free < 0:
            broken.append(Violation(14, f"{blocks} held and {kv.free} free of {kv.total}"))
    begun = [s for s in running if s.state == PREFILL and s is not engine.current and s.queued.id not in engine.paused]
    if begun:
        broken.append(Violation(15, f"{begun[0].queued.id} was begun and nobody goes on with it"))
    if engine.blocked and not running:
        broken.append(Violation(15, "nothing runs and the head of the queue is not admitted"))
    return broken


def check_ranked(engine: RankedEngine) -> list[Violation]:
    """Laws 13 to 15 of an engine that chooses anew who runs."""
    broken = []
    if len(engine.running) > engine.config.max_seqs:
        broken.append(Violation(13, f"{len(engine.running)} of {engine.config.max_seqs}"))
    tokens = sum(s.prompt + s.generated for s in engine.running)
    if 0 < engine.config.kv_tokens < tokens:
        broken.append(Violation(14, f"{tokens} KV tokens of {engine.config.kv_tokens}"))
    if not engine.running and len(engine.queue) and engine.counters.stretches and not engine.stale:
        broken.append(Violation(15, "nothing runs though something waits"))
    return broken


def check_ended(lives: Rows[Sequence], offered: int) -> list[Violation]:
    """Laws 11, 16 and 17 at the end of a run to which ``offered`` requests were given."""
    broken = []
    if len(lives) != offered or len({life.sim.index for life in lives}) != offered:
        broken.append(Violation(11, f"{len(lives)} of {offered} ended"))
    for life in lives:
        if not life.sim.arrival_fs <= life.start_fs <= life.first_fs <= life.end_fs:
            broken.append(Violation(16, f"{life.sim.queued.id}: {life.start_fs}, {life.first_fs}, {life.end_fs}"))
    return broken


def check_tokens(engine: Engine) -> list[Violation]:
    """Law 17 of a run that has ended: tokens made and prompts processed are those of the workload, and what was thrown
    away by preemption on top."""
    broken = []
    generated = sum(life.sim.output_tokens for life in engine.finished)
    if engine.counters.output_tokens != generated:
        broken.append(Violation(17, f"{engine.counters.output_tokens} tokens made, {generated} asked"))
    # The prompt of a sequence that was preempted while it decoded holds what it had generated.
    prompts = sum(life.prompt for life in engine.finished)
    again = sum(life.recomputed for life in engine.finished)
    if engine.counters.prefill_tokens != prompts + again:
        broken.append(Violation(17, f"{engine.counters.prefill_tokens} prefilled, {prompts} + {again} asked"))
    return broken


def check_little(outcomes: Rows[Outcome], tolerance: float = 1e-9) -> list[Violation]:
    """Law 18, with the number in the system counted event by event and the times summed request by request."""
    if not outcomes:
        return []
    events = sorted(
        [(o.arrival_s, 1) for o in outcomes] + [(o.arrival_s + o.ttlt_s, -1) for o in outcomes],
    )
    area, inside, last = 0.0, 0, events[0][0]
    for at, change in events:
        area += inside * (at - last)
        inside, last = inside + change, at
    total = sum(o.ttlt_s for o in outcomes)
    if abs(area - total) > tolerance * max(1.0, total) or inside != 0:
        return [Violation(18, f"{area} request seconds in the system, {total} by the requests, {inside} inside")]
    return []


def check_foresight(one: Rows[Decision], other: Rows[Decision], until_fs: int) -> list[Violation]:
    """Law 19: runs whose workloads differ only in true lengths that show after ``until_fs`` decide alike until then."""
    first = list(takewhile(lambda decision: decision[0] < until_fs, one))
    second = list(takewhile(lambda decision: decision[0] < until_fs, other))
    for a, b in zip(first, second, strict=False):
        if a != b:
            return [Violation(19, f"{a} and {b} before {until_fs}")]
    if len(first) != len(second):
        return [Violation(19, f"{len(first)} and {len(second)} decisions before {until_fs}")]
    return []
