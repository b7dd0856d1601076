"""What a member can read does not depend on what other tenants do.

Two worlds that differ in acme's load only: nothing of acme's, or its requests in queue, leases, snapshots and ledger.
Everything that Carol of globex can GET, and every message of the live feed to her, is the same in both.

What may differ, because it is of the pool and not of a tenant: the state of its replicas (``backends`` of the feed),
and her own entitlement's standing (weight, debt, burst), which is measured against the pool. Neither differs here,
where only acme's load does. Left to the tests of estimates: what was learned from lengths (``/estimates``).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest
import redis
from rest_framework.test import APIClient

from scheduling.core.types import BackendView, PoolView
from scheduling.state.types import preview_key
from telemetry.feed import history, snapshots
from telemetry.feed.hub import LiveHub
from telemetry.feed.window import Window
from telemetry.ledger import writer
from telemetry.ledger.queue import QueueStore
from telemetry.models import LedgerEntry
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Membership, Pool, Project
from tenants.veiled import veil
from tests.support import worlds
from tests.support.api_inputs import OPERATIONS, filled
from tests.support.live_entries import entry
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import ENTITLEMENTS, MemoryStore, globex_record, record, sample

pytestmark = pytest.mark.django_db

LEARNED = ("/api/v1/estimates",)
CLOCK = ("at", "from", "to", "place")  # of the answer as a whole: when it was asked; a seal is another one each time
# of the feed's rows: by the other tenant's name, spelled so that it is not in what is looked through for that name
CHOICES = ("tenant=ac%6De", "search=ac%6De", "rows=1&order=debt", "rows=1&order=waiting&pool=llama")
NOW_S = float(int(time.time()))
_ROW = {"tier": "standard", "class": "elastic", "arrival_s": NOW_S - 5, "input_tokens": 10, "output_tokens": 20.0}


def _preview(acme: bool) -> dict[str, Any]:
    hers = _ROW | {"id": "req_g", "tenant": "globex", "entitlement": "globex-llama"}
    rows = [hers | {"start_s": NOW_S + (40.0 if acme else 1.0), "why": f"rank 1 before {3 if acme else 0} waiting"}]
    if acme:
        others = _ROW | {"tenant": "acme", "entitlement": "acme-llama", "why": "rank 0", "start_s": NOW_S}
        rows = [others | {"id": f"req_a{n}"} for n in range(3)] + rows
    return {
        "at": NOW_S, "epoch": 1, "policy": "priority@1", "waiting": len(rows), "parked": 2 * acme,
        "occupation_s": 9.0 if acme else 2.0, "took_ms": 3.0 if acme else 1.0, "exact": True, "parts": [],
        "requests": rows,
    }  # fmt: skip


def _snapshot(acme: bool) -> snapshots.Snapshot:
    window = Window()
    window.add([globex_record(2, done_s=NOW_S, received_s=NOW_S - 3)], NOW_S)
    for n in range(10, 40 if acme else 10):
        window.add([record(n, done_s=NOW_S, received_s=NOW_S - 3)], NOW_S)
    own = {"acme-llama": 20} if acme else {}
    view = PoolView(
        {"gpu-1": BackendView("gpu-1", 32, 100_000, running=7 + 20 * acme, kv_used=900 + 50_000 * acme)},
        own | {"globex-llama": 7},
    )
    shot = sample(
        NOW_S,
        view=view,
        waiting=({"acme-llama": 3} if acme else {}) | {"globex-llama": 1},
        oldest_wait_s=90.0 if acme else 5.0,
    )
    return snapshots.snapshot(shot, window, ENTITLEMENTS, 5)


@contextmanager
def _pool(server: RedisServer, acme: bool) -> Iterator[MemoryStore]:
    """The pool with acme's load or without, in Redis, the snapshots and the ledger."""
    client, gone = redis.Redis.from_url(server.url), ["qm:{llama}:queue", "qm:{llama}:held", preview_key("llama")]
    admission = {"answer": "queued", "inflight": 1, "concurrency": 8, "kv": 9, "position": 9 if acme else 1}
    hers = globex_record(
        2, received_s=NOW_S - 3, queued_s=NOW_S - 3, granted_s=NOW_S - 2.9, first_token_s=NOW_S - 2.5, done_s=NOW_S,
        why=f"rank 1 before {7 * acme} waiting", admission=msgspec.json.encode(admission).decode(),
    )  # fmt: skip
    writer.write([hers])
    waiting, held = {"req_g": "globex"}, {"req_h": "globex"}
    if acme:
        writer.write([record(n, received_s=NOW_S - 9, done_s=NOW_S) for n in range(10, 40)])
        waiting |= {f"req_a{n}": "acme" for n in range(3)}
        held |= {f"req_b{n}": "acme" for n in range(20)}
    granted_ms = int(NOW_S * 1000)
    with mock.patch("time.time", return_value=NOW_S - 5):
        client.hset(gone[0], mapping={name: entry(name, tenant, "gw-1") for name, tenant in waiting.items()})
        client.hset(gone[1], mapping={name: entry(name, tenant, "gw-1", granted_ms) for name, tenant in held.items()})
    client.set(gone[2], msgspec.json.encode(_preview(acme)))
    store, snapshot = MemoryStore(), _snapshot(acme)
    store.store("llama", 1, 5, msgspec.json.encode(snapshot), msgspec.json.encode(history.point(snapshot)))
    queue = QueueStore(server.url)
    with (
        mock.patch("telemetry.api.queue.queue_store", return_value=queue),
        mock.patch("telemetry.api.requests.queue_store", return_value=queue),
        mock.patch("telemetry.api.live.live_store", return_value=store),
    ):
        yield store
    client.delete(*gone, f"{gone[2]}:asked")
    client.close()
    LedgerEntry.objects.all().delete()


