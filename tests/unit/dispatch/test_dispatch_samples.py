"""What the leader hands upward each second: who holds how much KV cache, and how fast each is served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.policies.contracts import QueuePart
from scheduling.dispatch.samples import Sampler
from scheduling.gateway.errors import Refusal
from scheduling.gateway.lifecycle import check_entitled
from scheduling.state.types import EntitlementTotals, PoolSnapshot
from tests.support.scheduling_world import waiting
from tests.support.telemetry_world import ENTITLEMENTS, NOW, POOL


def looked(second: float, served: int, kv: int = 500) -> PoolSnapshot:
    totals = EntitlementTotals(running=2, waiting=1, kv_tokens=kv, level_tokens=None, service_ms=None)
    return PoolSnapshot(
        now_ms=int((NOW + second) * 1000), epoch=1, leader="w", rebuilding_ms=0, service_ms=None, running=2, waiting=1,
        waiting_bytes=0, ledger_waiting=0, entitlements={"acme": replace(totals, served_tokens=served)},
    )  # fmt: skip


def test_kv_cache_is_what_runs_and_not_what_waits_for_it() -> None:
    sample = Sampler("w", 1).sample(looked(0, 0), POOL, "fifo@1", [waiting(1, kv_tokens=200)], [])
    assert sample.kv_used == {"acme": 300}
    assert sample.waiting == {"acme": 1}


def test_what_waits_is_told_in_requests_and_in_the_places_that_they_will_take() -> None:
    wide = replace(waiting(1), entitlement="acme", sequences=5)
    sample = Sampler("w", 1).sample(looked(0, 0), POOL, "fifo@1", [wide], [])
    assert (sample.waiting, sample.waiting_sequences) == ({"acme": 1}, {"acme": 5})
    unknown = Sampler("w", 1).sample(looked(0, 0), POOL, "fifo@1", [], [])
    assert unknown.waiting_sequences == {"acme": 1}, "one that this process has not read yet is one"


def test_the_rate_of_service_is_the_meters_growth_over_ten_seconds() -> None:
    sampler = Sampler("w", 1)
    rates = [sampler.sample(looked(s, 300 * (s // 3)), POOL, "fifo@1", [], []).served_per_s for s in range(31)]
    assert rates[0] == {}
    # renewals every three seconds: never nothing, never everything at once
    assert all(80 <= rate["acme"] <= 120 for rate in rates[12:])


def test_a_meter_that_started_again_gives_no_negative_rate() -> None:
    sampler = Sampler("w", 1)
    sampler.sample(looked(0, 9000), POOL, "fifo@1", [], [])
    assert sampler.sample(looked(1, 10), POOL, "fifo@1", [], []).served_per_s == {}


def test_a_paused_tenants_request_is_refused_with_that_reason() -> None:
    spec = ENTITLEMENTS["acme-llama"]
    check_entitled(spec, NOW)
    with pytest.raises(Refusal) as refused:
        check_entitled(replace(spec, paused=True), NOW)
    assert (refused.value.reason.value, refused.value.status) == ("tenant_paused", 403)


def test_parts_are_those_in_which_something_waits_and_a_band_that_is_cut_into_queues_is_not_counted_twice() -> None:
    parts = [
        QueuePart("reserved band", "band", 0),
        QueuePart("elastic band", "band", 5),
        QueuePart("elastic, queue 1", "queue", 3, 1, 256),
        QueuePart("elastic, bubble 2", "bubble", 2, 900, 1000),
        QueuePart("spot band", "band", 4),
        QueuePart("relegated", "relegated", 1),
    ]
    sample = Sampler("w", 1).sample(looked(0, 0), POOL, "fifo@1", [], [], parts=parts)
    assert sample.parts == {"elastic, queue 1": 3, "elastic, bubble 2": 2, "spot band": 4, "relegated": 1}
