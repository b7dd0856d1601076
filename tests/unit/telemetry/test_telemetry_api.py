"""REST of the telemetry floor: who may see which requests, usage and snapshots."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import msgspec
import pytest
from django.contrib.admin import site
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.admin import LedgerEntryAdmin
from telemetry.api.requests import RequestsQuery
from telemetry.feed import history, snapshots
from telemetry.feed.window import Window
from telemetry.ledger import writer
from telemetry.models import Alert, LedgerEntry, ScalingDecision, ScalingState
from tenants.models import Pool
from tests.support import worlds
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, record, refused, sample

pytestmark = pytest.mark.django_db

ALICES = record(1).request_id
CAST = ("anonymous", "nora", "carol", "alice", "bob", "olga", "adam")
EVERY_ROLE = (401, 403, 200, 200, 200, 200, 200)
ACMES = (401, 403, 404, 200, 200, 200, 200)
MATRIX = {
    "estimates": EVERY_ROLE,
    "keys/last-used": EVERY_ROLE,
    "find?q=acme": EVERY_ROLE,
    "tenant-colors": EVERY_ROLE,
    "live": EVERY_ROLE,
    "live/history?pool=llama": EVERY_ROLE,  # both tenants use it
    "live/history?pool=acmes-own": ACMES,
    "requests": EVERY_ROLE,
    "requests/explore": EVERY_ROLE,
    "requests/export": EVERY_ROLE,
    "requests/tail": EVERY_ROLE,
    f"requests/{ALICES}": ACMES,
    "spending": EVERY_ROLE,
    "statements": EVERY_ROLE,
    "usage": EVERY_ROLE,
    "estimates/history": EVERY_ROLE,
    "alerts": EVERY_ROLE,
    "alerts/open": EVERY_ROLE,
    "alerts/assignees": (401, 403, 404, 404, 404, 200, 200),
    "pools/llama/moment?at=2026-01-01T00:00:00Z": (401, 403, 404, 404, 404, 200, 200),
    "events": (401, 403, 404, 404, 404, 200, 200),
    "pools/llama/scaling": (401, 403, 404, 404, 404, 200, 200),
    "pools/llama/external-metric": (401, 403, 404, 404, 404, 503, 503),  # nobody plans
    "tenants/acme/neighbours": (401, 403, 404, 404, 404, 200, 200),
}

# test_tuning_api.py, test_queue_api.py
OURS = ("telemetry.", "controlplane.")
ELSEWHERE = (
    "controlplane.tuning.api",
    "controlplane.lab.api",
    "controlplane.tuning.lengths",
    "controlplane.signin.api",
    "controlplane.signin.second_factor",
    "controlplane.signin.views",
    "controlplane.batches.api",
    "controlplane.batches.urls",
    "telemetry.api.queue",
)


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture(autouse=True)
def store() -> Iterator[MemoryStore]:
    memory = MemoryStore()
    window = Window()
    window.add([record(1)], NOW)
    window.add([record(2, tenant="globex", tier="standard", entitlement="globex-llama")], NOW)
    shot = snapshots.snapshot(sample(), window, ENTITLEMENTS, 5)
    only_acme = {k: v for k, v in shot["entitlements"].items() if v["tenant"] == "acme"}
    for pool, snapshot in (("llama", shot), ("acmes-own", shot | {"pool": "acmes-own", "entitlements": only_acme})):
        memory.store(pool, 1, 5, msgspec.json.encode(snapshot), msgspec.json.encode(history.point(snapshot)))
    with mock.patch("telemetry.api.live.live_store", return_value=memory):
        yield memory


@pytest.fixture(autouse=True)
def planned() -> None:
    ScalingState.objects.create(
        pool="llama", at=timezone.now(), epoch=1, mode="advise", current=2, wanted=3, reason="up from 2 to 3"
    )


@pytest.fixture(autouse=True)
def entries() -> None:
    writer.write(
        [
            record(1),
            refused(2, reason="kv_budget"),
            record(3, tenant="globex", tier="standard", entitlement="globex-llama", reason="length", backend="gpu-9"),
        ]
    )


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    if who != "anonymous":
        api.force_login(world.users[who])
    return api


def get(world: worlds.World, who: str, path: str, code: int = 200) -> Any:
    answer = client(world, who).get(f"/api/v1/{path}")
    assert answer.status_code == code, answer.content
    return answer.json()


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for entry in resolver.url_patterns:
        text = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from routes(entry, text)
        elif isinstance(entry, URLPattern):
            yield text, getattr(entry.callback, "cls", None) or getattr(entry.callback, "view_class", None)


def test_every_route_of_telemetry_is_in_the_matrix_and_only_reads() -> None:
    example = {"<str:request_id>": ALICES, "<slug:pool>": "llama", "<slug:tenant>": "acme"}
    found = {
        re.sub(r"<(str|slug):\w+>", lambda name: example[name.group()], text.removeprefix("api/v1/")): view
        for text, view in routes(get_resolver())
        if view is not None
        and view.__module__.startswith(("telemetry.", "controlplane."))
        and view.__module__ not in ELSEWHERE
    }
    assert found.pop("estimates/reset").http_method_names  # these write: test_telemetry_estimates.py
    assert found.pop("alert-rules")  # test_alert_rules.py
    assert found.pop("alerts/<int:pk>/acknowledge")
    assert found.pop("alerts/<int:pk>/silence")
    assert found.pop("alert-rules/<int:pk>")
    for path in ("alerts/<int:pk>/assign", "notification-channels", "notification-channels/<int:pk>"):
        assert found.pop(path)  # test_notification_channels.py
    assert found.pop("notification-channels/<int:pk>/test")
    for path in ("saved-views", "saved-views/<int:pk>"):
        assert found.pop(path)  # test_explorer_files.py
    for path in ("alerts/<int:pk>/incident", "alert-rules/rehearsal"):
        assert found.pop(path)  # test_incidents.py
    assert set(found) == {path.partition("?")[0] for path in MATRIX}
    for view in found.values():
        assert not any(hasattr(view, verb) for verb in ("post", "put", "patch", "delete"))


@pytest.mark.parametrize("path", MATRIX)
def test_each_role_gets_the_answer_of_the_table(path: str, world: worlds.World) -> None:
    seen = {who: client(world, who).get(f"/api/v1/{path}").status_code for who in CAST}
    assert seen == dict(zip(CAST, MATRIX[path], strict=True))


@pytest.mark.parametrize(
    "path",
    [
        "estimates?from=2020-01-01T00:00:00Z", "live", "live/history?pool=llama", "requests",
        "requests?tenant=acme", f"requests?request_id={ALICES}",
        "requests?entitlement=acme-llama", "usage?group_by=tenant,tier,entitlement,reason&from=2020-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_carol_sees_nothing_of_alices(path: str, world: worlds.World) -> None:
    text = json.dumps(get(world, "carol", path))
    for foreign in ("acme", ALICES, "kv_budget", "premium"):
        assert foreign not in text


def test_an_access_token_signs_in_as_its_owner(world: worlds.World) -> None:
    api = APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['alice'].credential.text}")
    assert api.get(f"/api/v1/requests/{ALICES}").status_code == 200


def test_requests_come_newest_first_and_can_be_paged_without_gaps(world: worlds.World) -> None:
    writer.write([record(100 + n, received_s=NOW - 50 + (n // 3)) for n in range(30)])
    seen: list[str] = []
    page = get(world, "adam", "requests?limit=7")
    while True:
        seen += [row["request_id"] for row in page["results"]]
        if page["next"] is None:
            break
        page = get(world, "adam", page["next"].partition("/api/v1/")[2])
    assert len(seen) == len(set(seen)) == 33


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("tenant=acme", 2), ("tenant=nobody", 0), ("outcome=refused", 1), ("reason=length", 1), ("slo_met=true", 2),
        ("entitlement=globex-llama", 1), (f"request_id={ALICES}", 1), ("request_id=req_", 3), ("pool=llama", 3),
        ("backend=gpu-9", 1), ("from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", 0), ("key_id=k1&tier=premium", 2),
    ],
)  # fmt: skip
def test_filters_narrow_the_list(query: str, count: int, world: worlds.World) -> None:
    assert len(get(world, "adam", f"requests?{query}")["results"]) == count


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({}, "ledger_received"),
        ({"tenant": "acme"}, "ledger_tenant_received"),
        ({"pool": "llama"}, "ledger_pool_received"),
        ({"entitlement": "acme-llama"}, "ledger_entitlement_received"),
        ({"key_id": "k1"}, "ledger_key_received"),
        ({"outcome": "failed", "reason": "backend_lost"}, "ledger_outcome_received"),
        ({"reason": "backend_lost"}, "ledger_outcome_received"),
        ({"outcome": "failed"}, "ledger_outcome_received"),
        ({"user": "ada"}, "ledger_user_received"),
    ],
)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by how many rows there are")
def test_a_page_of_the_ledger_is_read_in_the_order_of_an_index(query: dict[str, str], index: str) -> None:
    rows = RequestsQuery(data=query).rows(LedgerEntry.objects.all(), operator=True)
    plan = rows.order_by("-received_at", "-id")[:50].explain()
    assert index in plan
    assert "SCAN" not in plan.replace(f"SCAN telemetry_ledgerentry USING INDEX {index}", "")
    assert "TEMP B-TREE" not in plan, "it is read in order, not sorted"


@pytest.mark.parametrize("query", ["outcome=lost", "reason=x", "from=yesterday", "slo_met=perhaps"])
def test_a_filter_that_makes_no_sense_is_named(query: str, world: worlds.World) -> None:
    assert query.partition("=")[0] in get(world, "adam", f"requests?{query}", 400)


def test_a_request_shows_its_waits_but_members_neither_why_nor_where(world: worlds.World) -> None:
    seen = get(world, "alice", f"requests/{ALICES}")
    assert (seen["queue_ms"], seen["ttft_ms"], seen["total_ms"]) == (100.0, 500.0, 3000.0)
    assert seen["why"] == ""  # "rank 0 before 3 waiting" counts the others' requests
    assert not {"backend", "gateway", "id"} & set(seen)
    assert get(world, "olga", f"requests/{ALICES}")["backend"] == "gpu-1"
    get(world, "alice", "requests?backend=gpu-1", 400)


def test_usage_adds_up_by_group_and_within_scope(world: worlds.World) -> None:
    day = datetime.fromtimestamp(NOW, tz=UTC)
    span = f"from={day:%Y-%m-%d}T00:00:00Z&to={day:%Y-%m-%d}T23:59:59Z"
    rows = get(world, "adam", f"usage?group_by=tenant,hour&{span}")["rows"]
    assert [(row["tenant"], row["requests"], row["output_tokens"]) for row in rows] == [
        ("acme", 2, 101),
        ("globex", 1, 101),
    ]
    assert rows[0]["hour"].startswith(f"{day:%Y-%m-%dT%H}:00:00")
    assert [row["tenant"] for row in get(world, "carol", f"usage?{span}")["rows"]] == ["globex"]


def test_usage_comes_as_csv(world: worlds.World) -> None:
    answer = client(world, "adam").get(
        "/api/v1/usage?group_by=tenant,entitlement&from=2020-01-01T00:00:00Z&to=2100-01-01T00:00:00Z&format=csv"
    )
    assert answer["Content-Type"].startswith("text/csv")
    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [(r["tenant"], r["entitlement"], r["requests"]) for r in rows] == [
        ("acme", "acme-llama", "2"),
        ("globex", "globex-llama", "1"),
    ]


def test_what_a_request_used_whose_gateway_was_lost_is_unknown_and_not_zero(world: worlds.World) -> None:
    lost = {"outcome": "failed", "reason": "gateway_lost", "output_tokens": 0, "first_token_s": None}
    waited = lost | {"granted_s": None, "backend": ""}
    told = {11: None, 12: None, 13: 40, 14: 0}  # and of which prompts tokens were told
    writer.write(
        [
            record(11, **lost, input_tokens=0),
            record(12, **lost, input_tokens=0),
            record(13, **lost, input_tokens=40),
            record(14, **waited, input_tokens=0),
        ]
    )
    rows = get(world, "adam", "requests?reason=gateway_lost")["results"]
    assert {int(row["request_id"][4:], 16): row["input_tokens"] for row in rows} == told
    assert {row["output_tokens"] for row in rows if row["input_tokens"] != 0} == {None}
    assert get(world, "alice", f"requests/{record(11).request_id}")["output_tokens"] is None
    sent = get(world, "adam", "requests/export?reason=gateway_lost")["requests"]
    assert {int(row["request_id"][4:], 16): row["input_tokens"] for row in sent} == told
    file = client(world, "adam").get("/api/v1/requests/export?reason=gateway_lost&format=csv").getvalue().decode()
    cells = {int(row["request_id"][4:], 16): row["input_tokens"] for row in csv.DictReader(io.StringIO(file))}
    assert cells == {11: "", 12: "", 13: "40", 14: "0"}
    office = Client()
    office.force_login(world.users["adam"])
    pages = site._registry[LedgerEntry]
    assert isinstance(pages, LedgerEntryAdmin)
    for number, shown in ((11, ("unknown", "unknown")), (13, ("40", "unknown"))):
        row = LedgerEntry.objects.get(request_id=record(number).request_id)
        assert (pages.shown_input(row), pages.shown_output(row)) == shown
        page = office.get(f"/admin/telemetry/ledgerentry/{row.pk}/change/").content.decode()
        assert "unknown" in page
        assert office.get(f"/admin/telemetry/ledgerentry/?q={row.request_id}").status_code == 200


@pytest.mark.parametrize(
    "query", ["group_by=prompt", "group_by=tenant,tenant", "from=2021-01-01T00:00:00Z&to=2020-01-01T00:00:00Z"]
)
def test_usage_that_cannot_be_is_refused_with_a_reason(query: str, world: worlds.World) -> None:
    get(world, "adam", f"usage?{query}", 400)


@pytest.mark.parametrize("path", ["usage", "statements"])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_misspelled_filter_of_what_is_billed_is_refused_and_not_left_out(
    path: str, form: str, world: worlds.World
) -> None:
    answer = client(world, "adam").get(f"/api/v1/{path}?tennant=acme&format={form}")
    assert answer.status_code == 400
    assert "Did you mean 'tenant'?" in str(answer.content, "utf-8")
    assert client(world, "adam").get(f"/api/v1/{path}?tenant=acme&format={form}").status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("usage?group_by=prompt&format=csv", "group_by"),
        ("usage?group_by=prompt&format=parquet", "group_by"),
        *(
            (f"statements?month=2026-13&format={form}", "month")
            for form in ("csv", "focus", "parquet", "focus-parquet")
        ),
        ("requests/export?outcome=x&format=csv", "outcome"),
    ],
)
def test_a_file_that_cannot_be_made_is_refused_in_json_as_everywhere(
    path: str, field: str, world: worlds.World
) -> None:
    answer = client(world, "adam").get(f"/api/v1/{path}")
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/json")
    assert list(answer.json()) == [field]


def test_live_says_503_without_redis_and_what_it_means(world: worlds.World, store: MemoryStore) -> None:
    store.available = False
    assert "Redis" in get(world, "adam", "live", 503)["detail"]
    get(world, "adam", "live/history?pool=llama", 503)


def test_live_has_the_members_own_view(world: worlds.World) -> None:
    assert get(world, "adam", "live")["pools"]["llama"]["scope"] == "all"
    seen = get(world, "carol", "live")["pools"]
    assert set(seen) == {"llama"}
    assert (seen["llama"]["scope"], set(seen["llama"]["tenants"])) == ("own", {"globex"})


@pytest.mark.parametrize("query", ["", "?pool=llama&minutes=0", "?pool=llama&minutes=10081"])
def test_history_wants_a_pool_and_at_most_a_week(query: str, world: worlds.World) -> None:
    get(world, "adam", f"live/history{query}", 400)


@pytest.mark.parametrize(("who", "sees"), [("adam", True), ("olga", True), ("alice", False), ("nora", False)])
def test_the_back_office_lists_requests_by_role_and_changes_none(
    who: str, sees: bool, world: worlds.World, client: Any
) -> None:
    user = world.users[who]
    user.is_staff = True
    user.save()
    client.force_login(user)
    page = client.get("/admin/telemetry/ledgerentry/?outcome__exact=refused")
    entry = LedgerEntry.objects.get(request_id=ALICES)
    change = f"/admin/telemetry/ledgerentry/{entry.pk}/change/"
    assert page.status_code == client.get(change).status_code == (200 if sees else 403)
    if sees:
        assert refused(2).request_id in page.content.decode()
        assert ALICES not in page.content.decode()
    assert client.post(change, {"tenant": "x"}).status_code == 403
    assert client.get("/admin/telemetry/ledgerentry/add/").status_code == 403
    assert client.post(f"/admin/telemetry/ledgerentry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403


# --- scaling and alerts


def test_a_pools_scaling_shows_promise_limit_and_decisions(world: worlds.World) -> None:
    Pool.objects.filter(slug="llama").update(scaling_mode="advise", max_replicas=3)
    ScalingDecision.objects.create(
        pool="llama", at=timezone.now(), epoch=1, from_replicas=2, to_replicas=3, reason="slots", outcome="advised"
    )
    seen = get(world, "olga", "pools/llama/scaling")
    assert seen["promised"]["slots"] == 16  # two entitlements of 8
    assert seen["provisionable"]["slots"] == 96  # three replicas of 32
    assert (seen["state"]["wanted"], seen["state"]["reason"]) == (3, "up from 2 to 3")
    assert [(d["from_replicas"], d["to_replicas"], d["outcome"]) for d in seen["decisions"]] == [(2, 3, "advised")]


def test_keda_gets_the_wanted_replicas_with_an_access_token_and_503_when_they_are_old_or_nobody_plans(
    world: worlds.World,
) -> None:
    api = APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['olga'].credential.text}")
    path = "/api/v1/pools/llama/external-metric"
    assert api.get(path).status_code == 503, "scaling is off: what was said before does not hold"
    Pool.objects.filter(slug="llama").update(scaling_mode="advise")
    assert api.get(path).json()["replicas"] == 3
    ScalingState.objects.update(at=timezone.now() - timedelta(minutes=4))
    assert api.get(path).status_code == 503


def test_members_see_alerts_about_their_tenant_only(world: worlds.World) -> None:
    for tenant in ("acme", "globex"):
        Alert.objects.create(kind="quota_soft", name=f"quota:{tenant}", tenant=tenant, line=f"{tenant} used much")
    assert [a["tenant"] for a in get(world, "alice", "alerts")["results"]] == ["acme"]
    assert len(get(world, "olga", "alerts")["results"]) == 2
