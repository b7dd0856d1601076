"""Prefill and decode apart in a simulated pool: two engines work on each request, as gateways have it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduling.core.engine.step_time import StepTime
from scheduling.core.placement.legs import transfer_s
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import Phase, Slo
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

STEP = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)
KV_BYTES = 131_072
ALL = Tier("all", Slo(ttlt_s=600.0))
BOTH = Replica(STEP, 64, 400_000, 512)
DECODE, PREFILL = (replace(BOTH, phase=phase, kv_bytes_per_token=KV_BYTES) for phase in (Phase.DECODE, Phase.PREFILL))


def request(index: int, at_s: float, prompt: int, output: int, *, whole: bool = False) -> SimRequest:
    made = make_request(index, at_s, prompt, output, ALL, Belief(float(output), output))
    made.whole = whole
    return made


def pool(*replicas: Replica, signal_s: float = 0.0) -> Replay:
    return Replay(replicas, make_ordering("fifo"), make_routing("least_work"), signal_s=signal_s)


def served(work: list[SimRequest], *replicas: Replica) -> list[Outcome]:
    return pool(*replicas).run(work)


def overload(count: int) -> list[SimRequest]:
    random, at, made = Random(1), 0.0, []
    for index in range(count):
        at += random.expovariate(12.0)
        made.append(request(index, at, random.randint(200, 3000), random.randint(2, 60), whole=random.random() < 0.3))
    return made


def test_a_first_token_takes_the_prompt_the_transfer_and_a_step_of_the_decode_replica() -> None:
    prompt = 400
    [alone] = served([request(0, 0.0, prompt, 5)], BOTH)
    [apart] = served([request(0, 0.0, prompt, 5)], DECODE, PREFILL)
    last = STEP.step(1, 0, 0, prompt - 0.5)  # the prompt's last token
    assert apart.ttft_s - alone.ttft_s == pytest.approx(transfer_s(prompt, KV_BYTES) + last, rel=1e-6)
    assert apart.ttlt_s - apart.ttft_s == pytest.approx(alone.ttlt_s - alone.ttft_s, rel=1e-9)


def test_long_prompts_do_not_slow_an_answer_that_is_written_elsewhere() -> None:
    work = [request(0, 0.0, 100, 200), *(request(n, 0.2 * n, 4000, 1) for n in range(1, 10))]
    together, apart = served(work, BOTH)[0], served(work, DECODE, PREFILL)[0]
    alone = served(work[:1], BOTH)[0]
    assert together.ttlt_s > 1.5 * alone.ttlt_s
    assert apart.ttlt_s < 1.1 * alone.ttlt_s


def test_prompts_that_come_together_go_to_the_prefill_replica_with_least_to_do() -> None:
    work = [request(0, 0.0, 4000, 2), request(1, 0.0, 500, 2), request(2, 0.0, 500, 2)]
    one, two = served(work, DECODE, PREFILL), served(work, DECODE, PREFILL, PREFILL)
    assert one[1].ttft_s > one[0].ttft_s, "behind the long prompt"
    assert two[1].ttft_s < two[2].ttft_s < two[0].ttft_s, "both short ones on the other replica"


@pytest.mark.parametrize("credit", [None, 1500])
@pytest.mark.parametrize("signal_s", [0.0, 0.005])
def test_all_are_served_and_nothing_is_left_of_room_credit_or_legs(credit: int | None, signal_s: float) -> None:
    work = overload(200)
    prefill = replace(PREFILL, prefill_tokens=credit)
    replay = pool(DECODE, DECODE, prefill, prefill, signal_s=signal_s)
    outcomes = replay.run(work)
    assert [outcome.index for outcome in outcomes] == list(range(len(work)))
    assert not any(outcome.refused for outcome in outcomes)
    assert all(outcome.wait_s < outcome.ttft_s <= outcome.ttlt_s for outcome in outcomes)
    for backend in replay.view.backends.values():
        assert (backend.running, backend.kv_used, backend.prefill_used) == (0, 0, 0)
    for engine in replay.engines:
        assert (engine.decodes, len(engine.live), len(engine.admitted)) == (0, 0, 0)
    computed = [engine.counters.prefill_tokens for engine in replay.engines]
    assert sum(computed[2:]) == sum(one.input_tokens for one in work)
    assert sum(computed[:2]) == len(work), "of each prompt its last token"


def test_a_decode_replica_has_its_share_of_what_prefill_replicas_have() -> None:
    fixed = replace(PREFILL, prefill_tokens=900)
    shares = [b.prefill_credit for b in pool(DECODE, DECODE, DECODE, fixed, fixed).view.backends.values()]
    assert shares == [600, 600, 600]
    found = replace(PREFILL, prefill_tokens=None)
    replay = pool(DECODE, found, signal_s=0.005)
    before = replay.view.backends["0"].prefill_credit
    replay.run([request(n, n / 60, 200, 2) for n in range(900)])
    assert replay.view.backends["0"].prefill_credit > before > 0, "it grows while that one's steps are not full"


def test_credit_is_what_bounds_prompts_on_their_way() -> None:
    """The second prompt is granted when the first is computed, not when its answer ends."""
    work = [request(0, 0.0, 2000, 400), request(1, 0.0, 2000, 2)]
    first, second = served(work, DECODE, replace(PREFILL, prefill_tokens=2000))
    assert first.ttft_s < second.ttft_s < first.ttlt_s
    assert second.wait_s > 0.9 * first.ttft_s - transfer_s(2000, KV_BYTES)


def test_an_empty_queue_of_the_decode_replica_says_nothing_of_a_whole_answers_prompt() -> None:
    """Its leg is longer than a look at the engines' queues is away; its credit is given back once, when it is over."""
    work = [request(0, 0.0, 30_000, 2, whole=True), request(1, 0.1, 30_000, 2, whole=True)]
    replay = pool(DECODE, replace(PREFILL, prefill_tokens=30_000), signal_s=0.005)
    first, second = replay.run(work)
    assert first.ttft_s > 3.0, "looks came while it was computed"
    assert second.arrival_s + second.wait_s > 0.95 * first.ttft_s, "granted when the first was computed"
    assert replay._credit.held == [0, 0]


@pytest.mark.parametrize("replicas", [(PREFILL, DECODE), (DECODE,), (BOTH, PREFILL)])
def test_a_pool_that_could_not_serve_so_is_refused(replicas: tuple[Replica, ...]) -> None:
    with pytest.raises(ValueError, match="prefill replica"):
        pool(*replicas)
