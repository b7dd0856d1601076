"""What a story says beyond its own request: what the client was told, another tier, its engine's queue, that moment."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from rest_framework.test import APIClient

from scheduling.core.engine.step_time import StepTime
from telemetry.ledger import prefill, writer
from telemetry.ledger.counterfactual import LEAST_GRANTED, instead
from telemetry.ledger.moment import at_moment
from telemetry.ledger.retries import retry_of
from telemetry.ledger.story import checks, story
from telemetry.models import Calibration, LedgerEntry
from tests.support import worlds
from tests.support.telemetry_world import NOW, globex_record, record, refused

pytestmark = pytest.mark.django_db

FLAT = StepTime(t0=0.01, a=0.0001, b=0.0, c=0.0, e=0.0, knee=1e9, a2=0.0)


def when(s: float) -> datetime:
    return datetime.fromtimestamp(NOW + s, UTC)


def stored(*records: Any) -> LedgerEntry:
    """The first of them, as a row."""
    writer.write(list(records))
    return LedgerEntry.objects.get(request_id=records[0].request_id)


# --- Retry-After


def turned_away(retry_s: float | None = 4.0) -> Any:
    figures: dict[str, Any] = {"answer": "refused", "inflight": 8, "concurrency": 8, "kv": 1}
    if retry_s is not None:
        figures["retry_ms"] = round(retry_s * 1000)
    return refused(1, received_s=NOW - 60, done_s=NOW - 60, admission=msgspec.json.encode(figures).decode())


@pytest.mark.parametrize(
    ("after_s", "obeyed", "early"), [(0.4, False, 1), (2.98, False, 1), (3.5, None, 0), (5.0, True, 0), (60.0, True, 0)]
)
def test_whether_a_client_waited_is_said_only_outside_the_headers_spread(
    after_s: float, obeyed: bool | None, early: int
) -> None:
    row = stored(turned_away(), record(2, received_s=NOW - 60 + after_s), record(3, received_s=NOW - 59, key_id="k2"))
    found = retry_of(row)
    assert found is not None
    assert (found["told_s"], found["least_s"], found["most_s"]) == (4.0, 3.0, 5.0)
    assert (found["next"]["request_id"], found["next"]["after_s"]) == (record(2).request_id, pytest.approx(after_s))
    assert (found["obeyed"], found["early"]) == (obeyed, early)


def test_a_wait_that_was_not_recorded_is_unknown_and_one_who_never_came_back_neither_obeyed_nor_not() -> None:
    unknown = retry_of(stored(turned_away(None), record(2, received_s=NOW - 50)))
    assert unknown is not None
    assert (unknown["told_s"], unknown["obeyed"], unknown["next"]["outcome"]) == (None, None, "completed")
    LedgerEntry.objects.all().delete()
    gone = retry_of(stored(turned_away()))
    assert gone is not None
    assert (gone["told_s"], gone["next"], gone["obeyed"]) == (4.0, None, None)
    assert retry_of(stored(record(9))) is None, "it was not refused"


# --- what was in flight before it


@pytest.mark.parametrize(
    ("figures", "before"),
    [
        ({"answer": "granted", "inflight": 1}, 0),
        ({"answer": "granted", "inflight": 16, "sequences": 16}, 0),
        ({"answer": "queued", "inflight": 17, "sequences": 16}, 16),  # what waits takes one place
        ({"answer": "refused", "inflight": 16, "sequences": 16}, 16),
    ],
)
def test_of_what_was_in_flight_before_it_a_request_is_no_part_however_many_answers_it_has(
    figures: dict[str, Any], before: int
) -> None:
    """A request of 16 answers alone in a tenant of 8 places would else be told to have found 15 of 8."""
    told = msgspec.json.encode(figures | {"concurrency": 8, "kv": 1}).decode()
    [found] = [check for check in checks(LedgerEntry(admission=told, reason="stop")) if check["rule"] == "concurrency"]
    assert (found["value"], found["limit"]) == (before, 8)


# --- another tier


def test_another_tier_is_what_its_requests_waited_in_the_same_minute() -> None:
    late = record(1, tier="batch", received_s=NOW - 60, queued_s=NOW - 60, granted_s=NOW - 20)
    fast = [
        record(10 + n, received_s=NOW - 62 + n, queued_s=NOW - 62 + n, granted_s=NOW - 62 + n + 0.1 * n)
        for n in range(5)
    ]
    few = [globex_record(30 + n, received_s=NOW - 60) for n in range(LEAST_GRANTED - 1)]
    other_minute = [globex_record(50 + n, received_s=NOW - 300) for n in range(9)]
    found = instead(stored(late, *fast, *few, *other_minute))
    assert [(line["tier"], line["requests"], line["waited_s"]) for line in found["tiers"]] == [("premium", 5, 0.2)]
    assert found["unknown"] == ["standard"], "too few are unknown, not zero"


def test_members_are_not_told_of_other_tiers_waits() -> None:
    row = stored(globex_record(1, received_s=NOW - 3), *[record(10 + n) for n in range(9)])
    assert story(row, [], NOW, others=False)["instead"] is None
    assert story(row, [], NOW)["instead"]["tiers"] != []


# --- the engine's queue


def test_its_own_prompt_takes_what_its_steps_take() -> None:
    assert FLAT.prefill_run(2048, 2048) == pytest.approx(0.01 + 0.2048)
    assert FLAT.prefill_run(5000, 2048) == pytest.approx(3 * 0.01 + 0.5)
    assert FLAT.prefill_run(5000, 2048, decodes=1048) == pytest.approx(5 * 0.01 + 0.5), "decodes take room in each step"
    assert FLAT.prefill_run(10**9, 1) > FLAT.prefill_run(10**6, 1), "an absurd prompt is bounded in time to compute"


def behind(**changes: Any) -> list[Any]:
    """27 tokens, first token after 9.6 s, behind 7,000 tokens in the same engine."""
    own = record(
        1, input_tokens=27, received_s=NOW - 20, queued_s=None, granted_s=NOW - 20, first_token_s=NOW - 10.4,
        done_s=NOW - 5, slo_met=False,
    )  # fmt: skip
    ahead = globex_record(
        2, input_tokens=7000, received_s=NOW - 22, granted_s=NOW - 21, first_token_s=NOW - 10.5, done_s=NOW - 1
    )
    return [own, ahead]


def calibrated(at_s: float = -60) -> None:
    Calibration.objects.create(
        pool="llama", at=when(at_s), step_time=asdict(FLAT), overhead_s=0.02, token_budget=2048, error=0.1, requests=9
    )


@pytest.mark.parametrize("at_s", [-60, 60])
def test_the_engines_queue_is_what_its_own_predicted_prefill_leaves(at_s: float) -> None:
    calibrated(at_s)
    engine = story(stored(*behind()), [], NOW)["engine"]
    own_ms = 1000 * (0.02 + 0.01 + 0.0027)
    assert engine["predicted_ms"] == pytest.approx(own_ms, abs=0.1)
    assert (engine["prefill_ms"], engine["queue_ms"]) == (
        pytest.approx(own_ms, abs=0.1), pytest.approx(9600 - own_ms, abs=0.2),
    )  # fmt: skip


def test_without_a_calibration_it_is_shared_out_by_tokens_and_nothing_is_predicted() -> None:
    engine = story(stored(*behind()), [], NOW)["engine"]
    assert engine["predicted_ms"] is None
    assert engine["queue_ms"] == pytest.approx(9600 * 7000 / 7027, abs=1)


def test_with_nothing_ahead_there_was_no_engine_queue_however_slow_it_was() -> None:
    calibrated()
    engine = story(stored(behind()[0]), [], NOW)["engine"]
    assert (engine["queue_ms"], engine["prefill_ms"], engine["requests"]) == (0.0, 9600.0, 0)


def test_neighbours_in_the_engine_are_counted_by_the_same_prediction() -> None:
    calibrated()
    stored(*behind())
    prompts = prefill.recent("llama", when(-60), when(60))
    _, waited_s, requests = prefill.ahead_of_tenant("acme", prompts, prefill.speed_of("llama", when(0)))
    assert (round(waited_s, 2), requests) == (9.57, 1)


# --- this moment


def test_a_moment_lists_who_waited_and_who_ran_then() -> None:
    writer.write(
        [
            record(1, received_s=NOW - 30, queued_s=NOW - 30, granted_s=NOW - 5, first_token_s=NOW - 4),  # waits
            record(2, received_s=NOW - 20, queued_s=None, granted_s=NOW - 20, first_token_s=NOW - 6),  # is prefilled
            globex_record(3, received_s=NOW - 20, granted_s=NOW - 19, first_token_s=NOW - 18),  # decodes
            globex_record(
                4, received_s=NOW - 20, granted_s=NOW - 19, first_token_s=NOW - 18, done_s=NOW - 12
            ),  # is over
            record(5, received_s=NOW - 20, pool="qwen"),
            refused(6, received_s=NOW - 10, done_s=NOW),
        ]
    )
    found = at_moment("llama", when(-10))
    assert [(row["tenant"], row["state"], row["for_s"]) for row in found["rows"]] == [
        ("acme", "waiting", 20.0), ("acme", "prefill", 10.0), ("globex", "decode", 8.0),
    ]  # fmt: skip
    assert (found["waiting"], found["running"], found["whole"]) == (1, 2, True)
    assert found["tenants"][0] == {"tenant": "acme", "waiting": 1, "running": 1, "prompt_tokens": 120}


@pytest.mark.parametrize(("who", "status"), [("carol", 404), ("olga", 200)])
def test_a_moment_is_for_those_who_may_know_of_everybody(who: str, status: int) -> None:
    api = APIClient()
    api.force_login(worlds.build().users[who])
    at = (when(0) - timedelta(minutes=1)).isoformat()
    assert api.get("/api/v1/pools/llama/moment", {"at": at}).status_code == status
    assert api.get("/api/v1/pools/nowhere/moment", {"at": at}).status_code == 404
    if status == 200:
        assert api.get("/api/v1/pools/llama/moment").status_code == 400
