"""REST of the estimates: errors, calibration, what was learned, and who may make it forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
import redis
from rest_framework.test import APIClient

from scheduling.core.types import PredictorMode
from scheduling.estimation.embedding import Embedder
from scheduling.gateway.estimate.forecasts import PoolForecasts
from scheduling.state.history import drift_key, history_key
from telemetry.estimates import learned
from telemetry.estimates.drift import DriftStore
from telemetry.ledger import writer
from telemetry.models import LearnedFactor
from tenants.models import AuditEntry
from tests.support import worlds
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import record
from tests.unit.gateway.test_pool_forecasts import Stream, call_of

pytestmark = pytest.mark.django_db
ALL_TIME = "estimates?from=2020-01-01T00:00:00Z"


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(redis_server.url)
    found.delete(history_key("llama"), drift_key("llama"))  # of other tests' resets
    with mock.patch("telemetry.api.estimates.drift_store", return_value=DriftStore(redis_server.url)):
        yield found
    found.delete(history_key("llama"), drift_key("llama"))
    found.close()


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    api.force_login(world.users[who])
    return api


def entries() -> None:
    """Ten answers of 10, 20, ... 100 tokens, all expected at 50 with a limit of 90; every second one globex's."""
    writer.write(
        [
            record(
                number, output_tokens=10 * number, output_tokens_est=50.0, output_tokens_p90=90.0,
                output_rank=number / 10 - 0.05, category="summary" if number <= 4 else "report",
                estimate_source="similar", tenant="globex" if number % 2 else "acme",
            )
            for number in range(1, 11)
        ]
        + [record(11), record(12, outcome="failed", reason="backend_lost", output_rank=None, category="report")]
    )  # fmt: skip


def test_errors_coverage_and_calibration_come_from_judged_answers(world: worlds.World, server: redis.Redis) -> None:
    entries()
    seen: dict[str, Any] = client(world, "adam").get(f"/api/v1/{ALL_TIME}").json()
    overall = seen["overall"]
    assert overall["requests"] == 10, "the one that was not predicted and the failed one are not judged"
    assert (overall["actual"], overall["expected"], overall["mae"], overall["error"]) == (55.0, 50.0, 25.0, 5.0)
    assert overall["coverage90"] == 0.9
    assert seen["calibration"] == [{"level": n / 10, "share": n / 10} for n in range(1, 10)]
    assert [(row["name"], row["requests"]) for row in seen["by"]["category"]] == [("report", 6), ("summary", 4)]
    assert seen["by"]["category"][1]["error"] == -25.0
    assert {row["name"] for row in seen["by"]["tenant"]} == {"acme", "globex"}
    assert [row["name"] for row in seen["by"]["source"]] == ["similar"]
    assert seen["pools"] == {}


def shown(learned: int) -> dict[str, Any]:
    return {
        "learned": learned,
        "prompts": learned - 1,
        "factors": [{"category": "summary", "factor": 0.8, "observed": learned}],
        "calibration": [{"source": "similar", "factor": 1.1, "observed": learned}],
    }


def server_url(server: redis.Redis) -> str:
    options = server.connection_pool.connection_kwargs
    return f"unix://{options['path']}" if "path" in options else f"redis://{options['host']}:{options['port']}"


def test_a_member_sees_its_own_errors_factors_and_counts_only(world: worlds.World, server: redis.Redis) -> None:
    entries()
    drift = {
        "predictor": "similar",
        "learned": 1_009,
        "prompts": 1_007,
        "prior": [{"category": "summary", "factor": 0.9, "tenants": 7}],
        "tenants": {"acme": shown(1_000), "globex": shown(9)},
    }
    server.set(drift_key("llama"), msgspec.json.encode(drift))
    seen = client(world, "carol").get(f"/api/v1/{ALL_TIME}").json()
    assert seen["overall"]["requests"] == 5
    pool = seen["pools"]["llama"]
    assert (pool["learned"], pool["prompts"]) == (9, 8)
    assert [(f["scope"], f["name"]) for f in pool["factors"]] == [("tenant", "globex")]
    assert pool["calibration"] == [{"tenant": "globex", "source": "similar", "factor": 1.1, "observed": 9}]
    seen = client(world, "olga").get(f"/api/v1/{ALL_TIME}&pool=llama").json()
    pool = seen["pools"]["llama"]
    assert (pool["learned"], pool["prompts"]) == (1_009, 1_007)
    assert [(f["scope"], f["name"]) for f in pool["factors"]] == [
        ("category", ""),
        ("tenant", "acme"),
        ("tenant", "globex"),
    ]


