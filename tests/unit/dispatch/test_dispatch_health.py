"""Health is progress: the verdicts on virtual time, and the monitor around them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from scheduling.core.types import FULL_SPEED, BackendSpec, PoolView
from scheduling.dispatch.replicas.monitor import BackendMonitor
from scheduling.dispatch.replicas.progress import IDLE_S
from scheduling.state.types import Attempts, BackendTotals, PoolSnapshot, StateUnavailable
from tests.support.dispatch_world import Engines, on_virtual_time
from tests.support.state_world import backend, pool_spec


class Store:
    """Remembers what is ready, and which replicas gateways were told to leave."""

    def __init__(self) -> None:
        self.ready: dict[str, BackendSpec] = {}
        self.told_ill: set[str] = set()
        self.looks: list[tuple[str, int]] = []  # (replica, waiting in it) that shared state was told
        self.down = False
        self.waking_ms = 0

    async def set_waking(self, epoch: int, ms: int) -> None:
        self.waking_ms = ms

    async def prefilled(self, epoch: int, backend_id: str, waiting: int, age_s: float, *, hurry: float = 0.95) -> int:
        self.looks.append((backend_id, waiting))
        return 0

    async def set_ready(self, epoch: int, backend_id: str, spec: BackendSpec | None, *, ejected: bool = False) -> None:
        if self.down:
            raise StateUnavailable("down")
        if ejected:
            self.told_ill.add(backend_id)
        self.ready.pop(backend_id, None)
        if spec is not None:
            self.ready[backend_id] = spec

    def snapshot(self, leases: dict[str, int]) -> PoolSnapshot:
        backends = {
            name: BackendTotals(
                name in self.ready,
                self.ready[name].slots if name in self.ready else 0,
                self.ready[name].kv_tokens if name in self.ready else 0,
                leases.get(name, 0), 0, 0,
                self.ready[name].prefill_tokens if name in self.ready else 0,
                longest=self.ready[name].longest if name in self.ready else 0,
                speed=self.ready[name].speed if name in self.ready else FULL_SPEED,
                token_us=self.ready[name].token_us if name in self.ready else 0,
            )
            for name in {*self.ready, *leases}
        }  # fmt: skip
        return PoolSnapshot(0, 1, "a", 0, None, 0, 0, 0, 0, backends, {}, waking_ms=self.waking_ms)


class Ward:
    """A monitor over fake replicas, with the leader's once-a-second look."""

    def __init__(self, group: asyncio.TaskGroup, *names: str, store: Store | None = None) -> None:
        self.engines, self.store = Engines(), store or Store()
        self.leases: dict[str, int] = {}
        self.rings = 0
        self.monitor = BackendMonitor(self.store, 1, self.engines.factory(), group, self._notify)  # type: ignore[arg-type]
        self.pool = pool_spec(backends=tuple(backend(name) for name in names))

    def _notify(self) -> None:
        self.rings += 1

    async def live(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await asyncio.sleep(1.0)
            with contextlib.suppress(StateUnavailable):
                await self.monitor.reconcile(self.store.snapshot(self.leases))

    def state(self, name: str) -> str:
        return next(s.state for s in self.monitor.statuses() if s.id == name)

    def why(self, name: str) -> str:
        return next(s.why for s in self.monitor.statuses() if s.id == name)


def ward(test: Any) -> Any:
    """Runs a test with a ward of replicas b1 and b2, both ready."""

    def run() -> None:
        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                w = Ward(group, "b1", "b2")
                w.monitor.update(w.pool, set())
                await w.live(2)
                assert set(w.store.ready) == {"b1", "b2"}
                await test(w)
                w.monitor.update(pool_spec(backends=()))  # ends the watchers

        on_virtual_time(body)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@ward
async def test_a_replica_is_ready_only_after_it_generated_a_token(w: Ward):
    assert w.engines["b1"].probes == 1
    w.engines["b3"].generates = False
    w.monitor.update(pool_spec(backends=(*w.pool.backends, backend("b3"))))
    await w.live(60)
    assert w.state("b3") == "probing"
    assert "b3" not in w.store.ready
    w.engines["b3"].generates = True
    await w.live(40)
    assert "b3" in w.store.ready


@ward
async def test_a_hung_engine_is_ejected_within_20_s_although_it_answers_every_scrape(w: Ward):
    w.engines["b1"].running, w.engines["b1"].generates = 5, False
    w.leases["b1"] = 5
    await w.live(20)
    assert set(w.store.ready) == {"b2"}
    assert w.state("b1") == "ejected"
    assert w.why("b1").startswith("5 running and no token moved for 15 s")
    assert w.store.told_ill == {"b1"}


@ward
async def test_gateways_are_told_of_an_ejection_that_redis_could_not_be_told_of(w: Ward):
    w.store.down = True
    w.engines["b1"].reachable = False
    await w.live(10)
    assert w.state("b1") == "ejected"
    w.store.down = False
    await w.live(2)
    assert (set(w.store.ready), w.store.told_ill) == ({"b2"}, {"b1"})


@ward
async def test_a_draining_replica_that_hangs_is_told_of_as_well(w: Ward):
    draining = BackendSpec("b1", "p", "http://b1", 4, 100_000, draining=True)
    w.monitor.update(pool_spec(backends=(draining, backend("b2"))))
    await w.live(3)
    assert w.store.told_ill == set()
    w.engines["b1"].running, w.engines["b1"].generates = 5, False
    w.leases["b1"] = 5
    await w.live(20)
    assert w.store.told_ill == {"b1"}


@ward
async def test_an_engine_that_hangs_before_it_counts_its_work_is_found_by_a_probe(w: Ward):
    w.engines["b1"].generates = False
    w.leases["b1"] = 1
    await w.live(20)
    assert set(w.store.ready) == {"b2"}
    assert "a probe failed" in w.why("b1")


@ward
async def test_an_engine_whose_client_reads_slowly_is_not_ejected(w: Ward):
    """Leases, nothing running, nothing moving, and yet it works: the probe says so."""
    w.leases["b1"] = 1
    await w.live(120)
    assert set(w.store.ready) == {"b1", "b2"}
    assert w.engines["b1"].probes > 2


@ward
async def test_a_busy_engine_that_moves_is_never_ejected(w: Ward):
    engine = w.engines["b1"]
    engine.running, engine.tokens_per_scrape = 1280, 1.0
    w.leases["b1"] = 1280
    await w.live(600)
    assert set(w.store.ready) == {"b1", "b2"}
    assert engine.probes == 1


@ward
async def test_an_idle_engine_that_generates_is_never_ejected_and_rarely_asked(w: Ward):
    await w.live(600)
    assert set(w.store.ready) == {"b1", "b2"}
    assert 9 <= w.engines["b1"].probes <= 1 + 600 / IDLE_S


@ward
async def test_an_idle_engine_that_hangs_is_found_before_a_request_meets_it(w: Ward):
    w.engines["b1"].generates = False  # it answers every scrape
    await w.live(IDLE_S + 20)
    assert set(w.store.ready) == {"b2"}
    assert w.why("b1").startswith("idle for 60 s; a probe failed")
    w.engines["b1"].generates = True
    await w.live(15)
    assert set(w.store.ready) == {"b1", "b2"}


@ward
async def test_work_that_arrives_after_hours_of_silence_gets_its_15_s(w: Ward):
    await w.live(3600)
    w.engines["b1"].running, w.engines["b1"].generates = 1, False
    w.leases["b1"] = 1
    await w.live(13)
    assert "b1" in w.store.ready


@ward
async def test_an_ejected_replica_returns_only_after_a_generation(w: Ward):
    engine = w.engines["b1"]
    engine.running, engine.generates = 3, False
    w.leases["b1"] = 3
    await w.live(20)
    assert w.state("b1") == "ejected"
    engine.running, w.leases["b1"] = 0, 0  # it answers, it is idle, but it does not generate
    await w.live(60)
    assert w.state("b1") == "ejected"
    rings = w.rings
    engine.generates = True
    await w.live(12)
    assert w.state("b1") == "ready"
    assert "b1" in w.store.ready
    assert w.rings > rings


@ward
async def test_three_failed_scrapes_eject(w: Ward):
    w.engines["b1"].reachable = False
    await w.live(2)
    assert w.state("b1") == "ready"
    await w.live(2)
    assert w.state("b1") == "ejected"
    assert "connection refused" in w.why("b1")


@ward
async def test_an_engine_whose_metrics_cannot_be_read_stays_while_it_generates(w: Ward):
    engine = w.engines["b1"]
    engine.scrapable = False
    w.leases["b1"] = 4
    await w.live(120)
    assert set(w.store.ready) == {"b1", "b2"}
    assert w.store.told_ill == set()
    assert w.monitor.statuses()[0].engine_running is None
    engine.generates = False
    await w.live(20)
    assert set(w.store.ready) == {"b2"}
    assert "a probe failed" in w.why("b1")


@ward
async def test_why_the_figures_of_a_replica_that_serves_are_not_known_is_said_until_they_are(w: Ward):
    w.engines["b1"].scrapable = False
    await w.live(5)
    assert w.state("b1") == "ready"
    assert "its figures are not known: " in w.why("b1")
    assert [s.generates for s in w.monitor.statuses()] == [True, False]
    w.engines["b1"].scrapable = True
    await w.live(2)
    assert "figures" not in w.why("b1")
    assert not w.monitor.statuses()[0].generates


@ward
async def test_a_replica_that_answers_nothing_is_not_said_to_generate(w: Ward):
    w.engines["b1"].scrapable = w.engines["b1"].generates = False
    for _ in range(30):
        await w.live(1)
        assert not w.monitor.statuses()[0].generates
    assert w.state("b1") == "ejected"


@ward
async def test_tokens_that_gateways_see_are_progress(w: Ward):
    engine = w.engines["b1"]
    engine.scrapable = False
    w.leases["b1"] = 4
    for _ in range(60):
        w.monitor.report({"b1": Attempts(moved=20)})
        await w.live(1)
    assert set(w.store.ready) == {"b1", "b2"}
    assert engine.probes == 1


@ward
async def test_one_whose_counters_stand_still_stays_while_a_probe_goes_well(w: Ward):
    """Whole answers, or a page that is not counted on: no token is seen until the end."""
    w.engines["b1"].running = w.leases["b1"] = 5
    w.engines["b1"].counts = False
    await w.live(120)
    assert set(w.store.ready) == {"b1", "b2"}


@ward
async def test_a_suspicion_and_one_failed_scrape_eject_at_once(w: Ward):
    w.engines["b1"].reachable = False
    w.monitor.suspect("b1", "connect")
    await asyncio.sleep(0.01)
    assert set(w.store.ready) == {"b2"}


@ward
async def test_nothing_is_granted_to_a_suspected_replica_until_it_has_answered(w: Ward):
    def ready(name: str) -> bool:
        view = w.store.snapshot({}).pool_view(0.0)
        w.monitor.mask(view)
        return view.backends[name].ready

    assert ready("b1")
    w.monitor.suspect("b1", "cut")
    assert not ready("b1")
    assert ready("b2")
    await asyncio.sleep(0.01)
    assert ready("b1")


@ward
async def test_a_replica_where_every_request_fails_at_once_is_ejected(w: Ward):
    """It answers scrapes and runs nothing, so neither silence nor stalling shows; the gateways' reports do."""
    w.engines["b1"].generates = False
    for _ in range(3):
        w.monitor.suspect("b1", "status 500")
        await w.live(1)
    await w.live(20)
    assert set(w.store.ready) == {"b2"}


@ward
async def test_requests_that_an_engine_fails_do_not_take_it_from_others_while_it_generates(w: Ward):
    """One tenant's requests that the engine answers with 500, while nobody else's move its counters."""
    engine = w.engines["b1"]
    for _ in range(12):
        w.monitor.suspect("b1", "answers 500")
        await w.live(1)
        assert "b1" in w.store.ready
    assert w.store.told_ill == set()
    assert 1 < engine.probes <= 1 + 12 // 3, "three failures without progress are a question"
    engine.generates = False
    for _ in range(3):
        w.monitor.suspect("b1", "answers 500")
        await w.live(1)
    await w.live(20)
    assert set(w.store.ready) == {"b2"}
    assert w.why("b1").startswith("3 requests failed there and no token moved; a probe failed")


@ward
async def test_reports_about_a_replica_that_moves_do_not_eject_it(w: Ward):
    engine = w.engines["b1"]
    engine.running, engine.tokens_per_scrape = 10, 50.0
    for _ in range(20):
        w.monitor.suspect("b1", "cut")
        await w.live(1)
    assert "b1" in w.store.ready


@ward
async def test_of_two_replicas_that_one_report_says_fail_everything_one_stays(w: Ward):
    w.monitor.report({name: Attempts(0, 20, why="answers 500") for name in ("b1", "b2")})
    await asyncio.sleep(0.01)
    assert set(w.store.ready) == {"b2"}
    w.monitor.report({"b2": Attempts(0, 20, why="answers 500")})
    await asyncio.sleep(0.01)
    assert set(w.store.ready) == {"b2"}


@ward
async def test_a_draining_replica_gets_nothing_and_comes_back_when_it_does_not_drain(w: Ward):
    draining = BackendSpec("b1", "p", "http://b1", 4, 100_000, draining=True)
    w.monitor.update(pool_spec(backends=(draining, backend("b2"))))
    await w.live(2)
    assert set(w.store.ready) == {"b2"}
    assert w.state("b1") == "draining"
    w.monitor.update(w.pool)
    await w.live(2)
    assert set(w.store.ready) == {"b1", "b2"}


@ward
async def test_a_replica_that_left_the_catalog_is_taken_out(w: Ward):
    w.monitor.update(pool_spec(backends=(backend("b2"),)))
    await w.live(2)
    assert set(w.store.ready) == {"b2"}


@ward
async def test_changed_slots_are_written(w: Ward):
    w.monitor.update(pool_spec(backends=(backend("b1", slots=9), backend("b2"))))
    await w.live(2)
    assert w.store.ready["b1"].slots == 9
    assert w.engines["b1"].probes == 1


@ward
async def test_lost_state_is_written_again(w: Ward):
    w.store.ready.clear()
    await w.live(2)
    assert set(w.store.ready) == {"b1", "b2"}


@ward
async def test_a_change_while_redis_is_away_is_written_when_it_is_back(w: Ward):
    w.store.down = True
    w.engines["b1"].reachable = False
    await w.live(6)
    assert set(w.store.ready) == {"b1", "b2"}
    w.store.down = False
    await w.live(2)
    assert set(w.store.ready) == {"b2"}


@ward
async def test_while_redis_is_away_old_lease_counts_eject_nobody(w: Ward):
    w.leases["b1"] = 3
    w.engines["b1"].tokens_per_scrape, w.engines["b1"].running = 1.0, 3
    await w.live(2)
    w.engines["b1"].tokens_per_scrape, w.engines["b1"].running = 0.0, 0
    await asyncio.sleep(IDLE_S - 5)  # no look at Redis succeeds
    assert w.state("b1") == "ready"
    assert w.engines["b1"].probes == 1


@ward
async def test_statuses_say_what_was_measured(w: Ward):
    engine = w.engines["b1"]
    engine.running, engine.tokens_per_scrape = 2, 30.0
    await w.live(4)
    status = w.monitor.statuses()[0]
    assert (status.id, status.state, status.engine_running, status.kv_usage, status.gpu_util) == (
        "b1", "ready", 2, 0.5, 0.25,
    )  # fmt: skip
    assert status.output_tokens_per_s is not None
    assert 29.0 < status.output_tokens_per_s < 31.0


def test_a_new_leader_keeps_what_the_former_one_found_ready():
    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            w = Ward(group, "b1", "b2")
            w.store.ready["b1"] = w.pool.backends[0]
            w.monitor.update(w.pool, {"b1"})
            view: PoolView = w.store.snapshot({}).pool_view(0.0)
            w.monitor.mask(view)
            assert view.backends["b1"].ready
            await w.live(3)
            assert w.engines["b1"].probes == 0
            assert w.engines["b2"].probes == 1
            w.monitor.update(pool_spec(backends=()))

    on_virtual_time(body)


@ward
async def test_the_last_replica_is_not_paused_and_its_ejection_says_what_failed_there(w: Ward):
    w.engines["b1"].generates = False
    w.monitor.pause("b1", 0.0, "answers 500", refused=False)
    await w.live(15)
    assert w.state("b1") == "ejected"
    assert w.why("b1").startswith("requests failed there (answers 500); a probe failed: ")
