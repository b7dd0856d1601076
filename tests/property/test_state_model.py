"""Law: the scripts and their Python reference model are one machine, and it leaks nothing.

Random walks (``tests/support/state_model``) over admit, grant, evict, renew, announce, requeue, finish, sweep, elect,
resign, set_ready, set_standing, record and suspect, by entitlements of all five classes; each call also made twice, as
after a lost reply; with time passing, gateways that do not listen for a while, and the state flushed. The broken
variants at the end show that the walks would notice: each is the real script with one protection taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from scheduling.state.script import Script
from tests.support.state_model import (
    BACKENDS,
    ENTITLEMENTS,
    GATEWAYS,
    HOLDERS,
    REASONS,
    REQUESTS,
    WEIGHTS,
    World,
    model_connection,
    timed_scripts,
    variant,
    walk,
)
from tests.support.state_model.broken import BROKEN
from tests.support.state_model.shortest import STEPS, WALKS, broken_scripts, meets, play, read_starts

Make = Callable[..., World]
STARTS = read_starts()


@pytest.fixture
def make_world(redis_url: str) -> Iterator[Make]:
    """Worlds on one connection and one loop of this test, one after the other."""
    with model_connection(redis_url) as (run, resp, ears):
        made: list[World] = []

        def make(scripts: dict[str, Script] | None = None) -> World:
            for last in made:
                last.remove()  # each look at the keys of a pool goes through those of all
            made[:] = [World(run, resp, scripts or timed_scripts(), ears)]
            return made[0]

        yield make
        for last in made:
            last.remove()


@pytest.mark.parametrize("seed", range(6))
def test_scripts_and_reference_model_agree_after_every_one_of_a_thousand_random_moves(make_world: Make, seed: int):
    walk(make_world(), seed, 1000)


@pytest.mark.timeout(600)
def test_the_walks_come_across_every_answer(make_world: Make):
    refusals = "rebuilding no_backend key_limit user_limit concurrency token_budget kv_budget low_priority queue_full"
    refusals += " no_adapter"
    wanted = {("admit", f"refused {reason}") for reason in refusals.split()}
    wanted |= {(move, "handed out") for move in ("admit", "finish", "renew", "requeue")}
    wanted |= {(move, "placed where its adapter is") for move in ("admit", "requeue")}
    wanted |= {("admit", "queued, another one superseded"), ("renew", "e superseded")}
    wanted |= {("admit", "granted, others evicted"), ("sweep", "evicted"), ("renew", "e evicted")}
    wanted |= {("finish", "put right")}
    for move, answers in (
        ("admit", "granted queued"), ("requeue", "granted queued stale"), ("finish", "ok stale"),
        ("grant", "ok gone full ent away fenced"), ("evict", "ok gone full ent away fenced"), ("renew", "h w s u"),
        ("announce", "ok known"),
    ):  # fmt: skip
        wanted |= {(move, answer) for answer in answers.split()}
    ends = {"admit", "requeue", "finish", "renew", "announce"}
    seen: set[tuple[str, str]] = set()
    for seed in range(100, 260):
        world = make_world()
        walk(world, seed, 500)
        seen |= world.seen
        ended = {move for move, answer in seen if answer.startswith(("ended ", "e "))}
        if wanted <= seen and ends <= ended:
            return
    assert wanted <= seen
    assert ends <= ended


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scripts_and_reference_model_agree_over_a_hundred_thousand_random_moves(make_world: Make):
    for seed in range(1000, 1050):
        walk(make_world(), seed, 2000)


STEP_OF_AN_ENGINE = "math.min(LONGEST_STEP_MS, math.ceil(p.step / rate))"


def in_a_step(world: World) -> tuple[int, int]:
    """Two whole answers are granted while their engine is in a step of 93 ms: how much prefill credit its word that
    none waits gives back 20 ms later, and when that step is over. The walks hardly ever ask within such a step."""
    leader, (stream, *whole) = HOLDERS[0], (9, 0, 36)  # requests of one entitlement, which may run three

    def given_back() -> int:
        before = world.reference.totals["b:b1:pre"]
        world.prefilled(leader, "b1", 0, 10, 1.0)  # seen 10 ms ago
        return before - world.reference.totals["b:b1:pre"]

    world.elect(leader, True, False)
    world.set_ready(leader, "b1", 8, False, credit=300, step=100)
    world.admit(stream, False)
    world.pass_time(100)
    world.first_tokens([(stream, 0)], False)  # 108 tokens in 100 ms: its rate
    world.pass_time(1000)
    for n in whole:
        world.admit(n, False)
    held = world.reference.totals["b:b1:pre"]
    assert held == sum(world.estimate_of(n).input_tokens for n in whole), "both are granted"
    world.pass_time(20)
    within = given_back()
    world.pass_time(100)
    return within, given_back()


def test_an_engines_word_says_nothing_of_what_came_while_it_was_in_a_step(make_world: Make):
    within, after = in_a_step(make_world())
    assert within == 0, "it counted its queue before they came"
    assert after == 40, "the first of them is prefilled, the last may be in the middle"


def test_a_script_that_forgets_the_step_an_engine_is_in_is_noticed(make_world: Make):
    scripts = timed_scripts()
    scripts["prefilled"] = variant(scripts["prefilled"], STEP_OF_AN_ENGINE, "0")
    with pytest.raises(AssertionError, match="prefilled"):
        in_a_step(make_world(scripts))


FEWER_BEFORE_IT = "ahead[i] == least"


def beside_others(world: World) -> str:
    """The replica that an owner of reserved capacity is granted where each has others' prompts in it: on the first 40
    tokens are left to prefill and much is to be decoded, on the second 108 are left and there is less to do."""
    leader, decoding, long, short, owners = HOLDERS[0], 9, 34, 10, 40
    world.elect(leader, True, False)
    world.set_ready(leader, "b1", 8, False)
    world.admit(decoding, False)  # it holds no credit, as there is none yet
    for at in ("b1", "b2"):
        world.set_ready(leader, at, 8, False, credit=60)
    for n in (long, short, owners):
        world.admit(n, False)
    held = world.reference.held
    assert [held[f"r{n}"].backend for n in (decoding, long, short)] == ["b1", "b2", "b1"]
    return held[f"r{owners}"].backend


def test_an_owner_that_goes_beside_others_prompts_waits_for_the_fewest_of_their_tokens(make_world: Make):
    assert beside_others(make_world()) == "b1"


def test_a_script_that_puts_an_owner_behind_the_most_tokens_is_noticed(make_world: Make):
    scripts = timed_scripts()
    scripts["admit"] = variant(scripts["admit"], FEWER_BEFORE_IT, "ahead[i] ~= least")
    with pytest.raises(AssertionError, match="admit"):
        beside_others(make_world(scripts))


NUMBERS = st.integers(0, REQUESTS - 1)
OFF = st.sampled_from((0, 0, 0, 1, -1))
HOLDER = st.sampled_from(HOLDERS)
AT = st.sampled_from(BACKENDS)
AGAIN = st.booleans()
NAMES = st.sampled_from([spec.id for spec in ENTITLEMENTS])


class StateMachine(RuleBasedStateMachine):
    """The same moves under hypothesis, which looks for the shortest way to break them."""

    make: Make

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make()

    @initialize()
    def begin(self) -> None:
        self.world.elect(HOLDERS[0], True, False)
        self.world.set_ready(HOLDERS[0], "b1", 2, False)

    @rule(n=NUMBERS, again=AGAIN)
    def admit(self, n: int, again: bool) -> None:
        self.world.admit(n, again)

    @rule(n=NUMBERS, off=OFF, reason=st.sampled_from(REASONS), used=st.integers(0, 500), ran=st.booleans(), again=AGAIN)
    def finish(self, **given: Any) -> None:
        self.world.finish(**given)

    @rule(n=NUMBERS, off=OFF, again=AGAIN)
    def requeue(self, **given: Any) -> None:
        self.world.requeue(**given)

    @rule(holder=HOLDER, picks=st.lists(st.tuples(NUMBERS, AT, OFF), min_size=1, max_size=5), again=AGAIN)
    def grant(self, **given: Any) -> None:
        self.world.grant(**given)

    @rule(holder=HOLDER, picks=st.lists(st.tuples(NUMBERS, st.just(""), OFF), min_size=1, max_size=5), again=AGAIN)
    def evict(self, **given: Any) -> None:
        self.world.evict(**given)

    @rule(
        holder=HOLDER,
        weights=st.dictionaries(NAMES, st.sampled_from(WEIGHTS), min_size=1),
        gone=st.lists(NAMES),
        again=AGAIN,
    )
    def set_standing(self, **given: Any) -> None:
        self.world.set_standing(**given)

    @rule(gateway=st.sampled_from(GATEWAYS), numbers=st.lists(NUMBERS, max_size=8), off=OFF, again=AGAIN)
    def renew(self, **given: Any) -> None:
        self.world.renew(**given)

    @rule(n=NUMBERS, at=st.sampled_from(("", *BACKENDS)), again=AGAIN)
    def announce(self, **given: Any) -> None:
        self.world.announce(**given)

    @rule(numbers=st.lists(NUMBERS, max_size=4), again=AGAIN)
    def record(self, **given: Any) -> None:
        self.world.record(**given)

    @rule(holder=HOLDER, first=st.booleans(), again=AGAIN)
    def elect(self, **given: Any) -> None:
        self.world.elect(**given)

    @rule(
        holder=HOLDER,
        at=AT,
        waiting=st.integers(0, 2),
        age_ms=st.sampled_from((0, 400)),
        hurry=st.sampled_from((0.5, 1.0)),
    )
    def prefilled(self, **given: Any) -> None:
        self.world.prefilled(**given)

    @rule(holder=HOLDER, again=AGAIN)
    def resign(self, **given: Any) -> None:
        self.world.resign(**given)

    @rule(holder=HOLDER, at=AT, slots=st.sampled_from((None, 1, 2, 3)), again=AGAIN, ejected=AGAIN)
    def set_ready(self, **given: Any) -> None:
        self.world.set_ready(**given)

    @rule(holder=HOLDER, count=st.integers(0, 3), again=AGAIN)
    def set_stuck(self, **given: Any) -> None:
        self.world.set_stuck(**given)

    @rule(
        holder=HOLDER,
        backend=AT,
        trust=st.sampled_from((-1, 0, 333, 1000)),
        most=st.sampled_from((0, 25, 10**6)),
        again=AGAIN,
    )
    def set_cached(self, **given: Any) -> None:
        self.world.set_cached(**given)

    @rule(holder=HOLDER, again=AGAIN)
    def sweep(self, **given: Any) -> None:
        self.world.sweep(**given)

    @rule(gateways=st.sets(st.sampled_from(GATEWAYS)), holders=st.sets(HOLDER))
    def listen(self, gateways: set[str], holders: set[str]) -> None:
        self.world.listen(gateways, holders)

    @rule(ms=st.sampled_from((1, 250, 3_000, 6_500, 10_001, 121_000)))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def flush(self) -> None:
        self.world.flush()


def test_hypothesis_finds_no_way_to_make_them_differ(make_world: Make):
    machine = type("Machine", (StateMachine,), {"make": staticmethod(make_world)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None, database=None)
    )


def walk_until_it_fails(make_world: Make, scripts: dict[str, Script]) -> None:
    for seed in range(WALKS):
        walk(make_world(scripts), seed, STEPS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
def test_the_walk_notices_a_script_with(make_world: Make, name: str):
    """Random walks meet each of them, some late: those have the moves stored that show it, and are walked for as well
    where these do not any more (``tests/support/state_model/shortest.py``)."""
    scripts = broken_scripts(name)
    if name in STARTS and meets(make_world(scripts), STARTS[name]):
        return
    with pytest.raises(AssertionError, match=r"seed \d+, step"):
        walk_until_it_fails(make_world, scripts)


def test_the_moves_stored_for_broken_scripts_are_sound(make_world: Make):
    assert STARTS.keys() <= BROKEN.keys()
    for name, moves in STARTS.items():
        try:
            play(make_world(), moves)
        except AssertionError as e:
            raise AssertionError(f"{name}: its moves fail without it: {e}") from e
