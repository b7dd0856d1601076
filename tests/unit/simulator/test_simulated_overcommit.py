"""A pool whose clients ask for far more tokens than they get, behind the product's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.capacity import kv_overcommit
from scheduling.core.capacity.kv_overcommit import KvPressure, KvUse, _Use
from scheduling.core.capacity.kv_sharing import KvSharing
from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator.kernel import rng
from scheduling.simulator.prefix_cache import prefixes_of
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import mean
from scheduling.simulator.workload import BLOCK_TOKENS, Belief, SimRequest, Tier, make_request

BOUND = 8_000
TIER = Tier("standard", Slo(ttft_s=5.0), 1, 30.0, 1.0, ServiceClass.ELASTIC)


def ask(arrivals: list[tuple[float, int]]) -> list[SimRequest]:
    """Requests by when they come [s] and how many tokens they get of the many that they ask for."""
    belief = Belief(500.0, BOUND, (500.0,), (1.0,))
    return [make_request(n, at_s, 200, tokens, TIER, belief) for n, (at_s, tokens) in enumerate(sorted(arrivals))]


def served(requests: list[SimRequest], kv_tokens: int = 100_000) -> tuple[float, float, int]:
    """Share that had its first token in time, mean time to the last token [s], and preemptions of the engines."""
    preset = load_preset("llama-3-8b-a100")
    replica = Replica(preset.step_time, 128, kv_tokens, 1024, None, "priority")
    replay = Replay([replica] * 2, make_ordering("unified"), make_routing("least_work"))
    outcomes = replay.run(requests)
    late = sum(outcome.ttft_s > 5.0 for outcome in outcomes)
    preemptions = sum(engine.counters.preemptions for engine in replay.engines)
    return 1 - late / len(outcomes), mean([outcome.ttlt_s for outcome in outcomes]), preemptions


def reserve_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvPressure, "offered", lambda self, kv_tokens, *_: kv_tokens)


def short_answers() -> list[SimRequest]:
    random = rng(7, "overcommit")
    return ask([(random.uniform(0.0, 120.0), max(1, int(random.expovariate(1 / 400)))) for _ in range(900)])


def suddenly_long() -> list[SimRequest]:
    """Short answers for a minute, then as many that fill their bound."""
    random = rng(7, "overcommit")
    return ask([(t := random.uniform(0.0, 120.0), 100 if t < 60.0 else BOUND) for _ in range(400)])


def test_slots_are_not_left_empty_for_answers_that_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time, _, preemptions = served(short_answers())
    assert (in_time, preemptions) == (1.0, 0)
    reserve_in_full(monkeypatch)
    assert served(short_answers())[0] < 0.6, "the test would see it"


def test_answers_that_suddenly_fill_their_bound_are_served_no_later_than_if_all_were_reserved_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines preempt some of them, which costs less than the cache that is empty while answers grow."""
    in_time, took_s, _ = served(suddenly_long())
    reserve_in_full(monkeypatch)
    in_full = served(suddenly_long())
    assert in_time >= in_full[0]
    assert took_s <= in_full[1]


def reasoning() -> list[SimRequest]:
    """Long answers of which few fit a cache, and bounds that most of them do not fill."""
    random, belief = rng(7, "reasoning"), Belief(2_000.0, BOUND, (2_000.0,), (1.0,))
    arrivals = sorted(random.uniform(0.0, 150.0) for _ in range(250))
    lengths = [max(50, min(BOUND, int(random.lognormvariate(7.2, 0.8)))) for _ in arrivals]
    return [make_request(n, at_s, 300, lengths[n], TIER, belief) for n, at_s in enumerate(arrivals)]


def test_long_answers_fill_a_small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of it left empty, or no more than is expected of what ended, has requests wait for nothing."""
    in_time, took_s, preemptions = served(reasoning(), kv_tokens=60_000)
    assert preemptions < 80, "of 250"
    monkeypatch.setattr(kv_overcommit, "MOST_PART", 1.0)
    cautious = served(reasoning(), kv_tokens=60_000)
    assert (in_time > cautious[0] + 0.04, took_s < 0.9 * cautious[1]) == (True, True)
    monkeypatch.setattr(kv_overcommit, "TARGET", 0.8)
    emptier = served(reasoning(), kv_tokens=60_000)
    assert (cautious[0] > emptier[0] + 0.02, cautious[1] < 0.96 * emptier[1]) == (True, True)


def test_an_owner_does_not_wait_until_what_others_reserve_has_drained() -> None:
    """A neighbour's answers suddenly fill their bound, so overcommit is taken back below what is reserved already."""
    random, owner = rng(7, "owner"), Tier("premium", Slo(ttft_s=1.0), 0, 120.0, 1.0, ServiceClass.GUARANTEED)
    arrivals = [(t := random.uniform(0.0, 100.0), 100 if t < 50.0 else 6_000) for _ in range(500)]
    asked = [*ask(arrivals)]
    belief = Belief(100.0, 150, (100.0,), (1.0,))
    for n in range(300):
        request = make_request(len(asked), 0.5 * n, 300, 100, owner, belief)
        asked.append(replace(request, queued=replace(request.queued, entitlement="owner", concurrency=24)))
    asked.sort(key=lambda request: request.arrival_fs)
    preset = load_preset("llama-3-8b-a100")
    replay = Replay(
        [Replica(preset.step_time, 128, 60_000, 1024, None, "priority")] * 2,
        make_ordering("unified"),
        make_routing("least_work"),
    )
    over: list[bool] = []
    outcomes = replay.run(
        asked, lambda *_: over.append(any(b.kv_used > b.kv_tokens for b in replay.view.backends.values())), every_s=1.0
    )
    assert sum(over) > 10, "more was reserved than was offered"
    waits = [o.ttft_s for o in outcomes if o.tier == "premium"]
    assert len(waits) == 300
    assert sum(wait_s <= 1.0 for wait_s in waits) > 0.9 * len(waits)


