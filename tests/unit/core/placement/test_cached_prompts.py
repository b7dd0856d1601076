"""What of a prompt is believed to be cached, and that nobody is given up for work that need not be done."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.uncounted import Beginnings
from scheduling.core.placement.cached_prompts import ENOUGH, CacheTrust, believed, counted_of, counted_on, uncounted_of
from scheduling.core.placement.rule import PrefixIndex, Warmth, read_points, write_points
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.contracts import KnowsCaches
from scheduling.core.policies.registry import make_routing
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import BackendView, QueuedRequest
from scheduling.simulator.prefix_cache import prefixes_of
from scheduling.simulator.workload import BLOCK_TOKENS
from tests.support.scheduling_world import backend_view, pool_view, waiting

BLOCKS = tuple(range(16))


def prompt(number: int, blocks: tuple[int, ...], **changes: object) -> QueuedRequest:
    tokens = len(blocks) * BLOCK_TOKENS
    made = waiting(number, f"t{number}", input_tokens=tokens, prefixes=prefixes_of(blocks, tokens))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_router_that_places_by_prefixes_knows_what_is_cached():
    router = make_routing("prefix_affinity").router()
    assert isinstance(router, KnowsCaches)

    def cached(request: QueuedRequest) -> int:
        warmth = router.warmth(request)  # type: ignore[attr-defined]
        return 0 if warmth is None else warmth.most_cached

    first = prompt(1, BLOCKS)
    assert cached(first) == 0
    chosen = router.choose(first, [backend_view(kv_tokens=10**6)])
    goes_on = prompt(2, (*BLOCKS, 90, 91, 92, 93))
    assert 0.7 * first.input_tokens <= cached(goes_on) <= goes_on.input_tokens
    assert router.warmth(goes_on).cached(chosen.id) == cached(goes_on)  # type: ignore[attr-defined, union-attr]
    assert router.warmth(goes_on).cached("another") == 0  # type: ignore[attr-defined, union-attr]
    assert cached(prompt(3, (50, 51, 52))) == 0
    assert cached(waiting(4)) == 0
    assert not isinstance(make_routing("least_work").router(), KnowsCaches)


def test_as_much_counts_as_cached_as_engines_were_found_to_bear_out():
    trust = CacheTrust()
    assert trust.per_mille == 0
    trust.seen(ENOUGH - 1, ENOUGH, 9000, 9000)
    assert trust.per_mille == 0, "too little to tell"
    trust.seen(50 * ENOUGH, 100 * ENOUGH, 30 * ENOUGH, 120 * ENOUGH)
    assert 490 < trust.per_mille < 530, "half of the prompts was expected, a quarter was found"
    for _ in range(30):
        trust.seen(0, 0, 999, 999)
    assert 490 < trust.per_mille < 530, "nothing was expected meanwhile"
    for _ in range(30):
        trust.seen(ENOUGH, ENOUGH, 0, ENOUGH)
    assert trust.per_mille < 10, "it evicts what was expected"
    for _ in range(30):
        trust.seen(ENOUGH, 9 * ENOUGH, ENOUGH, ENOUGH)
    assert trust.per_mille == 1000, "never more than was expected"


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=50, max_size=80),
    st.floats(0.5, 2.0),
)
def test_what_counts_of_all_prompts_is_the_share_that_engines_compute(
    prompts: list[tuple[int, float, float]], tokens: float
):
    """Whatever is expected, and however many tokens an engine counts where we expect one."""
    sizes = [(size, int(e * size), int(f * e * size)) for size, e, f in prompts]
    asked, expected, found = (sum(one[i] for one in sizes) for i in range(3))
    trust = CacheTrust()
    for _ in range(30):
        trust.seen(ENOUGH * expected, ENOUGH * asked, ENOUGH * found * tokens, ENOUGH * asked * tokens)
    counted = sum(size - believed(size, e, e, trust.per_mille) for size, e, _ in sizes)
    computed = asked - found
    assert computed - len(sizes) <= counted <= computed + 2 * len(sizes) + asked / 500


@pytest.mark.parametrize("skew", [0.0, 1.0, 98_304.0, 2.0**53 + 2, 1e17, 1e300])
def test_scripts_can_tell_by_which_rule_points_are_worth_what_they_are(skew: float):
    """Lua's numbers have 53 bits."""
    for goes_on in (True, False):
        text = write_points(skew, [("0" * 12, 7)], goes_on)
        told, _ = read_points(text)
        assert (float(told) % 2 == 0) is goes_on


