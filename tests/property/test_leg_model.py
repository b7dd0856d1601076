"""Law: the scripts of legs and their reference model are one machine, and a leg never outlives its lease.

Random walks over leases (admit, finish, requeue), legs (take, end) and the prefill replicas that are ready; each answer
of the real scripts is compared with the model's. The broken variants show that the walks would notice.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduling.core.outcomes import Reason
from scheduling.state.resp import RespConnection
from scheduling.state.script import load_scripts, make_script
from scheduling.state.store import PoolStore
from tests.reference.pool import ReferencePool
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request

POOL = pool_spec()
ACME = entitlement("acme", concurrency=100)
REPLICAS = ("p1", "p2", "p3")
IDS = tuple(f"r{i}" for i in range(30))


class Walk:
    """Each move on the real store and on the model. ``told``: moves that had something to say."""

    def __init__(self, store: PoolStore) -> None:
        self.store, self.model = store, ReferencePool("p", lambda: 1_700_000_000_000)
        self.attempts: dict[str, int] = {}
        self.told = 0

    async def begin(self) -> None:
        self.epoch = (await self.store.elect("leader", 0, first_start=True)).epoch
        assert self.model.elect("leader", 0, True).epoch == self.epoch
        for side in (self.store, self.model):
            done = side.set_ready(self.epoch, "d1", backend("d1", slots=100, kv_tokens=10**6))
            if done is not None:
                await done

    async def move(self, rng: random.Random) -> None:
        name, attempt = (one := rng.choice(IDS)), self.attempts.get(one, 1)
        what = rng.choice(("admit", "take", "take", "end", "finish", "requeue", "ready"))
        if what == "admit" and name not in self.attempts:
            est = estimate()
            asked = (ACME, POOL, request(name, ACME, est), est, 100, FACTS)
            assert (await self.store.admit(*asked)).backend == self.model.admit(*asked).backend == "d1"
            self.attempts[name] = 1
        elif what == "take":
            tokens, exclude = rng.randrange(1, 4), rng.choice(("", "p1"))
            attempt += rng.random() < 0.2
            there = await self.store.take_leg(name, attempt, tokens, exclude)
            assert there == self.model.take_leg(name, attempt, tokens, exclude)
            assert there == await self.store.take_leg(name, attempt, tokens, exclude), "asked again"
            self.told += bool(there)
        elif what == "end":
            attempt += rng.randrange(2)
            self.store.tell_end_leg(name, attempt)
            self.model.end_leg(name, attempt)
        elif what == "finish" and name in self.attempts:
            record = ledger(name)
            await self.store.finish(name, attempt, Reason.STOP, 10, True, record)
            self.model.finish(name, attempt, Reason.STOP, 10, True, record)
            self.attempts[name] = 99  # it ended: nothing is done for it any more
        elif what == "requeue" and 0 < attempt < 9 and name in self.attempts:
            est = estimate()
            again = replace(request(name, ACME, est), attempt=attempt)
            moved = await self.store.requeue(again, 100, FACTS, "")
            assert moved.attempt == self.model.requeue(again, 100, FACTS, "").attempt
            self.attempts[name] = moved.attempt
        elif what == "ready":
            slots = {replica: rng.randrange(1, 3) for replica in REPLICAS if rng.random() < 0.7}
            open_now = await self.store.set_prefill(self.epoch, slots)
            assert open_now == self.model.set_prefill(self.epoch, slots)
            assert sum(open_now.values()) <= sum(1 for a in self.attempts.values() if a < 99)


async def walk(store: PoolStore, seed: int, moves: int) -> Walk:
    one, rng = Walk(store), random.Random(seed)
    await one.begin()
    for _ in range(moves):
        await one.move(rng)
    return one


@pytest.mark.parametrize("seed", range(4))
async def test_scripts_and_model_agree_after_every_one_of_three_hundred_moves(pool_store: PoolStore, seed: int) -> None:
    one = await walk(pool_store, seed, 300)
    assert one.told > 10


BROKEN = {
    "a leg that stays when its lease ended": ("take_leg", "if lease and name then", "if name then"),
    "a leg for who holds no lease": ("take_leg", "string.match(text, '^%d+') ~= attempt", "false"),
    "a leg where most is open": ("take_leg", "better = tokens < best_tokens", "better = tokens > best_tokens"),
    "a leg on a full replica": ("take_leg", "(best_full and not full)", "false"),
    "the leg of another attempt ended": ("end_leg", "string.match(text, '^%d+') ~= ARGV[2]", "false"),
    "replicas that are not ready any more": ("set_prefill", "call('DEL', PREFILL)", ""),
}


@pytest.mark.parametrize("fault", BROKEN, ids=str)
async def test_a_walk_notices(resp: RespConnection, pool_id: str, fault: str) -> None:
    name, right, wrong = BROKEN[fault]
    source = load_scripts()[name].text
    assert source.count(right) == 1, f"{name} has no single line {right!r} any more"
    scripts = {**load_scripts(), name: make_script(name, source.replace(right, wrong))}

    async def walks() -> None:
        for seed in range(20):
            await walk(PoolStore(resp, f"{pool_id}-{seed}", scripts=scripts), seed, 200)

    with pytest.raises(AssertionError):
        await walks()
