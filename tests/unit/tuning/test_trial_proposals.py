"""What a person proposes as a trial, and the picture of a pool's prompt lengths."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.tuning.lengths import EDGES, counted
from telemetry.ledger import writer
from tenants.models import AuditEntry, Pool, Trial
from tests.support import worlds
from tests.support.telemetry_world import record
from tests.unit.telemetry.test_telemetry_api import CAST, client

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    found = worlds.build()
    answer = client(found, "olga").post(
        "/api/v1/pools/llama/policy",
        {"policy": "ewsjf", "params": {"partition": "1-100,101-1000"}},
        format="json",
    )
    assert answer.status_code == 200, answer.content
    return found


def propose(world: worlds.World, who: str, **body: Any) -> Any:
    return client(world, who).post("/api/v1/pools/llama/trials", body, format="json")


PARAMS = {"partition": "1-300,301-900"}


def test_a_persons_trial_is_proposed_started_and_taken_back(world: worlds.World) -> None:
    made = propose(world, "olga", params=PARAMS, reason="fewer long ones before short ones")
    assert made.status_code == 201, made.content
    trial = made.json()
    assert (trial["state"], trial["params"], trial["base"]) == ("proposed", PARAMS, Pool.objects.get().policy_version)
    assert Pool.objects.get().policy_params != PARAMS, "nothing changes before it is started"
    olga = client(world, "olga")
    started = olga.post(f"/api/v1/pools/llama/trials/{trial['id']}/start").json()
    assert (started["state"], Pool.objects.get().policy_params) == ("canary", PARAMS)
    stopped = olga.post(f"/api/v1/pools/llama/trials/{trial['id']}/stop").json()
    assert stopped["state"] == "rolled_back"
    assert Pool.objects.get().policy_params == {"partition": "1-100,101-1000"}
    assert AuditEntry.objects.filter(action="propose", actor="olga").count() == 1


@pytest.mark.parametrize("params", [{"partition": "1-100,101-1000"}, {"partition": "9-1"}, {"nonsense": 1}])
def test_what_serves_already_or_is_no_parameter_is_refused(params: dict[str, Any], world: worlds.World) -> None:
    assert propose(world, "adam", params=params).status_code == 400
    assert not Trial.objects.exists()


def test_members_know_nothing_of_trials_and_lengths(world: worlds.World) -> None:
    expected = dict(zip(CAST, (401, 403, 404, 404, 404), strict=False))
    assert {who: propose(world, who, params=PARAMS).status_code for who in expected} == expected
    seen = {who: client(world, who).get("/api/v1/pools/llama/lengths").status_code for who in CAST}
    assert seen == {**expected, "olga": 200, "adam": 200}


def test_lengths_are_counted_three_to_an_octave_without_empty_ends(world: worlds.World) -> None:
    start = record(1).received_s
    writer.write([record(n, input_tokens=length) for n, length in enumerate((64, 70, 70, 300, 999_999))])
    counts = counted([64, 70, 70, 300, 999_999, 0])
    assert sum(counts) == 6
    assert counts[EDGES.index(64)] == 3
    assert (counts[0], counts[-1]) == (1, 1)
    found = client(world, "olga").get("/api/v1/pools/llama/lengths?minutes=5").json()
    assert found["queues"] == [[1, 100], [101, 1000]]
    assert found["recent"] == [], f"nothing was received lately: the requests are of {start:.0f}"


def test_the_picture_of_the_last_minutes_begins_and_ends_where_there_is_something(world: worlds.World) -> None:
    from django.utils import timezone

    now = timezone.now().timestamp()
    writer.write(
        [
            record(n, input_tokens=length, received_s=now - 5, granted_s=now - 4)
            for n, length in enumerate((64, 70, 300))
        ]
    )
    found = client(world, "olga").get("/api/v1/pools/llama/lengths").json()
    assert (found["edges"][0], found["recent"][0], found["recent"][-1]) == (64, 2, 1)
    assert found["edges"][-2] <= 300 < found["edges"][-1]
    assert len(found["edges"]) == len(found["recent"]) + 1 == len(found["sample"]) + 1
