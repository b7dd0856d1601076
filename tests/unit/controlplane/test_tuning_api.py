"""REST of the strategic loop and the policy lab: versions, trials, modes, trust, recordings and runs; and who may."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.urls import get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

import controlplane.celery
from controlplane.lab import runs
from controlplane.tuning import recent
from scheduling.simulator.recording import write_recording
from telemetry.ledger import writer
from telemetry.models import Calibration, LabRecording, LabRun
from tenants import services, tuning
from tenants.audit import SYSTEM
from tenants.models import Backend, Entitlement, Pool, Study, Tenant, Trial
from tests.support import worlds
from tests.support.answer_schemas import faults, schemas_of_answers
from tests.support.telemetry_world import record
from tests.unit.telemetry.test_telemetry_api import CAST, client, routes

pytestmark = pytest.mark.django_db
READS = ("pools/llama/versions", "pools/llama/tuning", "pools/llama/trials", "pools/llama/trust", "lab/recordings",
         "lab/runs", "pools/llama/trials/{trial}", "lab/runs/{run}")  # fmt: skip
WRITES = (
    "pools/llama/rollback",
    "pools/llama/trials/{trial}/start",
    "pools/llama/trials/{trial}/stop",
    "pools/llama/trials/{trial}/keep",
    "pools/llama/study/stop",
    "lab/runs/{run}/cancel",
    "lab/runs/{run}/again",
)


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture(autouse=True)
def bell() -> Any:
    with mock.patch.object(controlplane.celery.app, "send_task") as ring:
        yield ring


@pytest.fixture(autouse=True)
def entries(world: worlds.World) -> None:
    start = timezone.now().timestamp() - 200
    writer.write(
        [
            record(
                n, tenant="acme" if n % 2 else "globex", tier="premium" if n % 2 else "standard",
                input_tokens=50 + 40 * (n % 7), output_tokens=20 + n % 5, output_bound=64, received_s=start + n,
                queued_s=start + n, granted_s=start + n + 0.1, first_token_s=start + n + 0.3, done_s=start + n + 1.0,
            )
            for n in range(1, 151)
        ]
    )  # fmt: skip


@pytest.fixture
def trial(world: worlds.World) -> Trial:
    pool, now = Pool.objects.get(slug="llama"), timezone.now()
    return Trial.objects.create(
        pool=pool, at=now, study=now, number=1, base=tuning.version_now(pool), values={}, reward=0.9,
        params=pool.policy_params, window_from=now, window_until=now,
    )  # fmt: skip


def call(who: APIClient, verb: str, path: str, code: int, body: Any = None, **more: Any) -> Any:
    answer = getattr(who, verb)(f"/api/v1/{path}", body, **({"format": "json"} | more))
    assert answer.status_code == code, answer.content
    return answer.json()


def kept(olga: APIClient, name: str = "an hour") -> dict[str, Any]:
    return call(olga, "post", "lab/recordings", 201, {"name": name, "pool": "llama", "minutes": 60})


def run(olga: APIClient, **changes: Any) -> dict[str, Any]:
    kept(olga)
    asked = {"name": "what if", "recording": "an hour", "pool": "llama", "policies": ["now", "fifo"], "variants": 3}
    return call(olga, "post", "lab/runs", 202, {**asked, **changes})


def test_every_route_is_for_operators_and_admins_and_for_members_it_does_not_exist(
    world: worlds.World, trial: Trial
) -> None:
    names = {"trial": trial.pk, "run": run(client(world, "olga"))["id"]}
    found = {
        text.removeprefix("api/v1/").replace("<slug:pool>", "llama").replace("<int:", "{").replace(">", "}")
        for text, view in routes(get_resolver())
        if view is not None and view.__module__ in ("controlplane.tuning.api", "controlplane.lab.api")
    }
    assert found == {*READS, *WRITES}
    for path in READS:
        seen = [client(world, who).get(f"/api/v1/{path.format(**names)}").status_code for who in CAST]
        assert seen == [401, 403, 404, 404, 404, 200, 200], path
    for path in WRITES:
        for who, code in zip(CAST[:5], (401, 403, 404, 404, 404), strict=True):
            answer = client(world, who).post(f"/api/v1/{path.format(**names)}", {}, format="json")
            assert answer.status_code == code, path
    for who in ("alice", "bob"):
        for path in ("lab/runs", "lab/recordings"):
            assert client(world, who).post(f"/api/v1/{path}", {}, format="json").status_code == 404
        assert client(world, who).put("/api/v1/pools/llama/tuning", {}, format="json").status_code == 404
    assert Trial.objects.get().state == "proposed"


def test_versions_are_listed_newest_first_and_one_call_goes_back(world: worlds.World) -> None:
    olga = client(world, "olga")
    call(olga, "post", "pools/llama/policy", 200, {"policy": "fifo", "params": {}})
    before = call(olga, "get", "pools/llama/versions", 200)["results"]
    assert [row["serving"] for row in before] == [True, *[False] * (len(before) - 1)]
    assert before[0]["author"] == "olga"
    first = before[-1]["number"]
    told = call(olga, "post", "pools/llama/rollback", 200, {"version": first, "reason": "worse"})
    assert (told["restores"], told["policy"], told["reason"]) == (first, before[-1]["policy"], "worse")
    assert "no version 99" in str(call(olga, "post", "pools/llama/rollback", 400, {"version": 99}))
    call(olga, "post", "pools/nothing/rollback", 404, {"version": 1})


def test_a_mode_is_set_with_settings_and_wrong_ones_are_told(world: worlds.World) -> None:
    olga = client(world, "olga")
    told = call(olga, "get", "pools/llama/tuning", 200)
    assert (told["mode"], told["study"]) == ("advise", None)
    told = call(
        olga, "put", "pools/llama/tuning", 200, {"mode": "advise", "settings": {"interval_s": 600, "trials": 5}}
    )
    assert (told["mode"], told["effective"]["interval_s"], told["effective"]["trials"]) == ("advise", 600, 5)
    call(olga, "put", "pools/llama/tuning", 400, {"mode": "sometimes"})
    told = call(olga, "put", "pools/llama/tuning", 400, {"mode": "advise", "settings": {"pairs": 1}})
    assert "pairs must be at least 3" in str(told)


def test_versions_that_a_person_starts_and_ends_are_that_persons(world: worlds.World) -> None:
    olga = client(world, "olga")
    made = call(olga, "post", "pools/llama/trials", 201, {"setting": {"policy": "fifo"}})
    for action, code in (("start", 201), ("stop", 200)):
        call(olga, "post", f"pools/llama/trials/{made['id']}/{action}", code)
        version = call(olga, "get", "pools/llama/versions", 200)["results"][0]
        assert (version["author"], version["author_kind"]) == ("olga", "person")
    assert version["restores"] == 1


def test_an_operator_starts_a_proposed_trial_and_ends_it(world: worlds.World, trial: Trial) -> None:
    olga = client(world, "olga")
    Trial.objects.update(params={}, values={})
    told = call(olga, "post", f"pools/llama/trials/{trial.pk}/start", 201)
    assert told["state"] == "canary"
    call(olga, "post", f"pools/llama/trials/{trial.pk}/start", 400)
    assert call(olga, "post", f"pools/llama/trials/{trial.pk}/stop", 200)["state"] == "rolled_back"
    rows = call(olga, "get", "pools/llama/trials?state=rolled_back", 200)["results"]
    assert [row["id"] for row in rows] == [trial.pk]
    assert "olga" in rows[0]["reason"]
    call(olga, "get", "pools/llama/trials/999999", 404)


def test_a_proposed_trial_says_how_much_traffic_its_replay_needs_and_how_much_there_is(
    world: worlds.World, trial: Trial
) -> None:
    olga = client(world, "olga")
    told = call(olga, "get", "pools/llama/tuning", 200)
    assert told["traffic"] is None, "the loop's own has been replayed"
    Trial.objects.update(reward=None)
    waits = call(olga, "get", "pools/llama/tuning", 200)["traffic"]
    assert (waits["requests"], waits["needed"]) == (150, 300)
    call(olga, "put", "pools/llama/tuning", 200, {"mode": "advise", "settings": {"least_requests": 100}})
    waits = call(olga, "get", "pools/llama/tuning", 200)["traffic"]
    assert (waits["requests"], waits["needed"]) == (100, 100), "no more are counted than it needs"


def test_without_a_calibration_nobody_says_how_far_the_lab_can_be_trusted(world: worlds.World) -> None:
    told = call(client(world, "olga"), "get", "pools/llama/trust?minutes=30", 200)
    assert (told["trust"], told["calibrations"]) == (None, [])


def test_a_run_says_how_far_its_pool_s_simulated_figures_were_from_live_or_that_nobody_knows(
    world: worlds.World,
) -> None:
    olga = client(world, "olga")
    number = run(olga)["id"]
    assert call(olga, "get", f"lab/runs/{number}", 200)["trust"] is None
    fit = {"step_time": {}, "overhead_s": 0.0, "error": 0.01, "requests": 400}
    worth = {"requests": 420, "figures": {"ttft p50": [1.0, 1.08]}, "worst": 0.08, "trusted": True}
    now = timezone.now()
    Calibration.objects.create(pool="llama", at=now, trust=worth, **fit)
    Calibration.objects.create(pool="llama", at=now + timedelta(minutes=1), **fit)  # measured nothing
    Calibration.objects.create(pool="other", at=now, trust={**worth, "worst": 0.5}, **fit)
    told = call(olga, "get", f"lab/runs/{number}", 200)["trust"]
    assert told == {**worth, "at": now.isoformat()}


def test_a_run_is_done_in_pieces_and_tells_intervals_for_every_tier_and_tenant(
    world: worlds.World, bell: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = client(world, "olga")
    number = run(olga)["id"]
    bell.assert_called_once_with("telemetry.run_lab", (number,), retry=False)
    monkeypatch.setattr(runs, "BUDGET_S", 0.0)
    assert runs.work(number)
    told = call(olga, "get", f"lab/runs/{number}", 200)
    assert (told["state"], told["done"], told["total"], told["results"]) == ("running", 1, 6, [])
    while runs.work(number):
        pass
    told = call(olga, "get", f"lab/runs/{number}", 200)
    assert (told["state"], told["done"]) == ("done", 6)
    schemas = schemas_of_answers()
    assert faults(told, schemas["RunResults"], schemas) == []
    rows = {(row["policy"], row["group"], row["figure"]): row for row in told["results"]}
    for group in ("all", "tier:premium", "tenant:acme", "tenant:globex"):
        row = rows["fifo", group, "ttft_p95"]
        assert row["low"] <= row["mean"] <= row["high"]
        assert row["difference"]["low"] <= row["difference"]["mean"] <= row["difference"]["high"]
        assert "difference" not in rows["now", group, "ttft_p95"]
    assert not runs.work(number), "it is done"
    assert call(olga, "post", f"lab/runs/{number}/again", 202)["id"] != number


def test_doing_a_piece_twice_changes_nothing(world: worlds.World) -> None:
    number = run(client(world, "olga"))["id"]
    runs.work(number)
    figures = LabRun.objects.get(pk=number).figures
    LabRun.objects.filter(pk=number).update(state="running", figures={k: figures[k] for k in list(figures)[:2]})
    runs.work(number)
    assert LabRun.objects.get(pk=number).figures == figures


def test_a_run_that_cannot_be_computed_fails_once_and_one_without_a_database_goes_on(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = client(world, "olga")
    number = run(olga)["id"]

    def ends_with(error: Exception) -> None:
        monkeypatch.setattr(runs, "figures_of", mock.Mock(side_effect=error))

    ends_with(OperationalError("the server closed the connection"))
    with pytest.raises(OperationalError):
        runs.work(number)
    assert call(olga, "get", f"lab/runs/{number}", 200)["state"] == "running"
    ends_with(OverflowError("cannot convert float infinity to integer"))
    assert not runs.work(number)
    told = call(olga, "get", f"lab/runs/{number}", 200)
    assert (told["state"], "OverflowError" in told["problem"]) == ("failed", True)
    assert runs.still() == []


def test_a_run_can_be_cancelled_and_keeps_what_was_done(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    olga = client(world, "olga")
    number = run(olga)["id"]
    monkeypatch.setattr(runs, "BUDGET_S", 0.0)
    runs.work(number)
    assert call(olga, "post", f"lab/runs/{number}/cancel", 200)["state"] == "cancelled"
    assert not runs.work(number)
    assert LabRun.objects.get(pk=number).done == 1


def test_a_run_that_nobody_works_on_is_announced_again(world: worlds.World) -> None:
    number = run(client(world, "olga"))["id"]
    assert runs.still() == []
    LabRun.objects.update(at=timezone.now() - 2 * runs.STILL)
    assert runs.still() == [number]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policies": []}, "policies"),
        ({"policies": ["fofi"]}, "unknown ordering policy"),
        ({"policies": ["fifo:x"]}, "PARAMETER=VALUE"),
        ({"policies": ["now", "now"]}, "each once"),
        ({"variants": 99}, "variants"),
        ({"replicas": 999}, "replicas"),
        ({"recording": "none"}, "no recording"),
        ({"pool": "none"}, "no pool"),
        ({"slos": {"gold": {"ttft_s": 1.0, "tbt_s": 0.1}}}, "has no tier gold"),
        ({"slos": {"premium": {"x": 1.0}}}, "no target 'x'; there are: tbt_s, ttft_s, ttlt_s"),
        ({"slos": {"premium": {"ttft_s": -1}}}, "a time above 0"),
        ({"slos": {"premium": {"ttft_s": 0}}}, "a time above 0"),
        ({"lost": ["gpu-1", "gpu-1"]}, "lost: name each once"),
        ({"load": 0}, "load: 0.1 to 10 times"),
        ({"load": "nan"}, "load"),
        ({"policies": ["unchanged", "now"]}, "for a run that changes something"),
        ({"lost": ["gpu-9"]}, "no backend gpu-9 in service"),
        ({"lost": ["gpu-1"]}, "no replica would be left"),
        ({"lost": ["gpu-1"], "replicas": 2}, "not both"),
        ({"objects": [{"kind": "entitlement", "name": "none", "values": {"concurrency": 1}}]}, "no entitlement 'none'"),
        ({"objects": [{"kind": "entitlement", "name": "acme-llama", "values": {"state": "bound"}}]}, "cannot be tried"),
        ({"objects": [{"kind": "entitlement", "name": "acme-llama", "values": {"concurrency": -1}}]}, "greater than"),
        ({"newcomers": [{"name": "new", "like": "none"}]}, "no request of entitlement none to copy"),
        ({"newcomers": [{"name": "acme", "like": "acme-llama"}]}, "Tenant acme cannot join"),
        ({"newcomers": [{"name": "A B", "like": "acme-llama"}]}, "Tenant A B cannot join"),
        ({"newcomers": [{"name": "new", "like": "acme-llama", "times": 11}]}, "0.1 to 10"),
        ({"newcomers": [{"name": "new", "like": "acme-llama"}, {"name": "new", "like": "acme-llama"}]}, "each once"),
    ],
)
def test_what_cannot_be_run_is_told(world: worlds.World, changes: dict[str, Any], told: str) -> None:
    olga = client(world, "olga")
    kept(olga)
    asked = {"name": "x", "recording": "an hour", "pool": "llama", "policies": ["now"], **changes}
    assert told in str(call(olga, "post", "lab/runs", 400, asked))
    assert not LabRun.objects.exists()


def test_other_promises_and_replicas_change_what_a_run_says(world: worlds.World) -> None:
    olga = client(world, "olga")
    strict = run(olga, policies=["fifo"], slos={"premium": {"ttft_s": 0.001, "tbt_s": 0.001}}, replicas=1)["id"]
    runs.work(strict)
    rows = {(row["group"], row["figure"]): row["mean"] for row in runs.table(LabRun.objects.get(pk=strict))}
    assert rows["tier:premium", "slo"] == 0.0
    assert rows["tier:standard", "slo"] > 50.0


def means(number: int) -> dict[tuple[str, str, str], float]:
    runs.work(number)
    row = LabRun.objects.get(pk=number)
    assert row.state == "done", row.problem
    return {(one["policy"], one["group"], one["figure"]): one["mean"] for one in runs.table(row)}


def test_more_load_and_a_lost_replica_are_compared_with_the_traffic_as_it_was(world: worlds.World) -> None:
    olga = client(world, "olga")
    services.save(
        actor=SYSTEM,
        instance=Backend(slug="gpu-2", pool=world.pool, url="http://10.0.0.2:8000", slots=32, kv_tokens=100_000),
    )
    before = [
        Pool.objects.values().get(slug="llama"),
        list(Entitlement.objects.values()),
        list(Backend.objects.values()),
    ]
    rows = means(run(olga, policies=["unchanged", "now"], load=10.0, lost=["gpu-2"])["id"])
    assert rows["now", "all", "ttft_p95"] > rows["unchanged", "all", "ttft_p95"]
    assert rows["now", "all", "requests"] == rows["unchanged", "all", "requests"]
    kept = [Pool.objects.values().get(slug="llama"), list(Entitlement.objects.values()), list(Backend.objects.values())]
    assert kept == before, "what is supposed is taken back"


def test_another_share_is_tried_without_being_given(world: worlds.World) -> None:
    smaller = [{"kind": "entitlement", "name": "acme-llama", "values": {"tokens_per_s": 1.0, "burst_tokens": 100.0}}]
    rows = means(run(client(world, "olga"), policies=["unchanged", "now"], objects=smaller)["id"])
    assert rows["now", "tenant:acme", "refused_token_budget"] > 50.0 > rows["unchanged", "tenant:acme", "refused"]
    assert Entitlement.objects.get(slug="acme-llama").tokens_per_s != 1.0


def test_a_tenant_that_was_not_there_has_figures_of_its_own_and_takes_from_others(world: worlds.World) -> None:
    olga = client(world, "olga")
    joins = [{"name": "initech", "like": "acme-llama", "times": 2.5}]
    rows = means(run(olga, policies=["unchanged", "now"], newcomers=joins, variants=1)["id"])
    # all requests of this world are of the entitlement acme-llama
    assert 2.0 < rows["now", "tenant:initech", "requests"] / rows["unchanged", "all", "requests"] < 3.0
    assert rows["now", "tenant:acme", "ttft_p95"] > rows["unchanged", "tenant:acme", "ttft_p95"]
    assert ("unchanged", "tenant:initech", "requests") not in rows
    assert not Tenant.objects.filter(slug="initech").exists()


def test_a_recording_is_of_the_hours_that_were_asked_for(world: worlds.World) -> None:
    olga, now = client(world, "olga"), timezone.now()
    asked = {
        "name": "a while",
        "pool": "llama",
        "since": (now - timedelta(seconds=150)).isoformat(),
        "until": now.isoformat(),
    }
    some = call(olga, "post", "lab/recordings", 201, asked)["requests"]
    assert 0 < some < 150
    for changes, said in (
        ({"until": asked["since"]}, "after since"),
        ({"since": (now - timedelta(days=32)).isoformat()}, "31 days"),
        ({"minutes": 5}, "Give minutes, or since and until"),
        ({"since": None}, "null"),
        ({"since": "yesterday"}, "wrong format"),
        ({"since": "0001-01-01T00:00:00Z"}, "since"),
    ):
        assert said in str(call(olga, "post", "lab/recordings", 400, {**asked, "name": "other", **changes})), changes
    alone = {"name": "other", "pool": "llama", "since": asked["since"]}
    assert "Give minutes, or since and until" in str(call(olga, "post", "lab/recordings", 400, alone))
    for minutes in ("nan", "inf", "-1", [], {}, None, "an hour"):
        call(olga, "post", "lab/recordings", 400, {"name": "other", "pool": "llama", "minutes": minutes})
    later = {"since": (now + timedelta(hours=1)).isoformat(), "until": (now + timedelta(hours=2)).isoformat()}
    told = call(olga, "post", "lab/recordings", 400, {"name": "other", "pool": "llama", **later})
    assert "no request of that time" in str(told)


def test_a_trace_that_somebody_brings_is_kept_as_a_recording(world: worlds.World) -> None:
    olga, pool = client(world, "olga"), Pool.objects.get(slug="llama")
    text = io.StringIO()
    write_recording(recent.record("llama", timezone.now() - timedelta(hours=1)), text)
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(
        f"2023-11-16 18:15:{n:02d}.0,100,20" for n in range(60)
    )
    for name, data in (("a tape", text.getvalue()), ("azure", azure)):
        file = SimpleUploadedFile("x", data.encode())
        told = call(olga, "post", "lab/recordings", 201, {"name": name, "file": file}, format="multipart")
        assert told["requests"] == (150 if name == "a tape" else 60)
    tiers = {row.tier for row in runs.unpacked(LabRecording.objects.get(name="azure")).rows}
    assert tiers == {"premium", "standard", "batch"}
    bad = SimpleUploadedFile("x", b"what is this")
    assert "line 1" in str(call(olga, "post", "lab/recordings", 400, {"name": "bad", "file": bad}, format="multipart"))
    assert "already" in str(call(olga, "post", "lab/recordings", 400, {"name": "azure", "pool": pool.slug}))
    assert "Give either a pool or a file" in str(call(olga, "post", "lab/recordings", 400, {"name": "neither"}))


AZURE_LINE = b"2023-11-16 18:17:03.9799600,10,5\n"


# The reader as it is, which writes down at its end the most memory that it had. (What the kernel counts of a process
# that ended begins with what its parent had.)
WATCHED_READER = """
import atexit, os, runpy
atexit.register(lambda: open(os.environ["READERS_STATUS"], "w").write(open("/proc/self/status").read()))
runpy.run_module("scheduling.simulator.import_trace", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("unpacked", "said"),
    [
        (lambda: b"{" + b"0" * 100_000_000, "longer than"),  # one line
        (
            lambda: b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + AZURE_LINE * 1000 + b"\n" * 40_000_000,
            "MiB, unpacked",
        ),
        (lambda: b'{"timestamp": ' + b"[" * 500_000, "not a JSON object"),
    ],
    ids=["one line", "many lines", "deep"],
)
def test_what_a_small_gz_unpacks_to_takes_no_memory_of_the_web_process(
    world: worlds.World, unpacked: Callable[[], bytes], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = gzip.compress(unpacked(), 9)
    assert len(packed) < 400 * 1024
    run = subprocess.run
    monkeypatch.setenv("READERS_STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(
        runs.subprocess, "run", lambda args, **how: run([args[0], "-c", WATCHED_READER, *args[3:]], **how)
    )
    olga = client(world, "olga")
    tracemalloc.start()
    try:
        file = SimpleUploadedFile("trace.gz", packed)
        told = call(olga, "post", "lab/recordings", 400, {"name": "a bomb", "file": file}, format="multipart")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said in told["detail"]
    assert "/tmp" not in told["detail"]
    assert peak < 16 * 1024 * 1024, f"{peak / 2**20:.0f} MiB"
    most = re.search(r"VmHWM:\s+(\d+) kB", (tmp_path / "status").read_text())
    assert most is not None
    assert int(most[1]) < 90 * 1024  # KiB; what the first two unpack to is more
    assert not LabRecording.objects.exists()


def test_one_trace_is_read_at_a_time(world: worlds.World) -> None:
    file = SimpleUploadedFile("trace.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + AZURE_LINE)
    with mock.patch("controlplane.lab.runs.READ_S", 0.05), runs._reading:
        told = call(
            client(world, "olga"), "post", "lab/recordings", 400, {"name": "x", "file": file}, format="multipart"
        )
    assert "in a moment" in told["detail"]


def test_the_study_under_way_is_shown_with_its_progress_and_can_be_stopped(world: worlds.World) -> None:
    olga, pool = client(world, "olga"), Pool.objects.get(slug="llama")
    base, now = tuning.version_now(pool), timezone.now()
    Study.objects.create(
        pool=pool, at=now, base=base, window_from=now - timedelta(hours=1), window_until=now, requests=150, done=7,
        total=40, replays=[{"round": 0}], cpu_s=1.5,
    )  # fmt: skip
    told = call(olga, "get", "pools/llama/tuning", 200)["study"]
    assert (told["state"], told["done"], told["total"], told["base"]) == ("running", 7, 40, base.number)
    assert "told" not in told, "replays are no reading"
    told = call(olga, "post", "pools/llama/study/stop", 200)["study"]
    assert (told["state"], told["result"]) == ("stopped", "olga stopped it")
    assert call(olga, "post", "pools/llama/study/stop", 200)["study"]["state"] == "stopped"
