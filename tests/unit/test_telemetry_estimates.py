"""REST of the estimates: errors, calibration, what was learned, and who may make it forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
import redis
from rest_framework.test import APIClient

from scheduling.state.history import drift_key, history_key
from telemetry import ledger
from telemetry.estimates import DriftStore
from tenants.models import AuditEntry
from tests import worlds
from tests.redis_server import RedisServer
from tests.telemetry_world import record

pytestmark = pytest.mark.django_db
ALL_TIME = "estimates?from=2020-01-01T00:00:00Z"


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(redis_server.url)
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
    ledger.write(
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


def test_a_member_sees_its_own_errors_and_factors_only(world: worlds.World, server: redis.Redis) -> None:
    entries()
    factors = [
        {"scope": scope, "name": name, "category": "summary", "factor": 0.8, "observed": 9}
        for scope, name in (("category", ""), ("tenant", "acme"), ("tenant", "globex"))
    ]
    server.set(drift_key("llama"), msgspec.json.encode({"predictor": "similar", "factors": factors}))
    seen = client(world, "carol").get(f"/api/v1/{ALL_TIME}").json()
    assert seen["overall"]["requests"] == 5
    assert [f["name"] for f in seen["pools"]["llama"]["factors"]] == ["", "globex"]
    seen = client(world, "olga").get(f"/api/v1/{ALL_TIME}&pool=llama").json()
    assert len(seen["pools"]["llama"]["factors"]) == 3


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
