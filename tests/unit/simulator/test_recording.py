"""What a pool was asked for: the ledger as a recording, a file that a lab replays, and a sample that outlives both."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.tuning import recent
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator.compare import Case, prepare
from scheduling.simulator.recording import Recorded, Recording, write_recording
from scheduling.simulator.trace import TraceError, read_tiers, read_trace
from scheduling.simulator.workload import Tier
from telemetry.ledger import writer
from telemetry.models import LedgerEntry, Sampled, SampleMark
from tenants.models import Pool
from tests.support import worlds
from tests.support.telemetry_world import record

GOLD = Tier("gold", Slo(ttft_s=2.0, tbt_s=0.1), 0, 10.0, service_class=ServiceClass.GUARANTEED)
LEAD = Tier("lead", Slo(ttlt_s=60.0), 1, 2.0, service_class=ServiceClass.SPOT)


def _row(at: float, tier: str = "gold", **changes: object) -> Recorded:
    return Recorded(at, 100, 20, f"of-{tier}", tier, wait_s=0.5, ttft_s=1.0, ttlt_s=3.0, **changes)  # type: ignore[arg-type]


def _write(path: Path, rows: list[Recorded]) -> Path:
    with path.open("w") as out:
        write_recording(Recording("p", (GOLD, LEAD), tuple(rows)), out)
    return path


def test_a_recording_that_was_written_is_read_as_a_trace_with_its_tenants_and_tiers(tmp_path: Path):
    rows = [_row(0.5), _row(1.25, "lead"), _row(2.0, outcome="refused", reason="queue_full")]
    path = _write(tmp_path / "r.jsonl", rows)
    assert read_tiers(path) == (GOLD, LEAD)
    found = read_trace(path)
    assert [(r.arrival_s, r.tenant, r.tier, r.input_tokens) for r in found] == [
        (0.0, "of-gold", "gold", 100),
        (0.75, "of-lead", "lead", 100),
    ], "what was refused had no engine work on it"


def test_a_lab_replays_a_recording_under_its_own_tiers_and_at_its_own_rate(tmp_path: Path):
    draw = random.Random(1)
    rows = [_row(n * 2.0, draw.choice(["gold", "lead"])) for n in range(100)]
    made = prepare(Case(str(_write(tmp_path / "r.jsonl", rows)), "", as_recorded=True))
    assert {request.tier for request in made.requests} == {"gold", "lead"}
    assert {r.slo for r in made.requests if r.tier == "lead"} == {Slo(ttlt_s=60.0)}
    assert made.requests[-1].arrival_fs / 1e15 == pytest.approx(2.0 * 89)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tier": "brass"}, "line 2: tier 'brass'"),
        ({"input_tokens": -1}, "line 2: input_tokens -1"),
        ({"arrival_s": None}, "line 2: arrival_s None"),
    ],
)
def test_a_line_of_a_recording_that_cannot_be_read_is_told(tmp_path: Path, change: dict[str, object], told: str):
    path = _write(tmp_path / "r.jsonl", [_row(0.0)])
    head, row = path.read_text().splitlines()
    path.write_text("\n".join([head, json.dumps(json.loads(row) | change)]))
    with pytest.raises(TraceError, match=told):
        read_trace(path)


@pytest.mark.parametrize("head", ['{"quartermaster_recording": 9}', '{"quartermaster_recording": 1}'])
def test_the_head_of_a_recording_has_to_be_of_a_known_format(tmp_path: Path, head: str):
    path = tmp_path / "r.jsonl"
    path.write_text(head + "\n")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)


@pytest.fixture
def pool(db: None) -> str:
    Pool.objects.create(slug="llama", model="llama")
    worlds.tier("premium")
    return "llama"


def _entries(count: int, start: int = 0, **changes: object) -> None:
    now = timezone.now().timestamp() - 60
    writer.write(
        [
            record(
                n, pool="llama", tier="premium", tenant="acme", input_tokens=n + 1, output_tokens=7,
                received_s=now + n / 1000, queued_s=now + n / 1000, granted_s=now + n / 1000 + 0.5,
                first_token_s=now + n / 1000 + 1.0, done_s=now + n / 1000 + 2.0, **changes,
            )
            for n in range(start, start + count)
        ]
    )  # fmt: skip


def test_the_ledger_is_a_recording_without_keys_texts_or_request_ids(pool: str, tmp_path: Path):
    _entries(20, key_id="secretkey")
    path = tmp_path / "r.jsonl"
    call_command("lab", "record", "--pool", pool, "--minutes", "5", "--out", str(path), stdout=StringIO())
    assert "secretkey" not in path.read_text()
    assert "req" not in path.read_text()
    found = read_trace(path)
    assert [row.input_tokens for row in found] == list(range(1, 21))
    assert {row.tier for row in found} == {"premium"}
    assert read_tiers(path)[0].slo == Slo(ttft_s=1.0, tbt_s=0.1)
    told = json.loads(path.read_text().splitlines()[1])
    assert (told["wait_s"], told["ttft_s"], told["ttlt_s"]) == pytest.approx((0.5, 1.0, 2.0))


def test_only_what_was_received_in_the_window_is_recorded(pool: str):
    _entries(5)
    now = timezone.now()
    assert len(recent.record(pool, now - timedelta(minutes=5)).rows) == 5
    assert not recent.record(pool, now - timedelta(minutes=5), now - timedelta(minutes=4)).rows
    assert not recent.record("another", now - timedelta(minutes=5)).rows


def test_a_pool_that_was_asked_for_nothing_leaves_no_file(pool: str, tmp_path: Path):
    with pytest.raises(CommandError, match="nothing was written"):
        call_command("lab", "record", "--pool", pool, "--out", str(tmp_path / "r.jsonl"))
    assert not (tmp_path / "r.jsonl").exists()


def test_the_long_term_sample_is_a_recording_too_after_the_ledger_has_forgotten(pool: str, tmp_path: Path):
    _entries(20)
    recent.sample()
    LedgerEntry.objects.all().delete()
    path = tmp_path / "s.jsonl"
    call_command("lab", "record", "--pool", pool, "--sample", "--out", str(path), stdout=StringIO())
    found = read_trace(path)
    assert [row.input_tokens for row in found] == list(range(1, 21))
    assert {row.tier for row in found} == {"premium"}
    with pytest.raises(CommandError, match="nothing was written"):
        call_command("lab", "record", "--pool", "another", "--sample", "--out", str(tmp_path / "t.jsonl"))


def test_the_long_term_sample_keeps_its_size_and_looks_at_each_request_once(pool: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recent, "SIZE", 40)
    _entries(100)
    assert recent.sample() == 100
    assert Sampled.objects.count() == 40
    first = sorted(Sampled.objects.values_list("place", "input_tokens"))
    assert recent.sample() == 0
    assert sorted(Sampled.objects.values_list("place", "input_tokens")) == first
    _entries(300, start=100)
    recent.sample()
    mark = SampleMark.objects.get(pool=pool)
    assert (mark.seen, Sampled.objects.count()) == (400, 40)
    assert sum(length > 100 for length in recent.lengths(pool)) == pytest.approx(30, abs=10), "old and new alike"