async def gateway_with(storm: bool) -> bytes:
    """What a gateway shows after globex's traffic, with or without a storm of acme's."""
    stream = Stream()
    pool = PoolForecasts(PredictorMode.SIMILAR, stream, Embedder())  # type: ignore[arg-type]
    for number in range(30):
        for tenant, actual in (("acme", 4_000),) * (20 if storm else 0) + (("globex", 100 + number),):
            call = call_of(f"Describe ship {number} of the fleet")
            call.access.entitlement.tenant, call.access.key.id = tenant, f"key of {tenant}"
            pool.ended(pool.look(call.access, call.prepared, 50, 8_000), actual)
        await pool.round()
    return pool.drift()


def test_nothing_a_member_reads_of_estimates_depends_on_another_tenants_traffic(
    world: worlds.World, server: redis.Redis
) -> None:
    def rows(tenant: str, numbers: range) -> list[Any]:
        return [
            record(
                number, output_tokens=10 * (number % 10), output_tokens_est=50.0, output_tokens_p90=90.0,
                output_rank=0.5, category="summary", estimate_source="similar", tenant=tenant,
                entitlement=f"{tenant}-chat",
            )
            for number in numbers
        ]  # fmt: skip

    def reads() -> list[Any]:
        api = client(world, "carol")
        past = "from=2020-01-01T00:00:00Z&to=2090-01-01T00:00:00Z"
        found = [
            api.get(f"/api/v1/{path}").json()
            for path in (
                f"estimates?{past}",
                f"estimates?{past}&pool=llama",
                f"estimates/history?{past}",
                "requests?limit=50",
            )
        ]
        for one in found[2]["factors"]:
            one["points"] = [factor for _, factor in one["points"]]  # when it was kept is the clock's affair
        return found

    writer.write(rows("globex", range(1, 9)))
    quiet = asyncio.run(gateway_with(storm=False))
    server.set(drift_key("llama"), quiet)
    learned.keep(DriftStore(str(server_url(server))))
    before = reads()
    LearnedFactor.objects.all().delete()
    writer.write(rows("acme", range(100, 200)))
    server.set(drift_key("llama"), asyncio.run(gateway_with(storm=True)))
    learned.keep(DriftStore(str(server_url(server))))
    assert reads() == before
    assert before[0]["pools"]["llama"]["learned"] == 30
    assert before[2]["factors"]


def test_without_redis_the_past_is_told_all_the_same(world: worlds.World) -> None:
    entries()
    with mock.patch("telemetry.api.estimates.drift_store", return_value=DriftStore("redis://127.0.0.1:1")):
        seen = client(world, "adam").get(f"/api/v1/{ALL_TIME}").json()
        answer = client(world, "adam").post("/api/v1/estimates/reset", {"pool": "llama"}, format="json")
    assert seen["overall"]["requests"] == 10
    assert seen["pools"] is None
    assert answer.status_code == 503
    assert not AuditEntry.objects.filter(action__startswith="reset").exists(), "what did not happen is not told"


def test_an_hour_without_requests_has_no_errors(world: worlds.World, server: redis.Redis) -> None:
    seen = client(world, "adam").get("/api/v1/estimates").json()
    assert (seen["overall"], seen["calibration"]) == (None, [])


@pytest.mark.parametrize(("who", "code"), [("alice", 403), ("olga", 204), ("adam", 204)])
def test_operators_may_reset_what_was_learned(who: str, code: int, world: worlds.World, server: redis.Redis) -> None:
    answer = client(world, who).post("/api/v1/estimates/reset", {"pool": "llama", "category": "report"}, format="json")
    assert answer.status_code == code, answer.content
    entries = [fields for _, fields in server.xrange(history_key("llama"))]
    assert entries == ([{b"r": b"report"}] if code == 204 else [])
    assert AuditEntry.objects.filter(action="reset estimates", object_id="llama").count() == (code == 204)


@pytest.mark.parametrize("body", [{}, {"pool": "nowhere"}, {"pool": "llama", "category": "poetry"}])
def test_a_reset_that_names_nothing_known_is_refused(
    body: dict[str, str], world: worlds.World, server: redis.Redis
) -> None:
    assert client(world, "adam").post("/api/v1/estimates/reset", body, format="json").status_code == 400
