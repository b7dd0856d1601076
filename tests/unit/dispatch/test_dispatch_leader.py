"""Leadership on virtual time: who leads, until when, and under which epoch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduling.dispatch.leader import Leadership
from scheduling.state.types import Election, StateUnavailable
from tests.reference.pool import ReferencePool
from tests.support.dispatch_world import Floors, Inline, VirtualLoop, on_virtual_time


class Store:
    """The reference model behind the store's signatures; ``down`` plays a Redis that does not answer."""

    pool_id = "p"

    def __init__(self) -> None:
        self.down = False
        self.frozen = False
        self.flush()

    def flush(self) -> None:
        self.reference = ReferencePool("p", lambda: int(asyncio.get_running_loop().time() * 1000))

    async def elect(self, holder: str, floor: int, first_start: bool) -> Election:
        if self.frozen:
            await asyncio.sleep(1.0)
        if self.down or self.frozen:
            raise StateUnavailable("down")
        return self.reference.elect(holder, floor, first_start)

    async def resign(self, holder: str) -> None:
        if self.down:
            raise StateUnavailable("down")
        self.reference.resign(holder)


def stand(store: Store, name: str, floors: Floors) -> Leadership:
    return Leadership(store, name, floors, Inline())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def virtual(test: Any) -> Any:
    def run() -> None:
        on_virtual_time(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_another_takes_over_within_2_s_when_the_leader_dies():
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    assert await first.win() == 1
    keeping = asyncio.create_task(first.keep())
    standing = asyncio.create_task(second.win())
    await asyncio.sleep(60.0)
    assert first.leads
    assert not standing.done()
    keeping.cancel()  # killed: nothing is renewed or given back
    died_s = now()
    assert await standing == 2
    assert now() - died_s <= 2.05  # a lease, and the next look


@virtual
async def test_a_leader_that_resigns_is_followed_at_the_next_look():
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    await first.win()
    standing = asyncio.create_task(second.win())
    await asyncio.sleep(1.4)
    resigned_s = now()
    await first.resign()
    await standing
    assert now() - resigned_s <= 0.25
    assert not first.leads


@virtual
async def test_a_candidate_that_is_told_of_a_resignation_stands_at_once():
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    await first.win()
    standing = asyncio.create_task(second.win())
    await asyncio.sleep(1.4)
    resigned_s = now()
    await first.resign()
    second.given_back()
    assert await standing == 2
    assert now() - resigned_s <= 0.01


@virtual
async def test_a_leader_that_stalled_goes_on_where_nobody_has_led_since():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    assert await leader.win() == 1
    keeping = asyncio.create_task(leader.keep())
    await asyncio.sleep(1.4)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.now += 30.0
    assert not leader.leads
    await asyncio.sleep(0.6)
    assert leader.leads
    assert leader.epoch == 1
    assert not keeping.done(), "the term would end, and what it has learned"
    keeping.cancel()


@virtual
async def test_a_leader_that_stalled_ends_its_term_where_another_has_led():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    await leader.win()
    keeping = asyncio.create_task(leader.keep())
    await asyncio.sleep(1.4)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.now += 30.0
    usurper = store.reference.elect("b", 0, False)
    store.reference.resign("b")
    assert usurper.epoch == 2
    await asyncio.wait_for(keeping, 1.0)
    assert not leader.leads


@virtual
async def test_a_leader_stops_by_itself_before_another_can_be_elected():
    """Redis does not answer this one: it must stop before its lease has ended there."""
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    await first.win()
    real, first._store = store, _Dead()  # type: ignore[assignment]
    keeping = asyncio.create_task(first.keep())
    standing = asyncio.create_task(second.win())
    while not standing.done():
        await asyncio.sleep(0.1)
        assert not (first.leads and real.reference.view().leader == "b")
    assert keeping.done()
    assert not first.leads


class _Dead:
    pool_id = "p"

    async def elect(self, *args: object, **kwargs: object) -> Election:
        await asyncio.sleep(1.0)
        raise StateUnavailable("no answer")


@virtual
async def test_a_leader_that_was_paused_past_its_lease_knows_it_by_its_own_clock():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    await leader.win()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.now += 30.0  # SIGSTOP: the process did nothing, the clock went on
    assert not leader.leads


@virtual
async def test_a_lease_counts_from_before_the_question_however_late_the_answer_comes():
    store = Store()
    leader = stand(store, "a", Floors())
    elect = store.elect

    async def slow(holder: str, floor: int, first_start: bool) -> Election:
        election = await elect(holder, floor, first_start)
        await asyncio.sleep(0.9)
        return election

    store.elect = slow  # type: ignore[method-assign]
    asked_s = now()
    await leader.win()
    assert leader._until <= asked_s + 1.5


@virtual
async def test_a_short_outage_of_redis_does_not_cost_the_leadership():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    await leader.win()
    keeping = asyncio.create_task(leader.keep())
    await asyncio.sleep(2.4)
    store.down = True
    await asyncio.sleep(0.9)
    store.down = False
    await asyncio.sleep(30.0)
    assert leader.leads
    assert leader.epoch == 1
    keeping.cancel()


@virtual
async def test_an_epoch_is_never_given_again_although_redis_lost_its_state():
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    epochs = [await first.win()]
    standing = asyncio.create_task(second.win())  # it looks at the floor while that is still 1
    await asyncio.sleep(2.5)
    standing.cancel()
    for _ in range(3):
        store.flush()
        epochs.append(await first.win())
    await first.resign()
    store.flush()
    epochs.append(await second.win())
    assert epochs == sorted(set(epochs)), epochs


@virtual
async def test_losing_the_state_ends_the_term_at_the_next_renewal():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    await leader.win()
    store.flush()
    await asyncio.wait_for(leader.keep(), 5.0)
    assert not leader.leads
    assert await leader.win() > 1


@virtual
async def test_only_the_very_first_start_admits_at_once():
    store, floors = Store(), Floors()
    leader = stand(store, "a", floors)
    await leader.win()
    assert store.reference.view().rebuilding_ms == 0
    store.flush()
    await leader.win()
    assert store.reference.view().rebuilding_ms > 0


@virtual
async def test_a_new_process_knows_from_the_database_that_an_empty_redis_is_a_lost_one():
    store = Store()
    leader = stand(store, "a", Floors({"p": 7}))
    assert await leader.win() == 8
    assert store.reference.view().rebuilding_ms > 0


@virtual
async def test_without_the_database_a_leader_leads_and_the_floor_is_written_when_it_is_back():
    store, floors = Store(), Floors(down=True)
    leader = stand(store, "a", floors)
    assert await leader.win() == 1
    keeping = asyncio.create_task(leader.keep())
    await asyncio.sleep(10.0)
    floors.down = False
    await asyncio.sleep(5.0)
    assert floors.rows == {"p": 1}
    keeping.cancel()


def test_an_outage_of_the_database_is_one_line_and_its_end_another(caplog):
    @virtual
    async def scene():
        floors = Floors(down=True)
        leader = stand(Store(), "a", floors)
        await leader.win()
        keeping = asyncio.create_task(leader.keep())
        await asyncio.sleep(60.0)
        floors.down = False
        await asyncio.sleep(10.0)
        keeping.cancel()

    with caplog.at_level("INFO", logger="quartermaster.dispatch"):
        scene()
    assert [("does not keep" in line, "keeps" in line) for line in caplog.messages] == [(True, False), (False, True)]


@virtual
async def test_followers_ask_four_times_a_second():
    store, floors = Store(), Floors()
    first, second = stand(store, "a", floors), stand(store, "b", floors)
    await first.win()
    keeping = asyncio.create_task(first.keep())
    asked = []
    elect = store.elect

    async def counted(holder: str, floor: int, first_start: bool) -> Election:
        asked.append(holder)
        return await elect(holder, floor, first_start)

    store.elect = counted  # type: ignore[method-assign]
    standing = asyncio.create_task(second.win())
    await asyncio.sleep(60.0)
    assert asked.count("b") == pytest.approx(240, abs=4)
    assert asked.count("a") == pytest.approx(120, abs=4)
    keeping.cancel()
    standing.cancel()
