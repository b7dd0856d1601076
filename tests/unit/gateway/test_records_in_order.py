"""What is made in the order of its fields has each of them where its name says."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace as Some
from typing import Any, cast

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Estimate, QueuedRequest, Slo
from scheduling.gateway.estimate.estimates import make_queued
from scheduling.gateway.ledger.records import record_of

SLO = Slo(ttft_s=61.0, tbt_s=62.0, ttlt_s=63.0)


def test_a_ledger_record_has_each_figure_under_its_name() -> None:
    expected: dict[str, Any] = {
        "request_id": "id", "pool": "pool", "model": "model", "tenant": "tenant", "tier": "tier",
        "entitlement": "entitlement", "key_id": "key", "gateway": "gateway", "outcome": Outcome.FAILED,
        "reason": Reason.BACKEND_ERROR, "status": 502, "streamed": True, "attempts": 2, "backend": "backend",
        "policy": "policy", "why": "why", "input_tokens_est": 11, "output_tokens_est": 12.0, "output_bound": 13,
        "input_tokens": 14, "output_tokens": 15, "received_s": 21.0, "queued_s": 22.0, "granted_s": 23.0,
        "first_token_s": 24.0, "done_s": 25.0, "ttft_slo_s": 61.0, "tbt_slo_s": 62.0, "ttlt_slo_s": 63.0,
        "slo_met": False, "category": "category", "estimate_source": "source", "output_tokens_p90": 31.0,
        "output_rank": None, "trace": "trace", "user": "user", "instead_of": "other", "instead_why": "no_backend",
        "admission": "", "cached_tokens": 16, "project": "project", "interruptions": 3, "sequences": 5,
        "ran_before_s": 26.0, "client_retry": 7,
    }  # fmt: skip
    assert list(expected) == [one.name for one in fields(LedgerRecord)]
    entitlement = Some(tenant="tenant", id="entitlement", tier=Some(name="tier", slo=SLO))
    access = Some(
        pool=Some(id="pool", model="model"), entitlement=entitlement, key=Some(id="key", project="project")
    )  # fmt: skip
    run = Some(
        tries=2, backend="backend", policy="policy", why_there="why", input_tokens=14, output_tokens=15, queued_s=22.0,
        granted_s=23.0, first_token_s=24.0, admission=None, cached_tokens=16, interruptions=3, ran_before_s=26.0,
    )  # fmt: skip
    estimate = Estimate(11, 13, 12.0, 0, 0, "source", 31.0, "category")
    estimated = Some(estimate=estimate, prepared=Some(choices=5), outlook=None)
    call = Some(id="id", status=502, received_s=21.0, now_s=lambda: 25.0, estimated=estimated, submitted=run)
    identified = Some(
        call=call, access=access, streamed=True, trace="trace", user="user", client_retry=7, instead_why="no_backend",
        instead_of=Some(entitlement=Some(id="other")),
    )  # fmt: skip
    record = record_of(cast(Any, identified), Reason.BACKEND_ERROR, "gateway")
    assert {name: getattr(record, name) for name in expected} == expected


def test_a_queued_request_has_each_figure_under_its_name() -> None:
    expected: dict[str, Any] = {
        "id": "r", "seq": 0, "arrival_s": 100.0, "entitlement": "entitlement", "tenant": "tenant", "tier": "tier",
        "rank": 3, "weight": 4.0, "service_class": "spot", "input_tokens": 11, "output_bound": 1300,
        "output_tokens": 12.0, "kv_tokens": 14, "attempt": 1, "client_priority": -5, "ttft_deadline_s": 161.0,
        "ttlt_deadline_s": 163.0, "expires_s": 107.0, "exclude_backend": "", "gateway": "gateway", "concurrency": 8,
        "prefilled": 0, "generated": 0, "output_lengths": (1.0,), "output_probabilities": (0.5,), "prefixes": "",
        "hint_deadline_s": None, "adapter": "adapter", "uncounted_tokens": 0, "uncounted_point": "", "sequences": 2,
        "resumes_at": "", "preempted": 0, "leaves_s": None, "leaves_tokens": 0.0, "fills": 1.0,
    }  # fmt: skip
    assert {*expected, "pace_us"} == {one.name for one in fields(QueuedRequest)}
    tier = Some(name="tier", rank=3, weight=4.0, service_class="spot", slo=SLO, max_wait_s=7.0)
    access = Some(
        entitlement=Some(id="entitlement", tenant="tenant", tier=tier, concurrency=8),
        pool=Some(adapter="adapter", routing="least_work"),
    )  # fmt: skip
    estimate = Estimate(11, 1300, 12.0, 14, 0, output_lengths=(1.0,), output_probabilities=(0.5,))
    prepared = Some(stream=True, client_priority=-5, choices=2, media=0.0)
    queued = make_queued("r", 100.0, cast(Any, access), cast(Any, prepared), estimate, None, "gateway")
    assert {name: getattr(queued, name) for name in expected} == expected
    assert queued.pace_us == round(1e6 * 0.85 * 62.0)
