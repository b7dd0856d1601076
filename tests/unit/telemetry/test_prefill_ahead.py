"""What a prompt waited for inside its engine, and the sentence with which a request's story begins."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.ledger import neighbours, prefill, writer
from telemetry.ledger.story import story
from telemetry.models import LedgerEntry
from tests.support.telemetry_world import NOW, globex_record, record

pytestmark = pytest.mark.django_db


def stored(*records: Any) -> LedgerEntry:
    """The first of them, as a row."""
    writer.write(list(records))
    return LedgerEntry.objects.get(request_id=records[0].request_id)


def short(**changes: Any) -> Any:
    """27 tokens, granted at once, first token after 9.6 s where 1 s is the target."""
    values = {
        "input_tokens": 27, "received_s": NOW - 20, "queued_s": None, "granted_s": NOW - 20,
        "first_token_s": NOW - 10.4, "done_s": NOW - 5, "policy": "direct", "slo_met": False,
    }  # fmt: skip
    return record(1, **(values | changes))


def long_prompt(number: int, **changes: Any) -> Any:
    """7,000 tokens of globex, granted a second before, first token just before acme's."""
    values = {
        "input_tokens": 7000, "received_s": NOW - 22, "queued_s": NOW - 22, "granted_s": NOW - 21,
        "first_token_s": NOW - 10.5, "done_s": NOW - 1,
    }  # fmt: skip
    return globex_record(number, **(values | changes))


def test_prompts_that_were_granted_before_and_had_no_first_token_were_ahead() -> None:
    row = stored(
        short(),
        long_prompt(2),
        long_prompt(3, granted_s=NOW - 20.5),
        long_prompt(4, first_token_s=NOW - 20.5),  # computed by then
        long_prompt(5, granted_s=NOW - 19),  # granted later
        long_prompt(6, backend="gpu-2"),
    )
    ahead = prefill.ahead_of(row)
    assert ahead is not None
    assert (ahead.requests, ahead.tokens, ahead.ranked()) == (2, 14_000, {"globex": 14_000})


def test_a_prompt_that_waited_as_long_as_batch_may_was_ahead_all_the_same() -> None:
    ahead = prefill.ahead_of(stored(short(), long_prompt(2, received_s=NOW - 21 - 600, queued_s=NOW - 21 - 600)))
    assert ahead is not None
    assert ahead.ranked() == {"globex": 7000}


def test_a_prompt_whose_gateway_was_lost_counts_as_it_was_estimated() -> None:
    lost = {"outcome": "failed", "reason": "gateway_lost", "first_token_s": None, "input_tokens": 0}
    row = stored(short(), long_prompt(2, **lost, input_tokens_est=6500, output_tokens=0))
    ahead = prefill.ahead_of(row)
    assert ahead is not None
    assert ahead.ranked() == {"globex": 6500}


def test_a_short_prompt_behind_long_ones_says_so_instead_of_that_a_slot_was_free() -> None:
    row = stored(short(), long_prompt(2), long_prompt(3))
    told = story(row, [], NOW)
    assert told["verdict"] == (
        "Missed its SLO: first token after 9.60 s (1.00 s at most); about 9.58 s of it inside gpu-1, behind 14,000 "
        "prompt tokens of 2 requests granted there before it (globex)."
    )
    assert told["engine"]["queue_ms"] + told["engine"]["prefill_ms"] == pytest.approx(9600, abs=1)


def test_members_read_the_verdict_without_the_neighbours() -> None:
    told = story(stored(short(), long_prompt(2)), [], NOW, others=False)
    assert told["engine"] is None
    assert told["verdict"] == "Missed its SLO: first token after 9.60 s (1.00 s at most)."


def test_members_do_not_read_for_how_many_others_a_prefill_was_interrupted() -> None:
    row = stored(short(queued_s=NOW - 20, granted_s=NOW - 12, interruptions=2))
    assert "interrupted" not in story(row, [], NOW, others=False)["verdict"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slo_met": True, "first_token_s": NOW - 19.5}, "Kept its SLO: first token after 500 ms (1.00 s at most)."),
        (
            {"outcome": "refused", "reason": "concurrency", "status": 429, "granted_s": None, "first_token_s": None},
            "Refused with HTTP 429: concurrency.",
        ),
        (
            {"queued_s": NOW - 20, "granted_s": NOW - 12},
            "Missed its SLO: first token after 9.60 s (1.00 s at most); it waited 8.00 s in the queue.",
        ),
        (
            {"queued_s": NOW - 20, "granted_s": NOW - 12, "interruptions": 2, "ran_before_s": 3.0},
            "Missed its SLO: first token after 9.60 s (1.00 s at most); it waited 5.00 s in the queue, "
            "beside 3.00 s of its prefill, which was interrupted 2 times.",
        ),
        ({"outcome": "failed", "reason": "backend_lost"}, "Failed on gpu-1 after 15.0 s: backend lost."),
        (
            {"first_token_s": NOW - 19.5},
            "Missed its SLO: first token after 500 ms, but the tokens after it came too slowly.",
        ),
    ],
)
def test_a_story_begins_with_one_sentence(changes: dict[str, Any], words: str) -> None:
    assert story(stored(short(**changes)), [], NOW)["verdict"] == words


def test_neighbours_count_the_prompts_ahead_although_nothing_waited_in_the_queue() -> None:
    stored(short(), long_prompt(2), long_prompt(3))
    row = LedgerEntry.objects.get(tenant="acme")
    found = neighbours.neighbours("acme", row.received_at.replace(year=2000), row.done_at)
    assert found["pools"] == []
    (line,) = found["engines"]
    assert (line["pool"], line["requests"], line["tenants"]) == (
        "llama",
        1,
        [{"tenant": "globex", "prompt_tokens": 14_000}],
    )
    assert line["waited_s"] == pytest.approx(9.58, abs=0.01)
