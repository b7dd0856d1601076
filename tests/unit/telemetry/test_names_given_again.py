"""A tenant is deleted, and another one gets its name: what the former one did is no business of the new one's members,
although the ledger, sums and alerts know tenants by their names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import msgspec
import pytest
from rest_framework.test import APIClient

from telemetry.feed import history, snapshots
from telemetry.feed.window import Window
from telemetry.ledger import rollup, writer
from telemetry.models import Alert, ReservedHour
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import ApiKey, Entitlement, Role, Tenant
from tests.support import worlds
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, record, sample

pytestmark = pytest.mark.django_db
FORMER = record(1, key_id="former", user="ada@former.example")
HOUR = datetime.fromtimestamp(NOW // 3600 * 3600, UTC)


@pytest.fixture(autouse=True)
def store() -> Iterator[MemoryStore]:
    memory, window = MemoryStore(), Window()
    window.add([record(1)], NOW)
    shot = snapshots.snapshot(sample(), window, ENTITLEMENTS, 5)
    memory.store("llama", 1, 5, msgspec.json.encode(shot), msgspec.json.encode(history.point(shot)))
    with mock.patch("telemetry.api.live.live_store", return_value=memory), mock.patch("time.time", return_value=NOW):
        yield memory


def read(who: Any) -> dict[str, Any]:
    client = APIClient()
    client.force_login(who)
    span = "from=2026-09-01T00:00:00Z&to=2027-12-31T00:00:00Z"
    month = f"{HOUR:%Y-%m}"
    paths = {
        "requests": "requests", "one": f"requests/{FORMER.request_id}", "tail": "requests/tail",
        "usage": f"usage?{span}&group_by=tenant", "users": f"usage?{span}&group_by=user", "alerts": "alerts",
        "statement": f"statements?month={month}", "keys": "keys/last-used", "history": "live/history?pool=llama",
        "export": "requests/export?format=csv",
    }  # fmt: skip
    answers = {name: client.get(f"/api/v1/{path}") for name, path in paths.items()}
    return {name: b"".join(a).decode() if a.streaming else a.content.decode() for name, a in answers.items()}


@pytest.mark.parametrize("summed", [False, True])
def test_who_takes_the_name_of_a_tenant_that_is_gone_reads_nothing_of_its_past(summed: bool) -> None:
    world = worlds.build()
    writer.write([FORMER])
    ReservedHour.objects.create(
        hour=HOUR, pool="llama", model="meta/llama", tenant="acme", entitlement="acme-llama", slot_us=77_000_000
    )
    Alert.objects.create(kind="quota_soft", name="former's", line="acme used 7 of 8", tenant="acme", at=HOUR)
    if summed:
        rollup.roll_up()
    marks = ("former", FORMER.request_id, "acme-llama", '"acme"')
    before = read(world.users["alice"])
    assert {name for name, text in before.items() if any(mark in text for mark in marks)} | {"keys"} == {*before}
    for row in (
        *ApiKey.objects.filter(entitlement__tenant__slug="acme"),
        *Entitlement.objects.filter(tenant__slug="acme"),
    ):
        services.delete(actor=SYSTEM, instance=row)
    services.delete(actor=SYSTEM, instance=Tenant.objects.get(slug="acme"))
    tenant = Tenant.objects.create(slug="acme")
    entitlement = Entitlement.objects.create(
        slug="acme-new", tenant=tenant, pool=world.pool, tier=world.entitlements["globex"].tier, concurrency=1
    )
    world.users["bob"].memberships.create(role=Role.MEMBER, tenant=tenant)
    seen = read(world.users["bob"])
    assert not {name for name, text in seen.items() if any(mark in text for mark in marks)}, seen
    now_s = time.clock_gettime(time.CLOCK_REALTIME)
    writer.write([record(9, entitlement=entitlement.slug, key_id="new", received_s=now_s, done_s=now_s + 1)])
    assert record(9).request_id in read(world.users["bob"])["requests"]
    assert FORMER.request_id in read(world.users["olga"])["requests"], "who sees everything sees it"
