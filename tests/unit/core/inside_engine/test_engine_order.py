"""The policy's order as the number that engines order by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.inside_engine.order import BANDS, STEP_S, STEPS, EngineOrder, engine_order
from scheduling.core.policies.order.hybrid import Hybrid
from scheduling.core.policies.registry import orderings
from scheduling.core.types import QueuedRequest, ServiceClass
from scheduling.engines.simulated.engine import Engine, EngineLimits, Sequence
from tests.support.state_world import pool_spec

NOW_S = 1_795_000_000.0
PLAIN = QueuedRequest(
    "r", 1, NOW_S, "e", "t", "standard", 1, 1.0, ServiceClass.ELASTIC, 100, 64, 50.0, 164, ttft_deadline_s=NOW_S + 2.0
)
RANKS = (0, 1, 7)


def order(policy: str = "unified") -> EngineOrder:
    return engine_order(pool_spec(policy=policy), RANKS)


def test_an_urgent_request_goes_before_an_early_one_that_has_time() -> None:
    early = replace(PLAIN, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 60.0)
    urgent = replace(PLAIN, arrival_s=NOW_S + 5.0, ttft_deadline_s=NOW_S + 7.0)
    assert order("edf").priority(urgent) < order("edf").priority(early)
    assert order("unified").priority(urgent) < order("unified").priority(early)
    assert order("fifo").priority(urgent) > order("fifo").priority(early), "each policy tells its own order"


def test_a_long_prompt_of_the_same_deadline_goes_after_a_short_one_under_the_default() -> None:
    assert order().priority(replace(PLAIN, input_tokens=8000)) > order().priority(PLAIN)


@pytest.mark.parametrize("policy", ["shortest", "srpf", "gittins", "mean_cost", "mean_remaining"])
def test_a_cheap_request_goes_first_and_a_dear_one_is_not_put_off_for_ever(policy: str) -> None:
    cheap, dear = (replace(PLAIN, input_tokens=i, output_tokens=o) for i, o in ((10, 10.0), (8000, 4000.0)))
    told = order(policy)
    assert told.priority(cheap) < told.priority(dear)
    assert told.priority(replace(cheap, arrival_s=NOW_S + 600.0)) > told.priority(dear)


MOMENTS = st.floats(min_value=1.7e9, max_value=1.9e9)
REQUESTS = st.builds(
    replace, st.just(PLAIN), rank=st.sampled_from([*RANKS, 500]), arrival_s=MOMENTS,
    ttft_deadline_s=st.none() | MOMENTS, ttlt_deadline_s=st.none() | MOMENTS,
    input_tokens=st.integers(0, 10**9), output_tokens=st.floats(0, 1e9),
    client_priority=st.integers(-(10**6), 10**6), hint_deadline_s=st.none() | MOMENTS,
)  # fmt: skip


@pytest.mark.parametrize("policy", sorted(orderings()))
@given(one=REQUESTS, other=REQUESTS)
def test_under_any_policy_it_fits_an_int32_and_a_better_tier_goes_first(
    policy: str, one: QueuedRequest, other: QueuedRequest
) -> None:
    told = order(policy)
    first, second = told.priority(one), told.priority(other)
    assert 0 <= first < 2**31
    if one.rank < other.rank:
        assert first < second


@pytest.mark.parametrize("policy", sorted(orderings()))
@given(one=REQUESTS, wish=REQUESTS)
def test_under_any_policy_no_wish_of_a_client_moves_it(policy: str, one: QueuedRequest, wish: QueuedRequest) -> None:
    wished = replace(one, client_priority=wish.client_priority, hint_deadline_s=wish.hint_deadline_s)
    assert order(policy).priority(wished) == order(policy).priority(one)


@given(one=REQUESTS, later_s=st.floats(0.0, 1e4))
def test_within_a_tier_it_is_the_order_of_the_policys_own_key(one: QueuedRequest, later_s: float) -> None:
    policy = Hybrid()
    one = replace(one, ttft_deadline_s=NOW_S, input_tokens=one.input_tokens % 100_000)
    other = replace(one, ttft_deadline_s=NOW_S + later_s)
    told = order("hybrid")
    keys = policy.key(one) <= policy.key(other)
    turns = int(policy.key(one)[0] / STEP_S) // STEPS != int(policy.key(other)[0] / STEP_S) // STEPS
    assert turns or keys == (told.priority(one) <= told.priority(other))


def test_more_ranks_than_bands_share_the_last() -> None:
    told = engine_order(pool_spec(), range(100))
    assert told.priority(replace(PLAIN, rank=BANDS - 1)) == told.priority(replace(PLAIN, rank=99))
    assert told.priority(replace(PLAIN, rank=BANDS - 2)) < told.priority(replace(PLAIN, rank=BANDS - 1))


def served(*requests: QueuedRequest, heeds: bool) -> list[str]:
    """The order in which a simulated engine with one slot serves what stands in its own queue."""
    engine = Engine(EngineLimits(1, 4096, 2048, 4096, priority_scheduling=heeds))
    told, done, now_s = order(), [], 0.0
    sequences = {
        id(s): r.id for r in requests for s in [Sequence(16, 1, priority=told.priority(r))] if not engine.add(s, 0)
    }
    while len(done) < len(requests):
        step = engine.plan(now_s)
        assert step is not None
        now_s += 0.01
        done += [sequences[id(seq)] for seq in engine.complete(step, now_s)]
    return done


def test_what_stands_in_an_engine_that_heeds_priority_is_served_in_the_policys_order() -> None:
    batch = replace(PLAIN, id="batch", rank=7, ttft_deadline_s=None, ttlt_deadline_s=NOW_S + 1.0)
    relaxed = replace(PLAIN, id="relaxed", ttft_deadline_s=NOW_S + 9.0)
    urgent = replace(PLAIN, id="urgent", arrival_s=NOW_S + 1.0, ttft_deadline_s=NOW_S + 1.5)
    assert served(batch, relaxed, urgent, heeds=True) == ["urgent", "relaxed", "batch"]
    assert served(batch, relaxed, urgent, heeds=False) == ["batch", "relaxed", "urgent"]
