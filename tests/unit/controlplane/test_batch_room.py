"""How many lines of batches run beside people, and how many where nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from controlplane.batches.room import LATE_S, PRESENT_S, Lateness, PoolRoom, Room
from scheduling.core.admission.batch_account import GATHERED, kept_for_people, lines_beside
from scheduling.core.engine.step_time import StepTime, load_preset
from scheduling.state.store import PoolStore
from scheduling.state.types import BackendTotals, Look, StateUnavailable

A100 = load_preset("llama-3-8b-a100").step_time
SLOWDOWN = 0.05
MOST = 256


def room(steps: Sequence[StepTime] = (A100, A100), lateness: Lateness | None = None) -> PoolRoom:
    made = PoolRoom(SLOWDOWN, lateness or Lateness(), MOST)
    made.steps_take(steps)
    return made


@pytest.mark.parametrize(("prompt", "output"), [(20, 10), (100, 400), (8, 1), (3000, 300)])
def test_lines_beside_people_make_a_step_longer_by_no_more_than_they_may(prompt: float, output: float):
    lines = lines_beside(A100, prompt, output, SLOWDOWN)

    def step(lines: int) -> float:
        """On average: each line has a token in it, and its part of its prompt."""
        share = prompt / output
        return A100.step(lines * share, 1 + lines, lines * (prompt + output / 2), lines * share * prompt / 2)

    allowed = A100.step(0, 1) * (1 + SLOWDOWN)
    assert step(lines) <= allowed or lines == 1
    assert step(lines + 1) > allowed


@pytest.mark.parametrize("count", range(14))
def test_one_replica_of_every_four_has_lines_and_the_others_are_kept_for_people(count: int):
    replicas = {f"b{n:02}": 1000 for n in range(count)}
    kept = kept_for_people(replicas)
    assert len(kept) == count - -(-count // GATHERED)
    assert sorted(kept) == sorted(replicas)[: len(kept)], "those that idle requests go to first"


def test_lines_run_where_there_is_most_room():
    assert kept_for_people({"a": 9000, "b": 1000, "c": 1000}) == {"b", "c"}


def test_a_single_replica_is_kept_for_nobody():
    assert kept_for_people({"a": 1000}) == kept_for_people({}) == frozenset()


def test_one_line_runs_however_long_it_is():
    assert lines_beside(A100, 8000, 1, 0.0) == 1


def test_beside_people_all_replicas_together_have_room_for_so_many():
    here = room()
    here.learn(20, 10)
    here.looked(1, 100.0)
    assert here.most(100.0) == 2 * lines_beside(A100, 20, 10, SLOWDOWN)
    here.running = here.most(100.0) or 0
    assert not here.may_start(100.0)


def test_after_a_while_without_people_lines_take_idle_capacity_and_give_way_to_the_first_request():
    here = room()
    here.learn(20, 10)
    here.looked(1, 100.0)
    here.looked(0, 101.0)
    assert here.most(100.0 + PRESENT_S - 0.1) is not None
    assert here.most(100.0 + PRESENT_S) is None
    here.looked(1, 500.0)
    assert here.most(500.0) is not None


def test_replicas_are_kept_for_people_as_long_as_they_are_there():
    here = room()
    here.replicas_are({"b0": 1000, "b1": 1000}, 256)
    assert here.kept(0.0) == {"b0"}, "not looked yet"
    here.looked(1, 100.0)
    assert here.kept(100.0 + PRESENT_S - 0.1) == {"b0"}
    assert here.kept(100.0 + PRESENT_S) == ()
    here.looked(1, 500.0)
    assert here.kept(500.0) == {"b0"}
    here.replicas_are({"b1": 1000}, 128)
    assert here.kept(500.0) == frozenset(), "the other one is gone"


def test_where_it_is_not_known_whether_people_wait_they_are_taken_to():
    here = room()
    assert here.most(1e6) == 2  # not looked yet, and the length of a line is not known
    here.looked(0, 0.0)
    here.looked(None, PRESENT_S)
    assert here.most(PRESENT_S + 1) is not None


def test_where_no_step_was_measured_one_line_runs():
    here = room(steps=())
    here.learn(20, 10)
    here.looked(1, 0.0)
    assert here.most(0.0) == 1


def test_a_process_that_waits_for_its_processor_runs_fewer_lines_with_and_without_people():
    late = Lateness()
    here = room(lateness=late)
    here.learn(20, 10)
    here.looked(1, 0.0)
    quiet = here.most(0.0)
    assert quiet is not None
    for _ in range(1000):
        late.saw(2 * LATE_S)
    assert here.most(0.0) == pytest.approx(quiet / 2, abs=1)
    here.replicas_are({"b0": 1000}, 100)
    assert here.most(PRESENT_S) == pytest.approx(50, abs=1)
    for _ in range(1000):
        late.saw(10.0)
    assert here.most(0.0) == here.most(PRESENT_S) == 1
    for _ in range(2000):
        late.saw(0.0)
    assert here.most(0.0) == quiet


def test_a_process_that_is_a_little_late_runs_a_little_less_for_as_long_as_it_is():
    late = Lateness()
    here = room(lateness=late)
    here.looked(0, 0.0)
    here.replicas_are({"b0": 1000}, 40)
    for _ in range(1000):
        late.saw(1.25 * LATE_S)
    for tick in range(400):  # lines of two seconds; four looks a second, the first a minute after nobody was there
        here.running -= here.running // 8
        while here.may_start(PRESENT_S + tick / 4):
            here.running += 1
    assert here.running == pytest.approx(40 / 1.25, abs=1)


@pytest.mark.parametrize(("accounts", "able"), [(0, MOST), (1, MOST), (3, 3 * MOST), (9, 2000)])
def test_a_late_process_runs_less_of_what_the_accounts_may_and_slots_are_there_for(accounts: int, able: int):
    late = Lateness()
    here = room(lateness=late)
    here.looked(0, 0.0)
    here.replicas_are({"b0": 1000}, 2000)
    here.accounts.update(f"e{n}~batch" for n in range(accounts))
    for _ in range(1000):
        late.saw(2 * LATE_S)
    assert here.most(PRESENT_S) == pytest.approx(able / 2, abs=2)


class _Store:
    """Says who runs in a pool."""

    def __init__(self, running: int, lines: int) -> None:
        self.running, self.lines = running, lines
        self.away = False
        self.replicas: tuple[str, ...] = ("b",)
        self.asked: list[list[str]] = []

    async def look(self, accounts: list[str]) -> Look:
        self.asked.append(accounts)
        if self.away:
            raise StateUnavailable("away")
        idle = BackendTotals(True, 128, 0, 0, 0, 0)
        backends = dict.fromkeys(self.replicas, idle) | {self.replicas[0]: replace(idle, running=self.running)}
        return Look(0, 0, backends, {accounts[0]: self.lines}, requests=self.running)


async def _watched(made: Room, store: _Store, until_asked: int) -> None:
    watching = asyncio.create_task(made.watch(lambda _: cast(PoolStore, store)))
    async with asyncio.timeout(30):
        while len(store.asked) < until_asked:
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_lines_of_batches_are_not_taken_for_people():
    made = Room(lambda pool: [A100], SLOWDOWN, MOST)
    pool = made.of("p")
    pool.accounts["e~batch"] += 1
    pool.learn(20, 10)
    pool.looked(0, -PRESENT_S)  # the first look, long ago
    alone = _Store(running=7, lines=7)
    await _watched(made, alone, 3)
    assert alone.asked[0] == ["e~batch"]
    now = asyncio.get_running_loop().time()
    assert pool.may_start(now)
    assert pool.most(now) is None or made._lateness.share < 1.0
    await _watched(made, _Store(running=8, lines=7), 3)
    assert pool.most(asyncio.get_running_loop().time()) is not None


async def test_which_replicas_are_ready_is_seen_by_the_look_for_people():
    made = Room(lambda pool: [A100], SLOWDOWN, MOST)
    made.of("p").accounts["e~batch"] += 1
    assert made.kept("p") == frozenset()
    store = _Store(running=8, lines=7)
    store.replicas = ("b0", "b1", "b2")
    await _watched(made, store, 3)
    assert made.kept("p") == {"b0", "b1"}
    assert made.kept("another") == frozenset()


async def test_without_shared_state_people_are_taken_to_be_there_and_steps_that_cannot_be_read_stay():
    def broken(pool: str) -> Sequence[StepTime]:
        raise OSError("no database")

    made = Room(broken, SLOWDOWN, MOST)
    pool = made.of("p")
    pool.steps_take([A100])
    pool.accounts["e~batch"] += 1
    pool.learn(20, 10)
    pool.looked(0, -PRESENT_S)
    store = _Store(0, 0)
    store.away = True
    await _watched(made, store, 3)
    most = pool.most(asyncio.get_running_loop().time())
    assert most is not None
    assert 1 <= most <= lines_beside(A100, 20, 10, SLOWDOWN)


def test_the_next_task_knows_who_was_there_and_counts_its_lines_anew():
    made = Room(lambda pool: [A100], SLOWDOWN, MOST)
    pool = made.of("p")
    pool.looked(0, 0.0)
    pool.running = 9
    pool.accounts["e~batch"] += 1
    made.begin()
    assert (pool.running, pool.accounts.total()) == (0, 0)
    assert made.of("p") is pool
    assert pool.most(PRESENT_S) is None
