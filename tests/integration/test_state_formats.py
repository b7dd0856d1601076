"""What another version of this tree wrote into shared state is read, or ended; it stops nothing and nothing leaks."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import ServiceClass
from scheduling.state import codec
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import (
    ENTRY_FORMAT,
    AdmissionStatus,
    EvictItem,
    FinishStatus,
    GrantItem,
    GrantStatus,
    RenewStatus,
    StoredRequest,
)
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until, until_await
from tests.support.pool_gateway import make_gateway, ready
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

SPEC = entitlement("acme")
NEWER = ENTRY_FORMAT + 1


def old_record(name: str) -> bytes:
    """A request's record, as before records named their format, and how many sequences there are."""
    record = msgspec.json.encode(StoredRequest(request(name, SPEC, estimate(), gateway="gone"), FACTS))
    assert b',"sequences":1' in record
    return record.replace(b',"sequences":1', b"")


def newer(name: str) -> bytes:
    record = b'{"v":%d,"more":[1],' % NEWER + old_record(name)[1:]
    return b"1 acme elastic b1 140 0 more words than now 140 300 0 1700000000000 gone 1 0 - " + record


FORMATS = {
    "twelve words": lambda n: b"1 acme b1 140 0 140 300 0 1700000000000 gone 1 - " + old_record(n),
    "fourteen words": lambda n: b"1 acme elastic b1 140 0 140 300 0 1700000000000 gone 1 0 - " + old_record(n),
}
UNKNOWN = {
    "newer": newer,
    "same words, newer record": lambda n: FORMATS["fourteen words"](n).replace(
        b'{"request"', b'{"v":%d,"request"' % NEWER
    ),
}
JUNK = {"empty": lambda n: b"", "words": lambda n: b"1 2 3", "bytes": lambda n: b"\xff\x00" * 40}


async def hold(resp: RespConnection, pool_id: str, entries: dict[str, bytes], totals: dict[str, int]) -> None:
    """Leases that nobody renews, and the totals that another version kept."""
    prefix = f"qm:{{{pool_id}}}:"
    for name, entry in entries.items():
        await resp.call("HSET", prefix + "held", name, entry)
        await resp.call("ZADD", prefix + "leases", 1, name)
    for name, value in totals.items():
        await resp.call("HSET", prefix + "totals", name, value)