def _read(world: worlds.World) -> dict[str, Any]:
    """What Carol gets from every route that can be read."""
    api = APIClient()
    api.force_authenticate(world.users["carol"])  # a session would be another one each time
    if not Project.objects.exists():
        services.save(actor=SYSTEM, instance=Project(slug="chat", tenant=world.tenants["globex"]))
    carols = world.users["carol"].memberships.get()
    places = {
        "adapters": "sql", "alert-rules": "1", "audit": "1", "backends": "gpu-1", "batches": "batch_1",
        "entitlements": "globex-llama",
        "runs": "1", "slos": "batch", "alerts": "1", "notification-channels": "1", "saved-views": "1",
        "keys": world.keys["globex"].row.public_id, "memberships": str(veil(Membership, carols.pk)),
        "group-rules": "1", "invitations": "0" * 12, "people": "1",
        "sessions": "1",
        "pools": "llama", "prices": "1", "projects": "chat", "quotas": "1", "budgets": "1",
        "requests": globex_record(2).request_id, "tenants": "globex",
        "tiers": "standard", "tokens": world.tokens["carol"].row.public_id, "trials": "1",
    }  # fmt: skip
    found: dict[str, Any] = {}
    paths = [next(filled(path, places)) for verb, path, _, _ in OPERATIONS if verb == "get"]
    paths += [f"/api/v1/live?{choice}" for choice in CHOICES]
    for path in [*paths, "/api/v1/requests/req_g", "/api/v1/requests/req_h", "/api/v1/requests/req_a0"]:
        if path.startswith(LEARNED):
            continue
        asked = f"{path}?pool=llama" if path.endswith("live/history") else path
        answer = api.get(asked)
        told = answer.json() if "json" in answer["Content-Type"] else answer.content.decode()
        if isinstance(told, dict):
            told = {name: value for name, value in told.items() if name not in CLOCK}
        headers = {  # a length follows its body; a file is named by the second
            name: re.sub(r"[0-9]{8}T[0-9]{6}Z", "", value)
            for name, value in answer.headers.items()
            if name != "Content-Length"
        }
        found[path] = (answer.status_code, told, headers)
    return found


def _heard(store: MemoryStore) -> list[Any]:
    """What her socket is sent when it opens."""

    async def listen() -> list[Any]:
        hub = LiveHub(store)  # type: ignore[arg-type]
        mine = await hub.subscribe(frozenset({"globex"}))
        texts = [hub.pools(mine.sight)]
        while (text := await hub.next_message(mine)) is not None:
            texts.append(msgspec.json.decode(text))
        await hub.unsubscribe(mine)
        return texts

    return asyncio.run(listen())


def test_what_a_member_reads_is_the_same_whatever_other_tenants_do(redis_server: RedisServer) -> None:
    world = worlds.build()
    seen = []
    for acme in (False, True):
        with _pool(redis_server, acme) as store:
            seen.append((_read(world), _heard(store)))
    (alone, fed_alone), (beside, fed_beside) = seen
    assert len(alone) > 40, "too few routes were read"
    assert sum(status == 200 for status, _, _ in alone.values()) > 20
    print(f"{len(alone)} routes and {len(fed_alone)} messages of the feed, alone and beside another tenant")
    differing = {path: (alone[path], beside[path]) for path in alone if alone[path] != beside[path]}
    assert not differing
    assert alone["/api/v1/pools/llama/queue"][1]["preview"]["requests"][0]["place"] == 1
    assert len(fed_alone) > 2
    assert fed_alone == fed_beside
    assert "acme" not in str(beside) + str(fed_beside)


def test_a_member_reads_no_address_of_the_installation(redis_server: RedisServer) -> None:
    world = worlds.build()
    Pool.objects.filter(slug="llama").update(
        scaling_mode="automatic", scaling_driver="webhook", scaling_params={"url": "http://scaler.internal:9000/llama"},
        tokenizer="/srv/internal/tokenizer.json", upstream_model="internal-weights", min_replicas=2, max_replicas=9,
        policy_params={"partition": "1-77,78-900"},
    )  # fmt: skip
    with _pool(redis_server, acme=True):
        text = str(_read(world))
    for word in ("internal", "10.0.0.1", "http://scaler", "gw-1", "1-77"):
        assert word not in text, word
