"""How fast engines are, by the ledger, and simulated against live."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.tuning import replicas
from scheduling.core.engine.step_time import StepTime, load_preset
from scheduling.core.percentiles import interpolated
from scheduling.simulator.replica import Replica
from scheduling.tuning.step_time_fit import Timed, calibrate
from scheduling.tuning.traffic import Serving
from telemetry.ledger import writer
from telemetry.models import Calibration, LedgerEntry
from tenants import tuning
from tenants.models import PolicyVersion, Pool, Tier
from tests.support.telemetry_world import record
from tests.support.tuning_world import traffic, trusted

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def served_for_long(pool: Pool) -> None:
    """The pool's policy is older than any window here."""
    version = tuning.version_now(pool)
    PolicyVersion.objects.filter(pk=version.pk).update(at=timezone.now() - timedelta(hours=2))


def test_engines_are_calibrated_from_the_ledger_and_a_lab_then_says_what_happened(pool: Pool):
    now = timezone.now()
    traffic(800, now, rate=2.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time.slowed(1.7)

    ran = replace(found, replicas=(Replica(truth, 4, 100_000),)).serve(Serving("ewsjf", pool.policy_params))
    start = now.timestamp() - 3000
    LedgerEntry.objects.all().delete()
    writer.write(
        [
            record(
                5000 + o.index, pool="llama", tier="premium", entitlement="", input_tokens=o.input_tokens,
                output_tokens=o.output_tokens, output_bound=64, output_tokens_est=40.0,
                received_s=start + o.arrival_s, queued_s=start + o.arrival_s,
                granted_s=start + o.arrival_s + o.wait_s, first_token_s=start + o.arrival_s + o.ttft_s + 0.004,
                done_s=start + o.arrival_s + o.ttlt_s + 0.004,
            )
            for o in ran
        ]
    )  # fmt: skip
    made = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert made is not None
    assert made.trust == {}, "there was no calibration before"
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    assert told is not None
    assert told.worst < replicas.TRUSTED
    again = replicas.recalibrate(
        pool, now - timedelta(hours=1), now - timedelta(seconds=2580)
    )  # when the last had ended
    assert again.trust["trusted"]
    assert Calibration.objects.count() == 2


def test_calibration_finds_how_many_tokens_a_step_takes(pool: Pool):
    now = timezone.now()
    traffic(800, now, rate=2.0, long_share=0.5)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time
    timed = []
    for budget in (512, 8192):
        ran = replace(found, replicas=(Replica(truth, 8, 200_000, budget),)).serve(Serving("fifo"))
        timed.append(
            [
                Timed("a", o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s, o.arrival_s + o.ttlt_s, o.input_tokens,
                      o.output_tokens)
                for o in ran
            ]
        )  # fmt: skip
    small, large = (calibrate(rows) for rows in timed)
    assert small.token_budget <= 512
    assert large.token_budget >= 4096
    assert calibrate(timed[0][:20]) is None, "too few to tell"


def test_tokens_that_were_held_up_and_came_in_a_heap_do_not_spoil_a_calibration(pool: Pool):
    now = timezone.now()
    traffic(400, now, rate=2.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time
    ran = replace(found, replicas=(Replica(truth, 8, 200_000),)).serve(Serving("fifo"))
    rows = [
        Timed(
            "a", o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s, o.arrival_s + o.ttlt_s, o.input_tokens, o.output_tokens
        )
        for o in ran
    ]
    heaps = [replace(row, first_s=row.done_s - 1e-3) if n % 20 == 0 else row for n, row in enumerate(rows)]
    clean, spoilt = calibrate(rows), calibrate(heaps)
    assert spoilt.step_time.step(0, 8, 4000) == pytest.approx(clean.step_time.step(0, 8, 4000), rel=0.1)


def test_answers_that_come_whole_load_an_engine_as_much_as_streams_do(pool: Pool):
    """Without them the engine seems slow for how little it has to do."""
    now = timezone.now()
    traffic(800, now, rate=4.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    truth = load_preset("llama-3-8b-a100").step_time
    ran = replace(found, replicas=(Replica(truth, 64, 400_000),)).serve(Serving("fifo"))
    rows = [
        Timed(
            "a", o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s, o.arrival_s + o.ttlt_s, o.input_tokens, o.output_tokens
        )
        for o in ran
    ]
    hidden = [replace(row, first_s=None) if n % 4 else row for n, row in enumerate(rows)]
    every, some = calibrate(rows), calibrate(hidden)
    assert some.requests == len(hidden[::4])
    for batch in ((0, 4, 4_000), (0, 16, 16_000), (512, 8, 8_000)):
        assert some.step_time.step(*batch) == pytest.approx(every.step_time.step(*batch), rel=0.1)


def whole_beside_streams(now: datetime, wait_s: float) -> None:
    """Streams that run at once, and as many whole answers of batch that wait for so long."""
    writer.write(
        [
            record(
                n, pool="llama", tier=tier, entitlement="", streamed=tier == "premium", input_tokens=100,
                output_tokens=20, output_tokens_est=20.0, output_bound=64, received_s=at, queued_s=at,
                granted_s=at + waits, first_token_s=at + waits + 0.1 if tier == "premium" else None,
                done_s=at + waits + 0.4,
            )
            for n in range(400)
            for tier, waits in [("premium", 0.0) if n % 2 else ("batch", wait_s)]
            for at in [now.timestamp() - 600 + n]
        ]
    )  # fmt: skip


def test_first_tokens_are_compared_of_the_requests_that_told_of_them(pool: Pool):
    """What waits for long in the batch tier has no first token to see: it is in neither side's figure."""
    now = timezone.now()
    whole_beside_streams(now, 30.0)
    step = {"t0": 0.015, "a": 8e-5, "b": 1e-4, "c": 1e-7, "e": 0.0, "knee": 0.0, "a2": 0.0}
    Calibration.objects.create(
        pool="llama", at=now, step_time=step, overhead_s=0.0, error=0.1, requests=100, token_budget=2048
    )
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    assert told.figures["ttft p95"][0] == pytest.approx(0.1, abs=0.001)
    assert told.figures["ttlt p95"][0] == pytest.approx(30.4, abs=0.01)
    assert told.requests < 400, "the window's ends are not compared"


def test_a_window_begins_with_the_policy_of_now(pool: Pool):
    """What another policy did says nothing of how this one is simulated."""
    now = timezone.now()
    whole_beside_streams(now, 30.0)
    trusted(pool)
    version = tuning.version_now(pool)
    PolicyVersion.objects.filter(pk=version.pk).update(at=now - timedelta(seconds=400))
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    PolicyVersion.objects.filter(pk=version.pk).update(at=now - timedelta(hours=2))
    assert told.requests < replicas.trust(pool, now - timedelta(hours=1), now).requests
    PolicyVersion.objects.filter(pk=version.pk).update(at=now - timedelta(seconds=200))
    assert replicas.trust(pool, now - timedelta(hours=1), now) is None, "nothing came since"


def test_attainment_is_compared_by_tier_and_what_was_refused_was_not_kept(pool: Pool):
    tier = Tier.objects.get(slug="premium")
    now = timezone.now()
    rows = []
    for n in range(400):
        at, refused = now.timestamp() - 600 + n, n % 4 == 0
        rows.append(
            record(
                n, pool="llama", tier=tier.slug, entitlement="", input_tokens=100, output_tokens=20,
                output_tokens_est=20.0, output_bound=64, received_s=at, queued_s=at,
                outcome="refused" if refused else "completed", reason="queue_full" if refused else "stop",
                granted_s=None if refused else at, first_token_s=None if refused else at + 0.1, done_s=at + 0.4,
            )
        )  # fmt: skip
    writer.write(rows)
    trusted(pool)
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    live, simulated = told.attainment["premium"]
    assert live == pytest.approx(75.0, abs=1.0)
    assert simulated == 100.0, "nobody else is there: the lab refuses nobody"
    assert told.points == pytest.approx(simulated - live)
    assert not told.as_json()["trusted"]


def test_what_a_request_takes_before_its_grant_where_nothing_waits_is_part_of_its_overhead(pool: Pool):
    now = timezone.now()
    traffic(800, now, rate=2.0, wait=lambda n: 0.03)
    without = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    LedgerEntry.objects.update(policy="direct")
    made = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert made.overhead_s == pytest.approx(without.overhead_s + 0.03, abs=0.001)


def test_the_command_tells_simulated_against_live_or_why_it_cannot(pool: Pool):
    with pytest.raises(CommandError, match="no calibration yet"):
        call_command("lab", "trust", "--pool", "llama")
    with pytest.raises(CommandError, match="no pool"):
        call_command("lab", "trust", "--pool", "nothing")
    with pytest.raises(CommandError, match="is not a time"):
        call_command("lab", "trust", "--pool", "llama", "--until", "yesterday")
    traffic(300, timezone.now(), rate=1.0)
    step = {"t0": 0.015, "a": 8e-5, "b": 1e-4, "c": 1e-7, "e": 0.0, "knee": 0.0, "a2": 0.0}
    Calibration.objects.create(
        pool="llama", at=timezone.now(), step_time=step, overhead_s=0.01, error=0.1, requests=100, token_budget=2048
    )
    out = StringIO()
    call_command("lab", "trust", "--pool", "llama", "--json", stdout=out)
    told = json.loads(out.getvalue())
    assert set(told["figures"]) == {"ttft p50", "ttft p95", "ttlt p50", "ttlt p95"}
    live, simulated = told["figures"]["ttft p50"]
    assert live == pytest.approx(0.6, abs=0.01)
    assert simulated > 0
    assert not told["trusted"], "these timings are no engine's"
    with pytest.raises(CommandError, match="no requests in that time"):
        call_command("lab", "trust", "--pool", "llama", "--until", "2020-01-01T12:00")


def heard(monkeypatch: pytest.MonkeyPatch, **backends: dict[str, object]) -> None:
    """The pool's leader tells these of its backends."""
    shown = SimpleNamespace(snapshot={"backends": backends})
    monkeypatch.setattr(replicas, "live_store", lambda: SimpleNamespace(load=lambda _: shown))


def said(step: StepTime, error: float, believed: bool) -> dict[str, object]:
    return {"step_time": asdict(step) | {"error": error, "steps": 900, "drifts": 0, "believed": believed}}


def test_the_lab_goes_by_the_steps_that_each_engine_logged_and_by_none_that_predict_badly(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    slow, bad = (
        load_preset("llama-3-8b-a100").step_time.slowed(2.0),
        load_preset("llama-3-8b-a100").step_time.slowed(9.0),
    )
    names = [row.slug for row in pool.backends.order_by("slug")]
    heard(monkeypatch, **{names[0]: said(slow, 0.06, True), "other": said(bad, 0.4, False)})
    logged = replicas.logged_steps(pool.slug)
    assert {name: fit.error for name, fit in logged.items()} == {names[0]: 0.06}
    now = timezone.now()
    traffic(300, now, rate=2.0)
    found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
    assert found is not None
    assert slow in [replica.step_time for replica in found.replicas]
    assert bad not in [replica.step_time for replica in found.replicas]

    made = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert made is not None
    assert made.step_time == asdict(slow)
    assert made.error == 0.06
    monkeypatch.setattr(replicas, "live_store", lambda: SimpleNamespace(load=lambda _: None))
    assert replicas.logged_steps(pool.slug) == {}
    again = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert again is not None
    assert again.step_time != asdict(slow), "nobody is heard: the requests say it"


def test_the_lab_steps_and_holds_what_each_engine_says_of_itself(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """What was typed in is bounded by it, as live; a calibration has to find only what engines do not say."""
    now = timezone.now()
    traffic(300, now, rate=2.0)
    trusted(pool)
    name = pool.backends.get().slug

    def replica() -> Replica:
        found = replicas.traffic_of(pool, now - timedelta(hours=1), now)
        assert found is not None
        return found.replicas[0]

    assert (replica().token_budget, replica().slots, replica().kv_tokens) == (2048, 4, 100_000)
    said = {"slots": 4, "engine_slots": 3, "engine_step_tokens": 1024, "engine_kv_tokens": 60_000, "slots_in_force": 3}
    heard(monkeypatch, **{name: said})
    assert (replica().token_budget, replica().slots, replica().kv_tokens) == (1024, 3, 60_000)
    made = replicas.recalibrate(pool, now - timedelta(hours=1), now)
    assert made is not None
    assert made.token_budget == 1024, "found from first tokens it would be another"
    heard(monkeypatch, **{name: said | {"engine_slots": None, "slots_in_force": 2}})
    assert replica().slots == 2, "it was seen to run no more"
    heard(monkeypatch, other=said)
    assert (replica().token_budget, replica().slots) == (1024, 4), "one that says nothing steps as the others do"


def middles(premium: int, simulated_s: float) -> replicas.Trust:
    """So many of 200 requests take a tenth of a second, the others twenty seconds; the simulated middle is given."""
    latencies = [0.1] * premium + [20.0] * (200 - premium)
    near = replicas.around_the_middle(latencies)
    return replicas.Trust(200, {"ttlt p50": (interpolated(latencies, 0.5), simulated_s)}, {"ttlt p50": near})


def test_a_middle_between_two_tiers_is_off_only_if_more_than_a_few_requests_are():
    assert middles(99, 0.1).worst == pytest.approx(0.0), "one request of two hundred moved it by twenty seconds"
    assert middles(101, 20.0).worst == pytest.approx(0.0)
    assert middles(90, 0.1).worst > 0.9
    assert middles(110, 20.0).worst > 100
    assert middles(110, 0.12).worst == pytest.approx(0.2), "within a tier it is what it was"


def test_between_neighbours_a_middle_is_as_good_as_its_value():
    latencies = [0.01 * n for n in range(1, 201)]
    low, high = replicas.around_the_middle(latencies)
    assert (
        max(1.0 - low / interpolated(latencies, 0.5), high / interpolated(latencies, 0.5) - 1.0) < replicas.TRUSTED / 3
    )