@pytest.mark.parametrize("written", [*FORMATS, *UNKNOWN])
async def test_sixteen_leases_of_another_version_end_with_a_record_each_and_grants_go_on(
    redis_url: str, resp: RespConnection, pool_id: str, written: str, figure: Callable[[str], None]
):
    make = (FORMATS | UNKNOWN)[written]
    telemetry, spec = Telemetry(), entitlement("acme", pool_id)
    await hold(
        resp,
        pool_id,
        {f"old-{n}": make(f"old-{n}") for n in range(16)},
        {"run": 16, "e:acme:run": 16, "b:b1:run": 16, "b:b1:kv": 16 * 140},
    )
    async with (
        make_gateway(redis_url, resp, pool_id) as gateway,
        dispatching(redis_url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher,
    ):
        began = time.monotonic()
        await ready(dispatcher, gateway.store)
        await until(lambda: len(telemetry.records) == 16)

        async def none_left() -> bool:
            view = await gateway.store.view()
            return view.running == view.counts.held == 0

        await until_await(none_left)
        figure(f"16 leases, {written}: ended with a row each after {time.monotonic() - began:.1f} s")
        assert {r.request_id for r in telemetry.records} == {f"old-{n}" for n in range(16)}
        assert {(r.tenant, r.outcome, r.reason) for r in telemetry.records} == {
            ("acme", Outcome.FAILED, Reason.GATEWAY_LOST)
        }
        assert (await gateway.admit("r1", spec)).status is AdmissionStatus.GRANTED


async def test_what_cannot_be_read_stops_no_sweep(resp: RespConnection, pool_store: PoolStore, pool_id: str):
    epoch = (await pool_store.elect("leader", 0, first_start=True)).epoch
    for n, make in enumerate(JUNK.values()):
        await hold(resp, pool_id, {f"junk-{n}": make("")}, {})
    await hold(resp, pool_id, {"old": FORMATS["twelve words"]("old"), "new": newer("new")}, {"run": 5})
    prefix = f"qm:{{{pool_id}}}:"
    await resp.call("ZADD", prefix + "leases", 1, "nobody")
    await resp.call("HSET", prefix + "queue", "waits", "what is this")
    await resp.call("ZADD", prefix + "waiting", 1, "waits")
    await resp.call("HSET", prefix + "evicted", "evicted", "what is this")
    await resp.call("ZADD", prefix + "leaving", 1, "evicted")
    swept = {s.request_id for s in await pool_store.sweep(epoch)}
    assert swept == {"junk-0", "junk-1", "junk-2", "old", "new", "waits", "evicted"}
    entries = await pool_store.ledger_read(100)
    assert {e.record.request_id for e in entries if e.record} == {"old", "new"}
    assert len([e for e in entries if e.record is None]) == 5
    await pool_store.rebuild(epoch)
    view = await pool_store.view()
    assert view.differences() == []
    assert (view.running, view.waiting, await pool_store.sweep(epoch)) == (0, 0, [])


@pytest.mark.parametrize("make", [*UNKNOWN.values(), *JUNK.values()], ids=[*UNKNOWN, *JUNK])
async def test_no_script_fails_over_an_entry_that_it_cannot_read(
    resp: RespConnection, pool_store: PoolStore, pool_id: str, make
):
    epoch = (await pool_store.elect("leader", 0, first_start=True)).epoch
    await pool_store.set_ready(epoch, "b1", backend(slots=4))
    prefix = f"qm:{{{pool_id}}}:"
    est, pool = estimate(), pool_spec()
    for table, expiries in (("held", "leases"), ("queue", "waiting"), ("evicted", "leaving")):
        name = f"r-{table}"
        asked = request(name, SPEC, est)
        await resp.call("HSET", prefix + table, name, make(name))
        await resp.call("ZADD", prefix + expiries, 4_000_000_000_000, name)
        await resp.call("ZADD", prefix + "preemptible", 1, name)
        if table != "evicted":
            again = await pool_store.admit(SPEC, pool, asked, est, 300, FACTS)
            assert (again.status, again.reason) == (AdmissionStatus.ENDED, Reason.INTERNAL)
            (renewal,) = await pool_store.renew("gw-1", [(name, 1, 0)])
            assert renewal.status is RenewStatus.STALE
        assert (await pool_store.requeue(asked, 300, FACTS, "b1")).status is AdmissionStatus.STALE
        assert await pool_store.grant(epoch, [GrantItem(name, 1, "b1", 8)]) == [GrantStatus.GONE]
        assert await pool_store.evict(epoch, [EvictItem(name, 1, 8)]) == [GrantStatus.GONE]
        await pool_store.rebuild(epoch)
        assert (await pool_store.load_queue())[1] == []
        if table == "evicted":
            await resp.call("SET", f"{prefix}ended:{name}", "evicted")
        ended = await pool_store.finish(name, 1, Reason.STOP, 10, True, ledger(name))
        assert ended.status is FinishStatus.OK
        assert await resp.call("HEXISTS", prefix + table, name) == 0
    await pool_store.rebuild(epoch)
    view = await pool_store.view()
    assert (view.differences(), view.running, view.counts.held) == ([], 0, 0)
    assert [e.record.request_id for e in await pool_store.ledger_read(9) if e.record] == [
        "r-held",
        "r-queue",
        "r-evicted",
    ]


async def test_a_bucket_that_is_not_whole_stops_no_end(resp: RespConnection, pool_store: PoolStore, pool_id: str):
    metered = entitlement("acme", tokens_per_s=100.0, burst_tokens=1000.0)
    epoch = (await pool_store.elect("leader", 0, first_start=True)).epoch
    await pool_store.set_ready(epoch, "b1", backend(slots=4))
    est, key = estimate(), f"qm:{{{pool_id}}}:buckets"
    for n, field in enumerate(("level", "at", "rate", "depth", "service_ms", "stay_ms")):
        asked = request(f"r{n}", metered, est)
        assert (await pool_store.admit(metered, pool_spec(), asked, est, 300, FACTS)).status is AdmissionStatus.GRANTED
        await resp.call("HSET", key, f"acme:{field}", "nothing")
        ended = await pool_store.finish(asked.id, 1, Reason.STOP, 10, True, ledger(asked.id))
        assert ended.status is FinishStatus.OK
        await resp.call("DEL", key)
    assert [e.record.request_id for e in await pool_store.ledger_read(9) if e.record] == [f"r{n}" for n in range(6)]


async def test_ledger_records_of_other_versions_are_read_and_the_rest_is_set_aside(
    redis_url: str, resp: RespConnection, pool_id: str
):
    key, telemetry = f"qm:{{{pool_id}}}:ledger", Telemetry()
    whole = msgspec.json.decode(codec.encode_ledger(ledger("newer")))
    await resp.call("XADD", key, "*", "r", msgspec.json.encode(whole | {"carbon_g": 2.5, "reason": "sun_flare"}))
    for lacks in ("why", "input_tokens_est", "queued_s", "streamed", "received_s"):
        told = {k: v for k, v in whole.items() if k != lacks} | {"request_id": f"without {lacks}"}
        await resp.call("XADD", key, "*", "r", msgspec.json.encode(told))
    swept = FORMATS["twelve words"]("swept")
    await resp.call("XADD", key, "*", "swept", swept, "at", 1_700_000_000_000)
    await resp.call("XADD", key, "*", "swept", swept.replace(b"swept", b"flare"), "at", 1, "as", "sun_flare")
    for fields in (("r", "{}"), ("r", "no JSON"), ("what", "is this"), ("unread", "1 2 3", "of", "x", "at", 1)):
        await resp.call("XADD", key, "*", *fields)
    async with (
        make_gateway(redis_url, resp, pool_id) as gateway,
        dispatching(redis_url, catalog_of(gateway.pool, SPEC), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        await until(lambda: len(telemetry.records) == 8)
        await until(lambda: bool(telemetry.samples) and telemetry.samples[-1].ledger_unread == 4)
    reasons = {r.request_id: r.reason for r in telemetry.records}
    assert (reasons["newer"], reasons["flare"], reasons["swept"]) == ("sun_flare", "sun_flare", "gateway_lost")
    aside = await resp.call("XRANGE", key + ":unread", "-", "+")
    assert [fields[0] for _, fields in aside] == [b"r", b"r", b"what", b"unread"]
    assert all(fields[-2] == b"why" and fields[-1] for _, fields in aside)
    assert await resp.call("XLEN", key) == 0


async def test_a_reason_of_another_version_stops_no_renewal(resp: RespConnection, pool_store: PoolStore, pool_id: str):
    await resp.call("SET", f"qm:{{{pool_id}}}:ended:r1", "sun_flare")
    first, second = await pool_store.renew("gw-1", [("r1", 1, 0), ("r2", 1, 0)])
    assert (first.status, first.reason) == (RenewStatus.ENDED, Reason.LEASE_LOST)
    assert second.status is RenewStatus.UNKNOWN
    ended = await pool_store.finish("r1", 1, Reason.STOP, 1, True, ledger("r1"))
    assert (ended.status, ended.reason) == (FinishStatus.ENDED, Reason.LEASE_LOST)


async def test_preemptible_leases_under_the_former_name_of_their_set_are_found_again_and_are_no_fault(
    resp: RespConnection, pool_store: PoolStore, pool_id: str
):
    cheap, est = entitlement("acme", tier=tier(service_class=ServiceClass.PREEMPTIBLE)), estimate()
    epoch = (await pool_store.elect("leader", 0, first_start=True)).epoch
    await pool_store.set_ready(epoch, "b1", backend(slots=4))
    asked = request("r1", cheap, est)
    assert (await pool_store.admit(cheap, pool_spec(), asked, est, 300, FACTS)).status is AdmissionStatus.GRANTED
    prefix = f"qm:{{{pool_id}}}:"
    await resp.call("RENAME", prefix + "preemptible", prefix + "prey")
    assert await pool_store.rebuild(epoch) == []
    assert await resp.call("ZRANGE", prefix + "preemptible", 0, -1) == [b"r1"]
    assert await resp.call("EXISTS", prefix + "prey") == 0
    await resp.call("DEL", prefix + "preemptible")
    assert await pool_store.rebuild(epoch) == ["preemptible"]