@pytest.mark.parametrize(("tokens", "expected", "trust", "cached"), [
    (0, 50, 1000, 0), (1, 50, 1000, 0), (100, 0, 1000, 0), (100, 50, 0, 0), (100, 50, 500, 25), (100, 500, 1000, 99),
])  # fmt: skip
def test_something_of_every_prompt_is_computed(tokens: int, expected: int, trust: int, cached: int):
    assert believed(tokens, expected, expected, trust) == cached
    assert replace(waiting(1), input_tokens=tokens, uncounted_tokens=cached).prefill_tokens == tokens - cached


@pytest.mark.parametrize(("before", "expected", "trust", "cached"), [
    (4096, 4181, 979, 4093), (4096, 4181, 1000, 4096), (4096, 6000, 1000, 4096), (4096, 6000, 500, 3000),
])  # fmt: skip
def test_what_is_expected_behind_a_point_is_no_reason_to_doubt_what_is_before_it(
    before: int, expected: int, trust: int, cached: int
):
    """Engines find what is before it and not the half behind it, so less than all is borne out; and none of that half
    is believed."""
    assert believed(10_000, before, expected, trust) == cached


def known_at(view: BackendView, request: QueuedRequest) -> Warmth:
    """As if a prompt with this beginning had run there."""
    index = PrefixIndex()
    index.ran(request.prefixes, view.id)
    warmth = index.warmth(request.prefixes)
    assert warmth is not None
    return warmth


def test_what_is_cached_need_not_count_on_the_replica_that_has_it_as_far_as_that_is_believed_and_bounded():
    request = prompt(1, BLOCKS)
    tokens = request.input_tokens
    view = backend_view(kv_tokens=10**6, prefill_credit=1000, cache_trust=1000, uncounted_most=10**6)
    warmth = known_at(view, request)
    cached = warmth.cached(view.id)
    assert 0.7 * tokens < cached <= tokens
    assert counted_of(view, tokens, warmth) == tokens - min(cached, tokens - 1)
    assert counted_of(replace(view, id="another"), tokens, warmth) == tokens, "there it would be computed"
    assert counted_of(replace(view, cache_trust=500), tokens, warmth) == tokens - cached // 2
    view.uncounted = view.uncounted.with_one("another", 100)
    assert counted_of(replace(view, uncounted_most=300), tokens, warmth) == tokens - 200
    assert counted_of(replace(view, uncounted_most=100), tokens, warmth) == tokens
    view.uncounted = view.uncounted.without_one("another")
    assert counted_of(replace(view, uncounted_most=0), tokens, warmth) == tokens - min(cached, tokens - 1), "alone"
    assert counted_of(replace(view, prefill_credit=0), tokens, warmth) == tokens, "there is nothing to count against"
    assert counted_of(view, tokens, None) == tokens
    counted = counted_on(view, request, warmth)
    assert (counted.uncounted_point, counted.prefill_tokens) == (
        warmth.points[view.id][0],
        counted_of(view, tokens, warmth),
    )
    assert counted_on(view, request, None) is request


def test_what_prompts_in_flight_share_counts_once_against_the_bound():
    view = backend_view(kv_tokens=10**6, prefill_credit=1000, cache_trust=1000, uncounted_most=5000)
    first, other = prompt(1, BLOCKS), prompt(2, tuple(range(100, 116)))
    warmth, of_other = known_at(view, first), known_at(view, other)
    for number in range(7):
        alike = counted_on(view, replace(first, id=f"alike-{number}"), warmth)
        view.take_prefill(alike, owned=False)
    whole = alike.uncounted_tokens
    assert view.uncounted.tokens == whole > 5000, "it is alone"
    assert uncounted_of(view, other.input_tokens, of_other) == (of_other.points[view.id][0], 0), "as much as may be"
    for _ in range(6):
        view.give_prefill(alike, owned=False)
    assert view.uncounted.tokens == whole, "one still has it"
    view.give_prefill(counted_on(view, first, warmth), owned=False)
    assert (view.uncounted.tokens, view.uncounted.held) == (0, {})
    assert uncounted_of(view, other.input_tokens, of_other)[1] > 5000


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 900), st.booleans()), max_size=60), st.integers(0, 2000)
)
def test_no_more_than_the_bound_or_one_beginning_is_in_flight_uncounted(moves: list[tuple[str, int, bool]], most: int):
    there, held = Beginnings(), list[str]()
    for point, tokens, leaves in moves:
        if leaves and held:
            there = there.without_one(held.pop(tokens % len(held)))
        elif free := there.uncounted(point, tokens, most):
            assert free <= tokens
            there = there.with_one(point, free)
            held.append(point)
        assert 0 <= there.tokens <= most or len(there.held) == 1
        assert {p: n for p, (n, _) in there.held.items()} == Counter(held)
    for point in held:
        there = there.without_one(point)
    there = there.without_one("nobody's")
    assert (there.tokens, there.held) == (0, {})


