"""Who has which adapter, and who is asked to load it: against replicas and a store made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduling.core.types import AdapterSpec, PoolSpec
from scheduling.dispatch.replicas import adapters
from scheduling.dispatch.replicas.adapters import AdapterHomes, Candidate
from scheduling.engines.client import EngineModel, EngineRefused, EngineUnreachable
from scheduling.engines.kinds import kind_of
from tests.support.state_world import pool_spec

SQL = AdapterSpec("sql", "demo-sql", "sql-v2", "/adapters/sql")


@dataclass
class Replica:
    listed: list[EngineModel] = field(default_factory=list)
    reachable: bool = True
    refuses: int = 0  # with this status
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def models(self) -> list[EngineModel]:
        if not self.reachable:
            raise EngineUnreachable("GET /v1/models failed: connection refused")
        return self.listed

    async def load_adapter(self, name: str, source: str) -> None:
        self.asked.append((name, source))
        if self.refuses:
            raise EngineRefused("POST /v1/load_lora_adapter", self.refuses, '{"detail":"Not Found"}')
        self.listed.append(EngineModel(name, None, "demo"))


@dataclass
class World:
    """The homes of one pool, with a clock that is set."""

    now_s: float = 100.0
    told: list[Mapping[str, tuple[bool, frozenset[str]]]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    came: int = 0

    def __post_init__(self) -> None:
        self.homes = AdapterHomes(self, 7, self._start, lambda: self.now_s, self._come)  # type: ignore[arg-type]

    async def set_adapters(self, epoch: int, homes: Mapping[str, tuple[bool, Iterable[str]]]) -> None:
        self.told.append({name: (loads, frozenset(replicas)) for name, (loads, replicas) in homes.items()})

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    def _come(self) -> None:
        self.came += 1

    def configure(self, loads: bool = True, *specs: AdapterSpec) -> None:
        self.homes.configure(pool_of(loads, *(specs or (SQL,))), kind_of("vllm"))

    async def settle(self) -> None:
        while self.tasks:
            await self.tasks.pop()

    async def want(self, *candidates: Candidate) -> None:
        self.homes.want([SQL.name], list(candidates))
        await self.settle()


def pool_of(loads: bool, *specs: AdapterSpec) -> PoolSpec:
    return pool_spec(backends=(), adapters=specs, load_adapters=loads)


def candidate(name: str, replica: Replica, running: int = 0, slots: int = 4) -> Candidate:
    return Candidate(name, replica, running, slots)


async def test_what_an_engine_lists_is_what_it_has_and_shared_state_is_told_when_that_changes():
    world, replica = World(), Replica([EngineModel("demo", 4096), EngineModel("sql-v2", None, "demo")])
    world.configure()
    for _ in range(3):
        await world.homes.look("b1", replica)
    await world.settle()
    assert world.homes.of("b1") == {"sql-v2"}
    assert world.told[-1] == {"sql-v2": (False, frozenset({"b1"}))}
    count = len(world.told)
    await world.homes.look("b1", replica)
    assert len(world.told) == count
    replica.listed.pop()
    await world.homes.look("b1", replica)
    assert world.told[-1] == {"sql-v2": (True, frozenset())}


async def test_the_one_with_least_to_do_is_asked_and_only_once():
    world, busy, idle = World(), Replica(), Replica()
    world.configure()
    for name, replica in (("b1", busy), ("b2", idle)):
        await world.homes.look(name, replica)
    both = [candidate("b1", busy, 3), candidate("b2", idle, 1)]
    world.homes.want([SQL.name], both)
    assert world.homes.status("b2").states == {"sql-v2": "loading"}
    await world.want(*both)
    assert (busy.asked, idle.asked) == ([], [("sql-v2", "/adapters/sql")])
    assert world.came == 1
    await world.want(*both)
    assert len(idle.asked) == 1, "it has it, and room"
    await world.want(candidate("b1", busy, 3), candidate("b2", idle, 4))
    assert busy.asked, "the one that has it is full, so another one loads it"


@pytest.mark.parametrize(("loads", "source"), [(False, "/adapters/sql"), (True, "")])
async def test_nothing_is_loaded_where_that_is_not_allowed_or_nobody_said_from_where(loads: bool, source: str):
    world, replica = World(), Replica()
    world.configure(loads, AdapterSpec("sql", "demo-sql", "sql-v2", source))
    await world.homes.look("b1", replica)
    await world.want(candidate("b1", replica))
    assert replica.asked == []
    assert world.told[-1] == {"sql-v2": (False, frozenset())}


async def test_what_could_not_be_loaded_is_asked_for_again_after_pauses_that_double():
    world, replica = World(), Replica(refuses=404)
    world.configure()
    await world.homes.look("b1", replica)
    pauses = []
    for _ in range(8):
        await world.want(candidate("b1", replica))
        asked = len(replica.asked)
        began_s = world.now_s
        while len(replica.asked) == asked:
            assert world.told[-1] == {"sql-v2": (False, frozenset())}
            world.now_s += 5.0
            await world.want(candidate("b1", replica))
        pauses.append(world.now_s - began_s)
        replica.asked.pop()
    assert pauses[:5] == [10.0, 20.0, 40.0, 80.0, 160.0]
    assert max(pauses) == adapters.MAX_PAUSE_S
    why = world.homes.status("b1").why
    assert "sql-v2 could not be loaded from /adapters/sql: POST /v1/load_lora_adapter answered 404" in why
    assert "runtime loading allowed" in why, "and what to do"


async def test_an_engine_that_says_it_has_it_already_is_believed_by_its_list():
    world, replica = World(), Replica(refuses=400)
    world.configure()
    await world.homes.look("b1", replica)
    replica.listed.append(EngineModel("sql-v2", None, "demo"))  # somebody else loaded it meanwhile
    await world.want(candidate("b1", replica))
    assert world.homes.status("b1").states == {"sql-v2": "loaded"}
    assert world.homes.status("b1").why == ""


async def test_a_list_that_cannot_be_read_stands_for_ten_seconds_and_is_unknown_then():
    world, replica = World(), Replica([EngineModel("sql-v2", None)])
    world.configure()
    await world.homes.look("b1", replica)
    replica.reachable = False
    world.now_s += adapters.FRESH_S
    await world.homes.look("b1", replica)
    assert world.homes.of("b1") == {"sql-v2"}
    world.now_s += 1
    await world.homes.look("b1", replica)
    assert world.homes.of("b1") == frozenset()
    assert world.homes.status("b1").states == {"sql-v2": "unknown"}
    assert "connection refused" in world.homes.status("b1").why


async def test_who_waits_in_vain_is_given_up_after_a_moment_and_not_while_anything_is_unknown():
    world, replica = World(), Replica()
    world.configure(False)
    one = [candidate("b1", replica)]

    def given_up() -> set[str]:
        return world.homes.hopeless([SQL.name], one)

    world.now_s += 100
    assert given_up() == set(), "nobody has looked yet"
    await world.homes.look("b1", replica)
    assert given_up() == set()
    world.now_s += adapters.GIVE_UP_S
    assert given_up() == {"sql-v2"}
    assert world.homes.hopeless([SQL.name], []) == set(), "no replica serves: that is another reason"
    replica.listed.append(EngineModel("sql-v2", None))
    await world.homes.look("b1", replica)
    world.now_s += adapters.GIVE_UP_S
    assert given_up() == set()


async def test_the_word_of_the_leader_before_stands_until_every_replica_was_looked_at():
    world = World()
    world.homes.inherit({"b1", "b2"})
    world.configure()
    await world.homes.look("b1", Replica([EngineModel("sql-v2", None)]))
    await world.homes.publish(again=True)
    await world.settle()
    assert world.told == []
    await world.homes.look("b2", Replica())
    assert world.told == [{"sql-v2": (True, frozenset({"b1"}))}]


async def test_a_replica_that_serves_no_more_has_nothing():
    world = World()
    world.configure()
    await world.homes.look("b1", Replica([EngineModel("sql-v2", None)]))
    world.homes.forget("b1")
    await world.settle()
    assert world.homes.of("b1") == frozenset()
    assert world.told[-1] == {"sql-v2": (False, frozenset())}


async def test_a_pool_without_adapters_says_nothing_and_one_that_loses_its_last_says_so_once():
    world, replica = World(), Replica([EngineModel("sql-v2", None)])
    world.homes.configure(pool_of(True), kind_of("vllm"))
    await world.homes.look("b1", replica)
    assert world.told == []
    world.configure()
    await world.homes.look("b1", replica)
    world.homes.configure(pool_of(True), kind_of("vllm"))
    await world.settle()
    assert world.told[-1] == {}
