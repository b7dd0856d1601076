"""Answers hold what the OpenAPI schema says, no more and no less: the console's types are made from it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.core.policies.contracts import QueuePart
from scheduling.core.scheduler.preview import Planned, Preview
from scheduling.dispatch import queue_preview
from scheduling.state.codec import decode_entry
from telemetry.ledger import writer
from telemetry.ledger.queue import LiveRequest, QueueUnavailable
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Budget, Price, Quota
from tests.support import worlds
from tests.support.answer_schemas import faults, schemas_of_answers
from tests.support.state_world import entitlement, estimate, request
from tests.support.telemetry_world import globex_record, record
from tests.unit.telemetry.test_queue_api import entry

pytestmark = pytest.mark.django_db
API = "/api/v1/"
LISTS = {
    "tenants": "Tenant", "slos": "Slo", "tiers": "Tier", "pools": "Pool", "backends": "Backend",
    "entitlements": "Entitlement", "keys": "Key", "memberships": "Membership", "quotas": "Quota", "prices": "Price",
    "budgets": "Budget",
    "audit": "Audit", "requests": "Request", "pools/llama/versions": "Version",
}  # fmt: skip

ANSWERS = {
    "usage?group_by=tenant,pool": "Usage",
    "statements": "Statement",
    "spending": "Spending",
    "tenants/acme/neighbours": "Neighbours",
    "pools/llama/lengths": "Lengths",
    "pools/llama/tuning": "Tuning",
    "me": "Me",
    "alerts/open": "OpenAlerts",
    "estimates": "Estimates",
    "estimates/history": "EstimatesHistory",
    "pools/llama/queue": "Queue",
    "pools/llama/scaling": "Scaling",
    "pools/llama/trust": "Trust",
    f"requests/{record(1).request_id}": "RequestStory",
    "requests/req_r": "AliveRequest",
}


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return schemas_of_answers()


@pytest.fixture
def adam() -> APIClient:
    world = worlds.build()
    with services.change(actor=SYSTEM):
        services.save(actor=SYSTEM, instance=Quota(tenant=world.tenants["acme"], hard_tokens=10**9))
        services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=100))
        services.save(actor=SYSTEM, instance=Price(pool=world.pool, valid_from=timezone.now() - timedelta(days=1)))
    now_s = time.time()
    waited = {"received_s": now_s - 60, "queued_s": now_s - 60, "granted_s": now_s - 50, "done_s": now_s - 48}
    held = {"received_s": now_s - 61, "queued_s": None, "granted_s": now_s - 61, "done_s": now_s - 49}
    writer.write([record(1, **waited, first_token_s=None), globex_record(2, **held, first_token_s=None)])
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['adam'].credential.text}")


class _Learned:
    """What gateways have reported of one tenant and of all."""

    def load(self, pools: Iterable[str]) -> dict[str, Any]:
        factor = {"category": "code", "factor": 1.2, "observed": 40}
        limit = {"source": "similar", "factor": 1.1, "observed": 40}
        share = {"learned": 40, "prompts": 3, "factors": [factor], "calibration": [limit]}
        prior = [{"category": "code", "factor": 1.1, "tenants": 2}]
        return {name: {"predictor": "similar", "tenants": {"acme": share}, "prior": prior} for name in pools}


class _Queue:
    """A pool in which one request waits and one runs."""

    def preview(self, pool: str) -> dict[str, Any]:
        planned = Planned(request("req_w", entitlement("acme-llama"), estimate()), 12.0, "gpu-1", "oldest arrival")
        parts = (QueuePart("0", "queue", 1, 1, 64, 0.5), QueuePart("elastic band", "band", 1))
        head = {
            "at": 1.0, "epoch": 1, "policy": "unified@1", "waiting": 1, "parked": 0, "occupation_s": 2.0,
            "took_ms": 1.0,
        }  # fmt: skip
        answer: dict[str, Any] = head | queue_preview._body(Preview((planned,), parts, exact=True))
        return answer

    def running(self, pool: str) -> list[LiveRequest]:
        return [LiveRequest(pool, "req_r", decode_entry(entry("req_r", "acme", "gw-1", 1000)))]

    def find(self, request_id: str, pools: Iterable[str]) -> LiveRequest | None:
        return next((one for one in self.running("llama") if one.id == request_id), None)

    def now_s(self, pool: str) -> float:
        return 2.0


def test_answers_have_the_fields_of_their_schemas(adam: APIClient, schemas: dict[str, Any]) -> None:
    wrong = []
    for route, name in LISTS.items():
        rows = adam.get(API + route).json()["results"]
        assert rows, f"{route}: an empty list compares nothing"
        wrong += [fault for row in rows for fault in faults(row, schemas[name], schemas, route)]
    with (
        mock.patch("telemetry.api.neighbours.queue_store", side_effect=QueueUnavailable),
        mock.patch("telemetry.api.estimates.drift_store", return_value=_Learned()),
        mock.patch("telemetry.api.queue.queue_store", return_value=_Queue()),
        mock.patch("telemetry.api.requests.queue_store", return_value=_Queue()),
    ):
        for address, name in ANSWERS.items():
            answer = adam.get(API + address)
            assert answer.status_code == 200
            wrong += faults(answer.json(), schemas[name], schemas, address)
    assert wrong == []


def test_a_key_that_is_missing_too_many_or_null_is_found(schemas: dict[str, Any]) -> None:
    row = {"tenant": "acme", "slot_s": 1.0, "share": 1.0, "requests": None, "overtaken": 0}
    assert faults({"held": [row]}, {"properties": {"held": {"items": {"$ref": "#/Holder"}}}}, schemas) == [
        ".held[] lacks overtook",
        ".held[] has overtaken",
        ".held[].requests is null",
    ]
