"""The queue's page over REST: what waits and runs, who sees what of it, and how an operator ends a request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
import redis
from rest_framework.test import APIClient

from scheduling.state.codec import decode_notice
from scheduling.state.notices import CancelNotice
from scheduling.state.types import preview_key
from telemetry.ledger import writer
from telemetry.ledger.queue import QueueStore
from tenants.models import AuditEntry, Price
from tests.support import worlds
from tests.support.live_entries import entry
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import MemoryStore, record, refused

pytestmark = pytest.mark.django_db


PREVIEW = {
    "at": 1.0, "epoch": 1, "policy": "unified@1", "waiting": 2, "parked": 0, "occupation_s": 2.0, "took_ms": 1.0,
    "exact": True, "parts": [{"name": "elastic band", "kind": "band", "waiting": 2}],
    "requests": [
        {"id": "req_a", "tenant": "acme", "entitlement": "acme-llama", "start_s": 3.0, "backend": "gpu-1", "why": "w"},
        {"id": "req_g", "tenant": "globex", "entitlement": "globex-llama", "start_s": 5.0, "why": "w"},
    ],
}  # fmt: skip


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(redis_server.url)
    now_ms = int(time.time() * 1000)
    found.hset("qm:{llama}:queue", mapping={"req_a": entry("req_a", "acme", "gw-1")})
    held = {"req_r": entry("req_r", "globex", "gw-1", now_ms), "req_s": entry("req_s", "acme", "gw-1", now_ms - 900)}
    found.hset("qm:{llama}:held", mapping=held)
    found.set(preview_key("llama"), msgspec.json.encode(PREVIEW))
    store = QueueStore(redis_server.url)
    with (
        mock.patch("telemetry.api.queue.queue_store", return_value=store),
        mock.patch("telemetry.api.requests.queue_store", return_value=store),
        mock.patch("telemetry.api.live.live_store", return_value=MemoryStore()),
    ):
        yield found
    keys = ["qm:{llama}:queue", "qm:{llama}:held", preview_key("llama"), f"{preview_key('llama')}:asked"]
    found.delete(*keys)
    found.close()


def ask(world: worlds.World, who: str, path: str, status: int = 200, verb: str = "get") -> Any:
    api = APIClient()
    if who != "anonymous":
        api.force_login(world.users[who])
    answer = getattr(api, verb)(f"/api/v1/{path}")
    assert answer.status_code == status, (who, path, answer.content)
    return answer.json() if answer.content else None


def test_operators_see_the_order_and_what_runs_and_asking_leaves_the_mark(
    world: worlds.World, server: redis.Redis
) -> None:
    seen = ask(world, "olga", "pools/llama/queue")
    assert [(row["place"], row["id"]) for row in seen["preview"]["requests"]] == [(1, "req_a"), (2, "req_g")]
    assert seen["preview"]["parts"] == PREVIEW["parts"]
    assert [row["id"] for row in seen["running"]] == ["req_s", "req_r"]
    assert 0 < server.pttl(f"{preview_key('llama')}:asked") <= 10_000


def test_a_member_sees_its_own_requests_without_times_parts_or_hosts(world: worlds.World, server: redis.Redis) -> None:
    seen = ask(world, "alice", "pools/llama/queue")
    assert [row["id"] for row in seen["preview"]["requests"]] == ["req_a"]
    assert [row["id"] for row in seen["running"]] == ["req_s"]
    carols = ask(world, "carol", "pools/llama/queue")["preview"]["requests"]
    assert [(row["id"], row["place"]) for row in carols] == [("req_g", 1)]  # the second of all
    text = str(seen)
    assert not any(word in text for word in ("globex", "gpu-1", "gw-1", "start_s", "why", "parts", "req_g", "req_r"))


@pytest.mark.parametrize(("who", "status"), [("anonymous", 401), ("nora", 403), ("alice", 403), ("carol", 403)])
def test_only_operators_cancel(who: str, status: int, world: worlds.World, server: redis.Redis) -> None:
    ask(world, who, "requests/req_a/cancel", status, "post")
    assert not AuditEntry.objects.filter(action="cancel request").exists()


@pytest.mark.parametrize(("name", "was"), [("req_a", "waiting"), ("req_r", "running")])
def test_a_cancelled_request_is_told_to_its_gateway_and_audited(
    name: str, was: str, world: worlds.World, server: redis.Redis
) -> None:
    heard = server.pubsub(ignore_subscribe_messages=True)
    heard.subscribe("qm:gw:gw-1")
    while server.pubsub_numsub("qm:gw:gw-1")[0][1] == 0:
        heard.get_message(timeout=0.1)
    assert ask(world, "olga", f"requests/{name}/cancel", 202, "post") == {"request_id": name, "was": was}
    message = None
    while message is None:
        message = heard.get_message(timeout=5)
    assert decode_notice(message["data"]) == CancelNotice(name)
    told = AuditEntry.objects.get(action="cancel request")
    assert (told.actor, told.after["request"], told.after["state"]) == ("olga", name, was)
    heard.close()


def test_a_gateway_that_is_gone_is_said_so_and_nothing_is_audited(world: worlds.World, server: redis.Redis) -> None:
    ask(world, "adam", "requests/req_a/cancel", 409, "post")
    ask(world, "adam", "requests/req_none/cancel", 404, "post")
    assert not AuditEntry.objects.filter(action="cancel request").exists()


def test_a_request_that_still_waits_is_found_by_its_id_within_scope(world: worlds.World, server: redis.Redis) -> None:
    seen = ask(world, "alice", "requests/req_a")
    assert (seen["alive"]["state"], seen["alive"]["pool"]) == ("waiting", "llama")
    assert "gateway" not in seen["alive"]
    ask(world, "carol", "requests/req_a", 404)
    assert ask(world, "adam", "requests/req_r")["alive"]["backend"] == "gpu-1"


def test_a_story_names_each_check_with_its_numbers(world: worlds.World, server: redis.Redis) -> None:
    admitted = {"answer": "queued", "inflight": 4, "concurrency": 8, "kv": 300, "charge": 376, "depth": 10_000.0,
                "level": 600, "position": 7}  # fmt: skip
    refusal = {"answer": "refused", "inflight": 8, "concurrency": 8, "kv": 300}
    writer.write(
        [
            record(1, admission=msgspec.json.encode(admitted).decode()),
            refused(2, admission=msgspec.json.encode(refusal).decode()),
            record(3),
        ]
    )
    story = ask(world, "olga", f"requests/{record(1).request_id}")["story"]
    by_rule = {check["rule"]: check for check in story["checks"]}
    assert {check["state"] for check in story["checks"]} == {"passed"}
    assert (by_rule["concurrency"]["value"], by_rule["concurrency"]["limit"]) == (3, 8)
    assert (by_rule["token_budget"]["value"], by_rule["token_budget"]["limit"]) == (376, 976)
    assert by_rule["slot"]["value"] == 7
    assert [step["place"] for step in story["positions"]] == [7, 0]
    own = ask(world, "alice", f"requests/{record(1).request_id}")
    assert (own["story"]["positions"], own["why"]) == ([], "")
    assert "position" not in own["admission"]
    assert next(check for check in own["story"]["checks"] if check["rule"] == "slot")["note"] == "queued"
    checks = ask(world, "alice", f"requests/{record(2).request_id}")["story"]["checks"]
    assert [c["state"] for c in checks] == ["passed"] * 4 + ["failed"] + ["not_reached"] * 4
    assert (checks[4]["value"], checks[4]["limit"]) == (8, 8)
    assert ask(world, "alice", f"requests/{record(3).request_id}")["story"]["checks"] == []


def test_a_story_says_what_it_cost(world: worlds.World, server: redis.Redis) -> None:
    Price.objects.create(
        pool=world.pool, valid_from="2020-01-01T00:00:00Z", currency="EUR", per_million_input=2, per_million_output=10
    )
    writer.write([record(1), refused(2)])
    cost = ask(world, "alice", f"requests/{record(1).request_id}")["story"]["cost"]
    assert cost["currency"] == "EUR"
    assert cost["amount"] == pytest.approx((120 * 2 + 101 * 10) / 1e6)
    assert ask(world, "alice", f"requests/{record(2).request_id}")["story"]["cost"] is None


def test_a_story_tells_the_factors_of_the_weight_at_admission(world: worlds.World, server: redis.Redis) -> None:
    now_s = time.time()
    memory = MemoryStore()
    standing = {"tenant": "acme", "running": 1, "weight": 33.0, "debt": 0.25, "burst": 0.5}
    for age_s, debt in ((40, 0.9), (11, 0.25)):
        point = {"at": now_s - age_s, "tenants": {}, "entitlements": {"acme-llama": standing | {"debt": debt}}}
        memory.points.setdefault("llama", []).append(msgspec.json.encode(point))
    writer.write([record(1, received_s=now_s - 10, done_s=now_s)])
    with mock.patch("telemetry.api.live.live_store", return_value=memory):
        weight = ask(world, "alice", f"requests/{record(1).request_id}")["story"]["weight"]
    assert (weight["debt"], weight["burst"]) == (0.25, 0.5)
    assert weight["factors"]["debt"] == pytest.approx(2.0)  # 1 + 4 x 0.25
    assert weight["factors"]["burst"] == pytest.approx(1 / 1.5)
