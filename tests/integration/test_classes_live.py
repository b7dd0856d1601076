"""What the five service classes may do, over the real scripts and a real leader: evictions, owners, standings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from scheduling.core.outcomes import Reason
from scheduling.core.policies.registry import orderings
from scheduling.core.types import EntitlementSpec, OverLimit, ServiceClass, Slo
from scheduling.dispatch import decision_clock, term
from scheduling.state.resp import RespConnection
from scheduling.state.types import Admission, AdmissionStatus, FinishStatus, RenewStatus
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until, until_await
from tests.support.pool_gateway import Gateway, make_gateway, ready
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, request, tier


def of_class(gateway: Gateway, service_class: ServiceClass, name: str = "", **changes: object) -> EntitlementSpec:
    given = {"over_limit": OverLimit.WAIT, "queue_limit": 1000, "name": service_class.value}
    mine = {key: changes.pop(key) for key in list(changes) if key in ("over_limit", "queue_limit", "slo", "rank")}
    made = tier(service_class=service_class, **(given | mine))
    return entitlement(name or service_class.value, gateway.pool.id, **({"tier": made, "concurrency": 4} | changes))


@pytest_asyncio.fixture
async def gateway(redis_url: str, resp: RespConnection, pool_id: str) -> AsyncIterator[Gateway]:
    async with make_gateway(redis_url, resp, pool_id) as g:
        yield g


@pytest.mark.parametrize("policy", sorted(orderings()))
async def test_an_owner_gets_the_next_slot_that_frees_ahead_of_everyone_under_any_policy(gateway: Gateway, policy: str):
    """The slot that was lent: thirty wait for it, some with shorter work, a higher rank and earlier deadlines."""
    gateway.pool = replace(gateway.pool, policy=policy)
    others = [of_class(gateway, c, rank=0) for c in (ServiceClass.ELASTIC, ServiceClass.SPOT)]
    owner = of_class(gateway, ServiceClass.GUARANTEED, concurrency=1, rank=9)
    async with dispatching(gateway.url, catalog_of(gateway.pool, owner, *others)) as dispatcher:
        await ready(dispatcher, gateway.store)
        assert (await gateway.admit("lent", others[1])).status is AdmissionStatus.GRANTED
        for n in range(30):
            assert (await gateway.admit(f"r{n}", others[n % 2])).status is AdmissionStatus.QUEUED
        assert (await gateway.admit("owner-1", owner, input_tokens=4000)).status is AdmissionStatus.QUEUED
        assert (await gateway.admit("owner-2", owner, input_tokens=4000)).status is AdmissionStatus.QUEUED
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 32)
        await gateway.finish("lent")
        await until(lambda: gateway.granted() == ["owner-1"])
        await gateway.finish("owner-1")
        await until(lambda: gateway.granted() == ["owner-1", "owner-2"])


async def test_idle_slots_go_to_waiting_requests_beyond_their_limit_only_when_all_others_have_theirs(gateway: Gateway):
    gateway.pool = replace(gateway.pool, backends=(backend("b1", slots=3, pool=gateway.pool.id),), policy="fifo")
    elastic = of_class(gateway, ServiceClass.ELASTIC, concurrency=1)
    spot = of_class(gateway, ServiceClass.SPOT, concurrency=2)
    async with dispatching(gateway.url, catalog_of(gateway.pool, elastic, spot)) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(3):  # one of its own and two that are idle
            assert (await gateway.admit(f"e{n}", elastic)).status is AdmissionStatus.GRANTED
        for n in range(3, 5):
            assert (await gateway.admit(f"e{n}", elastic)).status is AdmissionStatus.QUEUED
        for n in range(3):
            assert (await gateway.admit(f"s{n}", spot)).status is AdmissionStatus.QUEUED
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 5)
        await gateway.finish("e0")
        await gateway.finish("e1")
        await until(lambda: len(gateway.notices) == 2)
        assert gateway.granted() == ["s0", "s1"]  # they came later, but elastic is beyond its own
        await gateway.finish("e2")
        await until(lambda: gateway.granted() == ["s0", "s1", "e3"])
        await gateway.finish("s0")
        await until(lambda: gateway.granted() == ["s0", "s1", "e3", "s2"])


async def test_who_lacks_only_kv_cache_holds_up_no_arrival_until_a_replica_is_kept_free_for_it(gateway: Gateway):
    one = backend("b1", slots=4, kv_tokens=1000, pool=gateway.pool.id)
    gateway.pool = replace(gateway.pool, backends=(one,), policy="fifo")
    large = of_class(gateway, ServiceClass.ELASTIC, concurrency=4)
    spot = of_class(gateway, ServiceClass.SPOT, over_limit=OverLimit.REFUSE)

    async def ask(name: str, spec: EntitlementSpec, input_tokens: int) -> Admission:
        est = estimate(input_tokens, 50)
        asked = request(name, spec, est, gateway=gateway.name)
        return await gateway.store.admit(spec, gateway.pool, asked, est, 300, FACTS)

    async with dispatching(gateway.url, catalog_of(gateway.pool, large, spot)) as dispatcher:
        await ready(dispatcher, gateway.store)
        assert (await ask("first", large, 600)).status is AdmissionStatus.GRANTED
        for n in range(3):
            assert (await ask(f"large-{n}", large, 600)).status is AdmissionStatus.QUEUED
        await until(lambda: dispatcher.term is not None and dispatcher.term.decider.announced[0] == 3)
        assert (await ask("small", spot, 10)).status is AdmissionStatus.GRANTED
        await gateway.finish("small")
        # its patience has ended
        await until(lambda: dispatcher.term is not None and dispatcher.term.decider.announced[0] == 0)
        late = await ask("late", spot, 10)
        assert (late.status, late.reason) == (AdmissionStatus.REFUSED, Reason.LOW_PRIORITY)


@pytest.mark.parametrize(
    "service_class", [ServiceClass.DEDICATED, ServiceClass.GUARANTEED, ServiceClass.ELASTIC], ids=str
)
async def test_a_preemptible_request_gives_its_slot_in_the_round_trip_of_the_one_that_needs_it(
    gateway: Gateway, service_class: ServiceClass
):
    cheap = of_class(gateway, ServiceClass.PREEMPTIBLE, tokens_per_s=1e-6, burst_tokens=1000.0)
    own = of_class(gateway, service_class)
    async with dispatching(gateway.url, catalog_of(gateway.pool, cheap, own)) as dispatcher:
        await ready(dispatcher, gateway.store)
        assert (await gateway.admit("victim", cheap)).status is AdmissionStatus.GRANTED
        taken = await gateway.admit("winner", own)
        assert (taken.status, taken.backend) == (AdmissionStatus.GRANTED, "b1")
        view = await gateway.store.view()
        assert (view.running, view.backends["b1"].kv_used) == (1, 150)
        await until(lambda: gateway.evicted == ["victim"])
        (renewal,) = await gateway.store.renew(gateway.name, [("victim", 1, 120)])  # had the notification been lost
        assert (renewal.status, renewal.reason) == (RenewStatus.ENDED, Reason.EVICTED)
        assert (await gateway.admit("late", cheap)).status is AdmissionStatus.QUEUED
        closed = await gateway.store.finish("victim", 1, Reason.EVICTED, 120, True, ledger("victim", Reason.EVICTED))
        assert closed.status is FinishStatus.OK
        again = await gateway.store.finish("victim", 1, Reason.STOP, 999, True, ledger("victim"))
        assert (again.status, again.reason) == (FinishStatus.ENDED, Reason.EVICTED)
        bucket = (await gateway.store.view()).entitlements[cheap.id]
        assert bucket.level_tokens == pytest.approx(1000 - 120 - 150, abs=0.01)  # what it got, and what waits now


async def test_what_an_evicted_request_had_finished_meanwhile_counts_as_finished(gateway: Gateway):
    cheap, own = of_class(gateway, ServiceClass.PREEMPTIBLE), of_class(gateway, ServiceClass.GUARANTEED)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog_of(gateway.pool, cheap, own), telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("victim", cheap)
        await gateway.admit("winner", own)
        await gateway.finish("victim")  # its last token and the eviction crossed
        await until(lambda: [(r.request_id, r.reason) for r in telemetry.records] == [("victim", "stop")])


async def test_the_accounts_of_an_evicted_request_are_closed_when_its_gateway_died(gateway: Gateway):
    cheap, own = of_class(gateway, ServiceClass.PREEMPTIBLE), of_class(gateway, ServiceClass.GUARANTEED)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog_of(gateway.pool, cheap, own), telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("victim", cheap)
        await gateway.admit("winner", own)

        async def told() -> bool:
            await gateway.store.renew(gateway.name, [("winner", 1, 0)])
            return [(r.request_id, r.reason) for r in telemetry.records] == [("victim", "evicted")]

        await until_await(told)


async def test_nobody_is_evicted_for_the_surplus_of_others(gateway: Gateway):
    gateway.pool = replace(gateway.pool, backends=(backend("b1", slots=2, pool=gateway.pool.id),))
    cheap = of_class(gateway, ServiceClass.PREEMPTIBLE)
    beyond = of_class(gateway, ServiceClass.GUARANTEED, concurrency=1)
    spot = of_class(gateway, ServiceClass.SPOT)
    async with dispatching(gateway.url, catalog_of(gateway.pool, cheap, beyond, spot)) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("g1", beyond)
        await gateway.admit("p1", cheap)
        for name, spec in (("g2", beyond), ("s1", spot)):
            assert (await gateway.admit(name, spec)).status is AdmissionStatus.QUEUED
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 2)
        await asyncio.sleep(2 * decision_clock.TICK_S)
        assert (gateway.evicted, gateway.granted()) == ([], [])


async def test_the_leader_evicts_for_an_owner_that_waits(gateway: Gateway):
    """Its attempt failed elsewhere, or state was rebuilt: it waits, and only preemptible requests are in its way."""
    gateway.pool = replace(gateway.pool, backends=(backend("b1", slots=2, pool=gateway.pool.id),))
    cheap, own = of_class(gateway, ServiceClass.PREEMPTIBLE), of_class(gateway, ServiceClass.GUARANTEED, concurrency=2)
    async with dispatching(gateway.url, catalog_of(gateway.pool, cheap, own)) as dispatcher:
        await ready(dispatcher, gateway.store)
        for name in ("old", "new"):
            assert (await gateway.admit(name, cheap)).status is AdmissionStatus.GRANTED
            await asyncio.sleep(0.01)  # more than the millisecond by which they are told apart
        waits = request("owner", own, gateway=gateway.name, seq=9)
        await gateway.store.announce(own, gateway.pool, waits, estimate(), 300, FACTS, "")
        await until(lambda: gateway.granted() == ["owner"])
        assert gateway.evicted == ["new"]  # the least work is lost
        assert "made room" in gateway.notices[0].why
        assert (await gateway.store.view()).running == 2


async def test_standings_are_published_compared_by_and_survive_their_leader(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(term, "STANDING_S", 1.0)
    gateway.pool = replace(gateway.pool, slo_mean_s=15.25, coefficients=replace(gateway.pool.coefficients))
    copilot = of_class(
        gateway, ServiceClass.ELASTIC, "copilot", slo=Slo(ttft_s=0.5, tbt_s=0.1), over_limit=OverLimit.REFUSE,
        tokens_per_s=1000.0, burst_tokens=1e6,
    )  # fmt: skip
    synth = of_class(
        gateway, ServiceClass.ELASTIC, "synth", slo=Slo(ttlt_s=30.0), over_limit=OverLimit.REFUSE,
        tokens_per_s=1000.0, burst_tokens=1e6,
    )  # fmt: skip
    catalog, telemetry = catalog_of(gateway.pool, copilot, synth), Telemetry()
    async with dispatching(gateway.url, catalog, telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await until(lambda: telemetry.samples and telemetry.samples[-1].standings)
        first = (await gateway.store.view()).standings
        assert first["copilot"].weight == pytest.approx(93.85, abs=0.01)  # token pools 5.3
        assert first["synth"].weight == pytest.approx(20.27, abs=0.01)
        assert (first["synth"].debt, first["synth"].burst) == (0.0, 0.0)
        assert (await gateway.admit("s1", synth)).status is AdmissionStatus.GRANTED
        assert (await gateway.admit("c1", copilot)).status is AdmissionStatus.QUEUED  # weighs more: waits in front
        refused = await gateway.admit("s2", synth)
        assert refused.reason is Reason.LOW_PRIORITY
        record = replace(ledger("s2", Reason.LOW_PRIORITY), entitlement="synth", input_tokens_est=10_000)
        await gateway.store.record([record])

        async def owed() -> bool:
            await gateway.store.renew(gateway.name, [("s1", 1, 120), ("c1", 1, 0)])
            return (await gateway.store.view()).standings["synth"].debt > 0.05

        await until_await(owed)
        met = (await gateway.store.view()).entitlements["synth"]
        assert (met.served_tokens, met.refused_tokens, met.refusals) == (120, 10_050, 1)
        heavier = (await gateway.store.view()).standings["synth"]
        assert heavier.weight > first["synth"].weight
        await until(lambda: telemetry.samples[-1].standings["synth"].debt > 0.05)
    async with dispatching(gateway.url, catalog, holder="leader-b") as dispatcher:
        await ready(dispatcher, gateway.store)
        await until(lambda: dispatcher.term is not None and dispatcher.term.standings)
        assert dispatcher.term is not None
        assert dispatcher.term.standings["synth"].debt > 0.0
    async with dispatching(gateway.url, catalog_of(gateway.pool, copilot), holder="leader-c") as dispatcher:

        async def forgotten() -> bool:
            view = await gateway.store.view()
            return "synth" not in view.standings and not view.entitlements["synth"].refusals

        await until_await(forgotten)
