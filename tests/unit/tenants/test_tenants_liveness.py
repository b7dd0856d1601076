"""Which backends answer: what the catalog remembers, and what becomes of promises."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from django.db import OperationalError

from controlplane.wiring import LOCK_WAIT_S, Eyes
from scheduling.core.types import PoolSpec, PoolView
from scheduling.dispatch.ports import BackendStatus, Sample
from tenants import connections, services, specs
from tenants.audit import SYSTEM
from tenants.liveness import GRACE_S, Liveness
from tenants.models import AuditEntry, Backend, CatalogVersion, Entitlement
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def promise() -> Entitlement:
    return Entitlement.objects.get(slug="acme-llama")


def test_a_backend_that_is_silent_for_long_degrades_what_it_held_and_gives_it_back(world: worlds.World) -> None:
    liveness = Liveness()
    liveness.see("llama", {"gpu-1": True}, 0.0)
    for at in (1.0, GRACE_S):
        liveness.see("llama", {"gpu-1": False}, at)
        assert promise().state == "bound"
    version = CatalogVersion.objects.get().version
    liveness.see("llama", {"gpu-1": False}, 1.0 + GRACE_S)
    degraded = promise()
    assert degraded.state == "degraded"
    assert degraded.state_reason == "needs 8 slots, the pool has 0 left to reserve while backends do not answer"
    assert CatalogVersion.objects.get().version == version + 1
    assert specs.load_catalog().entitlements["acme-llama"].state == "degraded"
    liveness.see("llama", {"gpu-1": True}, 1.5 + GRACE_S)
    assert promise().state == "bound"
    assert AuditEntry.objects.filter(action="health").count() == 2


def test_looks_in_which_nothing_has_changed_write_nothing(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Mapping[str, bool]] = []
    monkeypatch.setattr(services, "set_silent", lambda *, pool_slug, answering: written.append(answering))
    liveness = Liveness()
    for second in range(60):
        liveness.see("llama", {"gpu-1": second < 20}, float(second))
    assert written == [{"gpu-1": True}, {"gpu-1": False}]


def test_a_database_that_is_away_is_told_at_the_next_look(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise OperationalError("away")

    liveness = Liveness()
    liveness.see("llama", {"gpu-1": False}, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(services, "set_silent", away)
        liveness.see("llama", {"gpu-1": False}, GRACE_S)
    assert Backend.objects.get().silent_since is None
    liveness.see("llama", {"gpu-1": False}, GRACE_S + 1)
    assert Backend.objects.get().silent_since is not None


def test_measured_throughput_and_coefficients_reach_the_core(world: worlds.World) -> None:
    world.backend.tokens_per_s = 5000.0
    services.save(actor=SYSTEM, instance=world.backend)
    world.pool.coefficients, world.pool.slo_mean_s = {"burst": 0.0}, 15.25
    services.save(actor=SYSTEM, instance=world.pool)
    pool = specs.load_catalog().pools["llama"]
    assert pool.backends[0].tokens_per_s == 5000.0
    assert (pool.coefficients.burst, pool.coefficients.debt, pool.slo_mean_s) == (0.0, 4.0, 15.25)


def test_what_a_pool_was_measured_to_process_bounds_what_may_be_promised(world: worlds.World) -> None:
    held = promise()
    held.tokens_per_s, held.burst_tokens = 6000.0, 60_000.0
    services.save(actor=SYSTEM, instance=held)
    assert promise().state == "bound"  # nothing was measured
    world.backend.tokens_per_s = 5000.0
    services.save(actor=SYSTEM, instance=world.backend)
    assert promise().state == "degraded"
    assert "needs 6000 tokens/s, the pool has 5000 left" in promise().state_reason


def test_what_the_leader_samples_reaches_telemetry_and_the_catalog(world: worlds.World) -> None:
    taken: list[Sample] = []
    rolls: list[object] = []

    class Recorder:
        def write_ledger(self, pool: str, records: object) -> None:
            raise AssertionError("nothing ended")

        def sample(self, sample: Sample) -> None:
            taken.append(sample)

        def pools(self, names: object) -> None:
            rolls.append(names)

    eyes, pool = Eyes(Recorder(), Liveness()), PoolSpec("llama", "m", "m", ())
    for at_s, state in ((0.0, "ejected"), (GRACE_S, "probing"), (GRACE_S + 1, "draining")):
        backends = [BackendStatus("gpu-1", state, "", 0.0)]
        eyes.sample(Sample(at_s, pool, "me", 1, "fifo@1", PoolView({}), {}, 0.0, {}, backends))
        assert (Backend.objects.get().silent_since is not None) == (at_s == GRACE_S)
    assert len(taken) == 3
    eyes.pools({"llama"})
    assert rolls == [{"llama"}]


def test_where_the_database_was_locked_the_next_pools_hardly_wait_for_it() -> None:
    now, locked = [0.0], [False]
    waits: list[float] = []

    def ask() -> None:
        waits.append(connections._thread.lock_wait_s)
        now[0] += waits[-1] if locked[0] else 0.001

    class Recorder:
        def write_ledger(self, pool: str, records: object) -> None:
            ask()
            if locked[0]:
                raise OperationalError("database is locked")

        def sample(self, sample: Sample) -> None:
            ask()

        def pools(self, names: object) -> None: ...

    eyes = Eyes(Recorder(), Liveness(), clock=lambda: now[0])

    def look(pool: str) -> None:
        eyes.sample(Sample(0.0, PoolSpec(pool, "m", "m", ()), "me", 1, "fifo@1", PoolView({}), {}, 0.0, {}, []))

    for locks, steps in ((False, 1), (True, 20), (False, 1)):
        locked[0] = locks
        for n in range(steps):
            look(f"pool-{n}")
    assert sum(waits[1:21]) < 2.0, "twenty pools would have waited for ten seconds"
    eyes.write_ledger("pool-0", [])  # it is written: nobody holds the lock
    look("pool-0")
    assert waits[-1] == LOCK_WAIT_S
    locked[0] = True
    with pytest.raises(OperationalError):
        eyes.write_ledger("pool-0", [])
    look("pool-0")
    assert waits[-1] < LOCK_WAIT_S
