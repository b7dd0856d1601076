"""When may a replica that leaves be ended? Against the real scripts: as soon as nothing can be lost, and not before."""

from __future__ import annotations

from dataclasses import replace

from controlplane.scaling.controller import _empty
from scheduling.core.outcomes import Reason
from scheduling.dispatch.ports import Sample
from scheduling.state.store import PoolStore
from scheduling.state.types import AdmissionStatus
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request

ACME = entitlement("acme")


async def test_a_leaving_replica_gets_nothing_new_and_counts_as_empty_when_its_last_lease_is_gone(
    pool_store: PoolStore,
) -> None:
    pool = pool_spec(backends=(backend("b1"), replace(backend("b2"), draining=True)))
    election = await pool_store.elect("leader-1", 0, first_start=True)
    for spec in pool.backends:
        await pool_store.set_ready(election.epoch, spec.id, spec)

    async def admit(name: str) -> str:
        answer = await pool_store.admit(ACME, pool, request(name, ACME, estimate()), estimate(), 300, FACTS)
        assert answer.status is AdmissionStatus.GRANTED
        return answer.backend

    async def empty() -> bool:
        view = (await pool_store.view()).pool_view(0.0)
        return _empty("b2", Sample(0.0, pool, "leader-1", election.epoch, "fifo@1", view, {}, 0.0, {}, []))

    assert not await empty(), "it is still ready: the next request may be put there"
    placed = {await admit(f"r{n}"): f"r{n}" for n in range(2)}
    assert set(placed) == {"b1", "b2"}
    await pool_store.set_ready(election.epoch, "b2", None)
    assert {await admit(f"r{n}") for n in range(2, 5)} == {"b1"}
    assert not await empty(), "a request runs there"
    await pool_store.finish(placed["b2"], 1, Reason.STOP, 10, True, ledger(placed["b2"]))
    assert await empty()