@pytest.mark.parametrize(("alike", "own"), [(16, 15), (8, 7), (1, 0)])
def test_what_prompts_have_of_their_own_behind_what_they_share_counts_whole(alike: int, own: int):
    """Half of what is between two points is expected to be cached where only the first is known; the prompts of one
    first point may each have another half, though, and in flight it counts once."""
    view = backend_view(kv_tokens=10**6, prefill_credit=1000, cache_trust=1000, uncounted_most=10**6)
    index = PrefixIndex()
    index.ran(prompt(1, BLOCKS[:alike]).prefixes, view.id)
    request = prompt(2, (*BLOCKS[:alike], *range(100, 100 + own), 99))
    warmth = index.warmth(request.prefixes)
    assert warmth is not None
    assert warmth.cached(view.id) == (alike + (own + 1) / 2) * BLOCK_TOKENS
    assert counted_of(view, request.input_tokens, warmth) == (own + 1) * BLOCK_TOKENS


def test_prompts_of_a_known_beginning_are_granted_beside_each_other():
    """And one of which nothing is known waits its turn."""
    scheduler = Scheduler(make_named("fifo"), make_routing("prefix_affinity"))
    bounds = {"slots": 20, "kv_tokens": 10**6, "prefill_credit": 1600}
    scheduler.offer(prompt(0, BLOCKS), 1000.0)
    assert len(scheduler.step(pool_view(backend_view(**bounds)), 1000.0)) == 1
    for number in range(1, 4):
        scheduler.offer(prompt(number, (*BLOCKS, 100 + number)), 1000.0 + number)
    scheduler.offer(prompt(4, tuple(range(200, 217))), 1004.0)
    whole = scheduler.empty()
    for request in scheduler:
        whole.offer(request, 1004.0)
    assert len(whole.step(pool_view(backend_view(**bounds)), 1004.0)) == 1, "nothing is known to it"
    view = pool_view(backend_view(**bounds, cache_trust=1000, uncounted_most=20_000))
    grants = scheduler.step(view, 1004.0)
    assert [grant.request.seq for grant in grants] == [1, 2, 3]
    (backend,) = view.backends.values()
    assert backend.prefill_used == sum(grant.request.prefill_tokens for grant in grants) == 3 * BLOCK_TOKENS
    assert len(backend.uncounted.held) == 1
    assert len(scheduler) == 1


def test_who_looks_at_a_copy_of_a_pool_changes_nothing_of_it():
    """As previews and the check of a decision do."""
    view = backend_view(prefill_credit=1000)
    for copied in (copy(view), replace(view)):
        copied.take_prefill(replace(prompt(1, BLOCKS), uncounted_tokens=100, uncounted_point="a"), owned=False)
        assert (copied.uncounted.tokens, view.uncounted.tokens) == (100, 0)


@pytest.mark.parametrize("policy", ["unified", "relegate+edf", "bands+relegate+hybrid"])
@pytest.mark.parametrize(("routing", "first"), [("prefix_affinity", "known"), ("least_work", "short")])
def test_a_prompt_is_not_given_up_for_what_a_replica_has_cached(policy: str, routing: str, first: str):
    """8,192 tokens at 4,000 a second are 2 s, and it has 1.5 s; what is left beside the cached ones is less."""
    scheduler = Scheduler(make_named(policy), make_routing(routing))
    view = pool_view(backend_view(slots=1, kv_tokens=10**6, prefill_per_s=4_000.0))
    scheduler.offer(prompt(1, BLOCKS, id="before"), 1000.0)
    assert [grant.request.id for grant in scheduler.step(view, 1000.0)] == ["before"]
    view = pool_view(backend_view(slots=1, kv_tokens=10**6, prefill_per_s=4_000.0))
    scheduler.offer(prompt(2, BLOCKS, id="known", ttft_deadline_s=1011.5), 1010.0)
    scheduler.offer(waiting(3, "other", id="short", ttft_deadline_s=1200.0), 1010.0)
    assert [grant.request.id for grant in scheduler.step(view, 1010.0)] == [first]


def test_what_is_cached_is_known_in_every_round_that_is_made_of_another():
    one = Round(pool_view(), lambda request: True, cached=lambda request: 7)
    others = (one, one.asking(lambda request: False), one.counting_misses(), one.counting_misses().asking(one.fits))
    assert [each.cached(waiting(1)) for each in others] == [7, 7, 7, 7]
    assert Round(pool_view(), lambda request: True).cached(waiting(1)) == 0