def running_after_a_new_leader(*, inherits: bool) -> int:
    """How many run ten seconds after another leader took over a pool whose replicas are reserved several times."""
    random = rng(7, "overcommit")
    requests = ask([(random.uniform(0.0, 150.0), max(1, int(random.expovariate(1 / 400)))) for _ in range(2000)])
    preset, found = load_preset("llama-3-8b-a100"), 0
    replica = Replica(preset.step_time, 128, 100_000, 1024, None, "priority")
    replay = Replay([replica] * 2, make_ordering("unified"), make_routing("least_work"))

    def look(now_s: float, *_: object) -> None:
        nonlocal found
        if now_s == 120.0:
            offered = max(backend.kv_tokens for backend in replay.view.backends.values())
            replay._watch.kv_use = KvUse()
            if inherits:
                replay._watch.kv_use.inherit(offered / 100_000)
        elif now_s == 130.0:
            found = sum(backend.running for backend in replay.view.backends.values())

    replay.run(requests, look, every_s=5.0)
    return found


def test_a_new_leader_goes_on_granting_beside_what_runs() -> None:
    assert running_after_a_new_leader(inherits=True) > 1.4 * running_after_a_new_leader(inherits=False)


def test_what_runs_and_what_the_engine_does_keep_preemptions_down(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = served(suddenly_long())[2]
    monkeypatch.setattr(KvPressure, "seen", lambda self, now_s, usage, preemptions: setattr(self, "_known", True))
    monkeypatch.setattr(_Use, "share", lambda self, running: self.used / self.weight if self.weight else 1.0)
    assert careful < 0.75 * served(suddenly_long())[2]


IN_COMMON = tuple(range(16))  # blocks: 8,192 tokens
NOBODY_ELSE = 1_000  # ids from here on are of one request alone


def alike(number: int, at_s: float, answer: int, blocks: tuple[int, ...] = IN_COMMON) -> SimRequest:
    tokens = len(blocks) * BLOCK_TOKENS + 100
    belief = Belief(400.0, 1_000, (400.0,), (1.0,))
    made = make_request(number, at_s, tokens, answer, TIER, belief)
    queued = replace(made.queued, prefixes=prefixes_of(blocks, tokens, goes_on=False))
    return replace(made, queued=queued, blocks=blocks)


def with_instructions() -> list[SimRequest]:
    random = rng(7, "in common")
    arrivals = sorted(random.uniform(0.0, 120.0) for _ in range(500))
    return [alike(n, at_s, max(20, int(random.lognormvariate(6.0, 0.5)))) for n, at_s in enumerate(arrivals)]


def suddenly_unlike() -> list[SimRequest]:
    """Instructions in common for a minute, then as many prompts of which nothing is."""
    random = rng(7, "in common")
    arrivals = sorted(random.uniform(0.0, 120.0) for _ in range(500))
    own = [tuple(NOBODY_ELSE + 16 * n + at for at in range(16)) for n in range(len(arrivals))]
    return [alike(n, at_s, 400, IN_COMMON if at_s < 60.0 else own[n]) for n, at_s in enumerate(arrivals)]


def share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvSharing, "counted", property(lambda self: 1.0))


def test_instructions_in_common_do_not_leave_slots_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time, _, preemptions = served(with_instructions())
    assert (in_time > 0.9, preemptions) == (True, 0)
    share_nothing(monkeypatch)
    assert served(with_instructions())[0] < 0.6, "the test would see it"


def test_prompts_that_suddenly_have_nothing_in_common_do_not_fill_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time, _, preemptions = served(suddenly_unlike())
    share_nothing(monkeypatch)
    without, _, _ = served(suddenly_unlike())
    assert preemptions <= 5
    assert in_time > without - 0.03
