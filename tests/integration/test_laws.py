"""Buckets, ledger and leases are compared while requests run: what is sound stays quiet, a broken bucket is noticed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import OverLimit
from scheduling.dispatch import bucket_audit
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.state.resp import RespConnection
from scheduling.state.types import AdmissionStatus, BucketLevel, PoolAudit
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching
from tests.support.gateway_world import until
from tests.support.pool_gateway import Gateway, make_gateway, ready
from tests.support.state_world import entitlement, ledger, tier


@asynccontextmanager
async def at_work(
    redis_url: str, resp: RespConnection, pool_id: str, monkeypatch: pytest.MonkeyPatch, failures: int = 0
) -> AsyncIterator[tuple[PoolDispatcher, Gateway, Telemetry, list[int]]]:
    """A pool in which requests come and end all the time, compared several times a second; how often so far."""
    monkeypatch.setattr(bucket_audit, "EVERY_S", 0.3)
    monkeypatch.setattr("scheduling.dispatch.term.HOUSEKEEPING_S", 0.1)
    compared: list[int] = []
    compare = bucket_audit.BucketAudit._compare

    def counting(self: bucket_audit.BucketAudit, *args: object) -> None:
        compare(self, *args)  # type: ignore[arg-type]
        compared.append(1)

    monkeypatch.setattr(bucket_audit.BucketAudit, "_compare", counting)
    telemetry = Telemetry(failures=failures)
    spec = entitlement(
        "acme", pool_id, concurrency=3, tokens_per_s=40.0, burst_tokens=3000.0,
        tier=tier(over_limit=OverLimit.WAIT, queue_limit=50),
    )  # fmt: skip
    async with (
        make_gateway(redis_url, resp, pool_id) as gateway,
        dispatching(redis_url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        work = asyncio.create_task(_work(gateway, spec))
        try:
            yield dispatcher, gateway, telemetry, compared
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def _work(gateway: Gateway, spec: object) -> None:
    rng, open_ = random.Random(1), []
    for n in range(100_000):
        answer = await gateway.admit(f"r{n}", spec)  # type: ignore[arg-type]
        if answer.status in (AdmissionStatus.GRANTED, AdmissionStatus.QUEUED):
            open_.append(f"r{n}")
        while len(open_) > 4 or (open_ and rng.random() < 0.5):
            name = open_.pop(rng.randrange(len(open_)))
            given, made, ran = rng.randrange(100), rng.randrange(90), rng.random() < 0.8
            record = ledger(
                name, pool=gateway.pool.id, input_tokens=given if ran else 0, output_tokens=made if ran else 0
            )
            await gateway.store.finish(name, 1, Reason.STOP, given + made, ran, record)
        await asyncio.sleep(0.01)


async def more(compared: list[int], count: int = 3) -> None:
    wanted = len(compared) + count
    await until(lambda: len(compared) >= wanted, 60)


async def test_sound_accounts_stay_quiet_while_requests_come_and_end(
    redis_url: str, resp: RespConnection, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    async with at_work(redis_url, resp, pool_id, monkeypatch, failures=3) as (dispatcher, _, telemetry, compared):
        gaps: list[dict[str, float]] = []
        for _ in range(6):
            await more(compared, 1)
            assert dispatcher.term is not None
            gaps.append(dispatcher.term.bucket_audit.gaps)
        assert gaps[-1] == {"acme": 0.0}
        assert {gap for found in gaps for gap in found.values()} == {0.0}
        await until(lambda: len(telemetry.records) > 10, 60)


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        (lambda level: str(level + 700), 1),
        pytest.param(lambda level: "-90000", -1, marks=pytest.mark.slow),
        pytest.param(None, 1, marks=pytest.mark.slow),
    ],
    ids=["too full", "too empty", "gone"],
)
async def test_a_broken_bucket_is_noticed_and_left_as_it_is(
    redis_url: str, resp: RespConnection, pool_id: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, fault: Callable[[float], str] | None, sign: int,
):  # fmt: skip
    key = f"qm:{{{pool_id}}}:buckets"
    async with at_work(redis_url, resp, pool_id, monkeypatch) as (dispatcher, _, telemetry, compared):
        for _ in range(20):  # away from its brim, above which nobody can tell
            level = float(await resp.call("HGET", key, "acme:level") or 3000)
            if level < 2000:
                break
            await more(compared, 1)
        await resp.call("HSET", key, "acme:level", "1500")
        await more(compared, 4)
        caplog.clear()
        seen = len(telemetry.samples) + 1
        if fault is None:
            await resp.call("HDEL", key, "acme:level", "acme:at", "acme:rate", "acme:depth")
        else:
            await resp.call("HSET", key, "acme:level", fault(float(await resp.call("HGET", key, "acme:level"))))
        await until(lambda: any(s.bucket_gaps.get("acme", 0.0) * sign > 200 for s in telemetry.samples[seen:]), 60)
        assert any("the bucket of acme holds" in r.getMessage() for r in caplog.records)
        await more(compared, 4)
        assert dispatcher.term is not None
        assert dispatcher.term.bucket_audit.gaps == {"acme": 0.0}, "the next minute is compared with what is there"


def test_bounds_follow_refill_charges_and_what_ended():
    def audit(now_s: float, level: float, reserved: int) -> PoolAudit:
        return PoolAudit(int(now_s * 1000), "1", (0, 0), {"e": reserved}, {"e": BucketLevel(level, 10.0, 1000.0)})

    # 60 s at 10/s, 300 taken by what ended, 50 more in flight than before
    assert bucket_audit.bounds_of("e", audit(0, 100, 0), audit(60, 350, 50), 300, 400, 1000.0) == (250, 350, 350)
    assert bucket_audit.bounds_of("e", audit(0, 900, 0), audit(60, 1000, 0), 0, 0, 1000.0) == (1000, 1000, 1000)
    assert (
        bucket_audit.bounds_of("e", audit(0, 900, 0), audit(60, 1000, 0), 0, 0, 2000.0) is None
    )  # another depth since
