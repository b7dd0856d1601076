"""What of a prompt is believed to be cached, and that nobody is given up for work that need not be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.compose import make_named
from scheduling.core.contracts import KnowsCaches
from scheduling.core.placement import cached_for, worth
from scheduling.core.registry import make_routing
from scheduling.core.rounds import Round
from scheduling.core.scheduler import Scheduler
from scheduling.core.types import QueuedRequest
from scheduling.simulator.prefix_cache import BLOCK_TOKENS, prefixes_of
from tests.support.scheduling_world import backend_view, pool_view, waiting

BLOCKS = tuple(range(16))


def prompt(number: int, blocks: tuple[int, ...], **changes: object) -> QueuedRequest:
    tokens = len(blocks) * BLOCK_TOKENS
    made = waiting(number, f"t{number}", input_tokens=tokens, prefixes=prefixes_of(blocks, tokens))
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("cached", [1, 17, 371, 373, 5_000, 100_000])
def test_what_tokens_are_worth_says_how_many_they_are_and_never_more(cached: int, goes_on: bool):
    found = cached_for(worth(cached, goes_on))
    assert found <= cached
    if goes_on is (worth(cached, True) > worth(cached, False)):
        assert found >= 0.98 * cached - 1


def test_a_router_that_places_by_prefixes_knows_what_is_cached():
    router = make_routing("prefix_affinity").router()
    assert isinstance(router, KnowsCaches)
    first = prompt(1, BLOCKS)
    assert router.cached(first) == 0
    router.choose(first, [backend_view(kv_tokens=10**6)])
    goes_on = prompt(2, (*BLOCKS, 90, 91, 92, 93))
    assert 0.7 * first.input_tokens <= router.cached(goes_on) <= goes_on.input_tokens
    assert router.cached(first) < first.input_tokens, "the last token is always computed"
    assert router.cached(prompt(3, (50, 51, 52))) == 0
    assert router.cached(waiting(4)) == 0
    assert not isinstance(make_routing("least_work").router(), KnowsCaches)


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
