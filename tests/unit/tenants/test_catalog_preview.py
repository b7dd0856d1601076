"""What a change would do is said before it is made, and saying it changes nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from telemetry.ledger import rollup
from telemetry.ledger.writer import write
from telemetry.models import LedgerEntry, UsageHour
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import ApiKey, AuditEntry, CatalogVersion, Entitlement, Pool, Tenant, Tier
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def adam(world: worlds.World) -> APIClient:
    client = APIClient()
    client.force_login(world.users["adam"])
    return client


def state() -> tuple[Any, ...]:
    entitlements = list(Entitlement.objects.order_by("pk").values_list("slug", "state", "concurrency"))
    return (CatalogVersion.objects.get().version, AuditEntry.objects.count(), entitlements)


def test_a_share_that_does_not_fit_is_said_before_saving_and_nothing_is_kept(
    world: worlds.World, adam: APIClient
) -> None:
    before = state()
    body = {"slug": "big", "tenant": "globex", "pool": "llama", "tier": "premium", "concurrency": 30}
    answer = adam.post("/api/v1/entitlements?dry_run=true", body, format="json")
    assert answer.status_code == 200
    (pool,) = answer.json()["pools"]
    assert pool["before"]["capacity"]["slots"] == 32
    assert pool["before"]["reserved"]["slots"] == 8  # acme's premium
    (changed,) = pool["entitlements"]
    assert changed["entitlement"] == "big"
    assert changed["before"] is None
    assert changed["after"]["state"] == "pending"
    assert "needs 30 slots, the pool has 24 left" in changed["after"]["reason"]
    assert state() == before


def test_a_preview_says_what_saving_then_does(world: worlds.World, adam: APIClient) -> None:
    url, body = "/api/v1/entitlements/acme-llama", {"concurrency": 20}
    (pool,) = adam.patch(f"{url}?dry_run=true", body, format="json").json()["pools"]
    assert pool["after"]["reserved"]["slots"] == 20
    saved = adam.patch(url, body, format="json").json()
    assert saved["state"] == "bound"
    assert adam.patch(f"{url}?dry_run=true", body, format="json").json() == {"pools": [], "changes": []}


def test_taking_a_backend_away_says_whose_promise_it_breaks(world: worlds.World, adam: APIClient) -> None:
    before = state()
    (pool,) = adam.delete("/api/v1/backends/gpu-1?dry_run=true").json()["pools"]
    assert pool["after"]["capacity"].get("slots") == 0
    (changed,) = pool["entitlements"]
    assert (changed["entitlement"], changed["before"]["state"], changed["after"]["state"]) == (
        "acme-llama",
        "bound",
        "degraded",
    )
    assert state() == before


def test_deleting_an_entitlement_names_the_keys_that_go_with_it(world: worlds.World, adam: APIClient) -> None:
    changes = adam.delete("/api/v1/entitlements/acme-llama?dry_run=true").json()["changes"]
    assert [(c["action"], c["kind"]) for c in changes] == [("delete", "apikey"), ("delete", "entitlement")]
    assert ApiKey.objects.filter(entitlement__slug="acme-llama").exists()


def test_a_preview_refuses_what_saving_would_refuse(world: worlds.World, adam: APIClient) -> None:
    answer = adam.patch("/api/v1/entitlements/acme-llama?dry_run=1", {"concurrency": 0}, format="json")
    assert answer.status_code == 400
    assert "concurrency" in answer.json()
    assert adam.delete("/api/v1/pools/llama?dry_run=true").status_code == 409
    assert adam.delete("/api/v1/pools/llama?dry_run=perhaps").status_code == 400


def test_only_those_who_may_write_may_try(world: worlds.World) -> None:
    for name, expected in (("olga", 403), ("alice", 403), ("carol", 404)):
        client = APIClient()
        client.force_login(world.users[name])
        answer = client.patch("/api/v1/entitlements/acme-llama?dry_run=true", {"concurrency": 2}, format="json")
        assert answer.status_code == expected


SETUP = {
    "pool": {"slug": "qwen", "model": "qwen3-8b"},
    "backend": {"slug": "qwen-0", "url": "http://10.0.0.9:8000", "slots": 16, "kv_tokens": 50_000},
    "tenant": {"slug": "umbrella"},
    "entitlement": {"slug": "umbrella-qwen", "tier": "premium", "concurrency": 4},
    "key": {"name": "first"},
}


def test_what_belongs_together_is_made_together_with_a_key_that_opens_it(adam: APIClient) -> None:
    answer = adam.post("/api/v1/setup", SETUP, format="json")
    assert answer.status_code == 201, answer.json()
    made = answer.json()
    assert made["entitlement"]["state"] == "bound"
    assert (made["entitlement"]["tenant"], made["entitlement"]["pool"]) == ("umbrella", "qwen")
    assert made["key"]["key"].startswith(f"qm-{made['key']['id']}.")
    assert answer["Cache-Control"] == "no-store"


def test_an_error_in_one_part_stands_under_its_name_and_nothing_is_made(adam: APIClient) -> None:
    wrong = SETUP | {"entitlement": {"slug": "umbrella-qwen", "tier": "premium", "concurrency": 0}}
    answer = adam.post("/api/v1/setup", wrong, format="json")
    assert answer.status_code == 400
    assert list(answer.json()) == ["entitlement"]
    assert "concurrency" in answer.json()["entitlement"]
    assert not Tenant.objects.filter(slug="umbrella").exists()
    assert not Pool.objects.filter(slug="qwen").exists()


def test_a_tried_setup_shows_the_new_pool_and_keeps_nothing(adam: APIClient) -> None:
    answer = adam.post("/api/v1/setup?dry_run=true", SETUP, format="json")
    (pool,) = answer.json()["pools"]
    assert (pool["pool"], pool["before"], pool["after"]["reserved"]["slots"]) == ("qwen", None, 4)
    assert "key" not in answer.content.decode().partition('"changes"')[0]
    assert not Pool.objects.filter(slug="qwen").exists()


@pytest.mark.parametrize("body", [{}, {"tenat": {}}, {"key": {"name": "x"}}, {"tenant": "acme"}])
def test_a_setup_without_sense_is_refused(adam: APIClient, body: dict[str, Any]) -> None:
    assert adam.post("/api/v1/setup", body, format="json").status_code == 400


class _Engine(BaseHTTPRequestHandler):
    """The four answers of a vLLM server."""

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n')
        else:
            self._send(b'{"data": [{"id": "qwen3-8b", "max_model_len": 4096}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._send(b'{"usage": {"completion_tokens": 1}}')

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_engine_is_looked_at_before_it_becomes_a_backend(adam: APIClient, engine: str) -> None:
    found = adam.post("/api/v1/engine-check", {"url": engine}, format="json").json()
    assert found["reachable"]
    assert found["ready"]
    assert found["used_by"] is None
    assert found["models"] == [{"id": "qwen3-8b", "max_model_len": 4096}]
    assert found["kv_tokens"] == 1600


def test_an_address_where_nothing_answers_is_said_so(adam: APIClient) -> None:
    found = adam.post("/api/v1/engine-check", {"url": "http://127.0.0.1:1"}, format="json").json()
    assert (found["reachable"], found["ready"], found["models"]) == (False, False, [])
    assert "/v1/models" in found["why"]
    refused = adam.post("/api/v1/engine-check", {"url": "file:///etc/passwd"}, format="json")
    assert refused.status_code == 400
    assert "url" in refused.json()


def test_keys_tell_when_they_were_last_used_before_and_after_hours_are_added_up(world: worlds.World) -> None:
    write([record(1, key_id="AAAAAAAAAAAA"), record(2, key_id="BBBBBBBBBBBB", tenant="globex")])
    moved = timezone.now() - timedelta(minutes=5)
    LedgerEntry.objects.update(received_at=moved)

    def seen_by(name: str, query: str = "") -> dict[str, str]:
        client = APIClient()
        client.force_login(world.users[name])
        found: dict[str, str] = client.get(f"/api/v1/keys/last-used{query}").json()
        return found

    assert seen_by("adam")["AAAAAAAAAAAA"] == moved.isoformat()
    assert set(seen_by("adam", "?tenant=globex")) == {"BBBBBBBBBBBB"}
    assert set(seen_by("alice")) == {"AAAAAAAAAAAA"}
    assert seen_by("alice", "?tenant=globex") == {}
    old = rollup.floor_hour(moved - timedelta(days=40))
    LedgerEntry.objects.update(received_at=old)
    rollup.roll_up()
    LedgerEntry.objects.all().delete()  # beyond its retention
    assert UsageHour.objects.exists()
    assert seen_by("alice") == {"AAAAAAAAAAAA": old.isoformat()}


def test_services_are_what_a_preview_runs(world: worlds.World) -> None:
    from tenants import preview

    found = preview.effects(SYSTEM, lambda: services.delete(actor=SYSTEM, instance=world.entitlements["acme"]))
    before, after = found.pools["llama"]
    assert before is not None
    assert after is not None
    assert "acme-llama" in before.standings
    assert "acme-llama" not in after.standings


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("keys", {"name": "k", "entitlement": "acme-llama"}),
        ("keys/{key}/revoke", {}),
        ("keys/{key}/rotate", {}),
        ("tokens", {"name": "t"}),
        ("tenants/acme/pause", {"reason": "why"}),
        ("pools/llama/policy", {"policy": "fifo", "params": {}}),
        ("people", {"username": "ci"}),
        ("saved-views", {"name": "v", "query": "tenant=acme"}),
    ],
)
def test_what_cannot_be_tried_is_not_done_when_a_trial_is_asked_for(
    world: worlds.World, adam: APIClient, path: str, body: dict[str, Any]
) -> None:
    path = path.replace("{key}", world.keys["acme"].credential.public_id)
    before = state()
    answer = adam.post(f"/api/v1/{path}?dry_run=true", body, format="json")
    assert (answer.status_code, list(answer.json())) == (400, ["dry_run"])
    assert state() == before
    assert adam.post(f"/api/v1/{path}?dry_run=false", body, format="json").status_code < 300


@pytest.mark.parametrize("misspelled", ["dryrun=true", "dry-run=true", "Dry_run=true", "force=true&dry_run=true"])
def test_a_write_whose_parameter_is_misspelled_is_not_done(
    world: worlds.World, adam: APIClient, misspelled: str
) -> None:
    before = state()
    for method, path in (("delete", "backends/gpu-1"), ("patch", "entitlements/acme-llama"), ("post", "saved-views")):
        answer = getattr(adam, method)(f"/api/v1/{path}?{misspelled}", {"concurrency": 1}, format="json")
        assert answer.status_code == 400
        assert "Nothing was done" in str(answer.json()[misspelled.split("=")[0]])
    assert state() == before


def test_the_schema_says_of_each_write_whether_it_can_be_tried(world: worlds.World, adam: APIClient) -> None:
    """Of one that it says so nothing is refused for that reason; of all others everything is."""
    paths = SchemaGenerator().get_schema(public=True)["paths"]
    wrong = []
    for path, operations in paths.items():
        for method in set(operations) & {"post", "put", "patch", "delete"}:
            said = any(each["name"] == "dry_run" for each in operations[method].get("parameters", ()))
            filled = re.sub(r"\{[a-z_]+\}", "1", path)
            answer = adam.generic(method.upper(), f"{filled}?dry_run=true", b"{}", content_type="application/json")
            refused = answer.status_code == 400 and "dry_run" in answer.json()
            if answer.status_code not in (401, 403, 404) and refused == said:
                wrong.append((method, path, answer.status_code))
    assert wrong == []


MANY = 1_100  # tenants of one pool, each with a tier: SQLite refuses an expression with more than 1,000 terms


@pytest.fixture
def many(world: worlds.World) -> worlds.World:
    like = world.entitlements["globex"].tier
    tiers = Tier.objects.bulk_create(
        Tier(slug=f"t-{i}", slo=like.slo, service_class="elastic", rank=like.rank, weight=1) for i in range(MANY)
    )
    tenants = Tenant.objects.bulk_create(Tenant(slug=f"t-{i}") for i in range(MANY))
    Entitlement.objects.bulk_create(
        Entitlement(slug=f"e-{i}", tenant=tenant, pool=world.pool, tier=tier, concurrency=1, state="bound")
        for i, (tenant, tier) in enumerate(zip(tenants, tiers, strict=True))
    )
    return world


@pytest.mark.parametrize(
    ("path", "body"),
    [("entitlements/e-7", {"concurrency": 3}), ("tiers/standard", {"weight": 9}), ("pools/llama", {"queue_limit": 5})],
)
def test_a_change_in_a_pool_of_many_tenants_can_be_tried(
    many: worlds.World, adam: APIClient, path: str, body: dict[str, Any]
) -> None:
    answer = adam.patch(f"/api/v1/{path}/?dry_run=true", body, format="json")
    assert answer.status_code == 200, answer.json()
    assert [pool["pool"] for pool in answer.json()["pools"]] == ["llama"]


def test_trying_a_change_reads_no_pool_that_it_does_not_touch(world: worlds.World, adam: APIClient) -> None:
    other = Pool.objects.create(slug="other", model="other/model")
    with CaptureQueriesContext(connection) as queries:
        adam.patch("/api/v1/entitlements/acme-premium/?dry_run=true", {"concurrency": 3}, format="json")
    assert not [q["sql"] for q in queries if f'"pool_id" IN ({world.pool.pk}, {other.pk})' in q["sql"]]


def test_pools_are_listed_where_their_entitlements_have_a_thousand_tiers(many: worlds.World, adam: APIClient) -> None:
    answer = adam.get("/api/v1/pools/")
    assert answer.status_code == 200, answer.json()
    assert answer.json()["results"][0]["promised"]["slots"] >= MANY
