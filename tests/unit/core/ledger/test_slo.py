"""Did a request keep its promise about time? (QoServe 3.2)"""

from __future__ import annotations

import pytest

from scheduling.core.ledger.slo import falls_short, judged, slo_met
from scheduling.core.outcomes import Outcome, Reason
from tests.support.state_world import ledger

T = 1000.0
RAN = {"received_s": T, "granted_s": T + 0.1}
CHAT = RAN | {"ttft_slo_s": 1.0, "tbt_slo_s": 0.1, "ttlt_slo_s": None, "output_tokens": 11}
BATCH = RAN | {"ttft_slo_s": None, "tbt_slo_s": None, "ttlt_slo_s": 60.0}


@pytest.mark.parametrize(
    ("first", "done", "met"),
    [
        (T + 1.0, T + 2.0, True),  # the last of 11 tokens is due at 1 s + 10 * 0.1 s
        (T + 0.2, T + 2.1, False),
        (T + 1.1, T + 1.2, False),
        (None, T + 0.5, False),
    ],
)
def test_an_interactive_request_is_met_when_first_and_last_token_came_in_time(first, done, met):
    assert slo_met(ledger("r", **CHAT, first_token_s=first, done_s=done)) is met


def test_without_a_tbt_target_the_first_token_decides():
    assert slo_met(ledger("r", **CHAT | {"tbt_slo_s": None}, first_token_s=T + 0.9, done_s=T + 500)) is True


@pytest.mark.parametrize(("done", "met"), [(T + 60.0, True), (T + 60.1, False)])
def test_any_other_request_is_met_when_it_was_done_in_time(done, met):
    assert slo_met(ledger("r", **BATCH, done_s=done)) is met


@pytest.mark.parametrize("slo", [CHAT, BATCH])
def test_a_failed_request_missed_its_promise_and_a_refused_one_had_none(slo):
    common = {"first_token_s": T + 0.2, "done_s": T + 0.3}
    assert slo_met(ledger("r", Reason.BACKEND_LOST, **slo, **common)) is False
    assert slo_met(ledger("r", Reason.TOKEN_BUDGET, **slo, **common)) is None


LEFT = Reason.CLIENT_LEFT
IN_QUEUE = {"granted_s": None, "output_tokens": 0, "first_token_s": None}


def test_a_client_that_left_before_anything_was_due_says_nothing():
    assert slo_met(ledger("r", LEFT, **CHAT, first_token_s=None, done_s=T + 0.5)) is None
    assert slo_met(ledger("r", LEFT, **CHAT, first_token_s=None, done_s=T + 1.5)) is False
    assert slo_met(ledger("r", LEFT, **BATCH, first_token_s=None, done_s=T + 30)) is None
    assert slo_met(ledger("r", LEFT, **BATCH, first_token_s=None, done_s=T + 61)) is False


@pytest.mark.parametrize(("slo", "due_s"), [(CHAT, 1.0), (CHAT | {"streamed": False}, 1.0), (BATCH, 60.0)])
def test_who_gave_up_in_the_queue_was_kept_waiting_beyond_what_was_promised_or_not(slo, due_s):
    assert slo_met(ledger("r", LEFT, **slo | IN_QUEUE, done_s=T + due_s - 0.1)) is None
    assert slo_met(ledger("r", LEFT, **slo | IN_QUEUE, done_s=T + due_s + 0.1)) is False


@pytest.mark.parametrize(("done", "met"), [(T + 1.9, None), (T + 2.1, False)])
def test_whose_client_left_a_whole_answer_is_late_by_what_there_was_of_it(done, met):
    """Of which the 11th token is due at 1 s + 10 * 0.1 s."""
    assert slo_met(ledger("r", LEFT, **CHAT, streamed=False, first_token_s=None, done_s=done)) is met


def test_a_whole_answer_without_a_tbt_target_is_not_judged_its_client_left_or_not():
    bare = CHAT | {"tbt_slo_s": None, "streamed": False, "first_token_s": None}
    assert slo_met(ledger("r", LEFT, **bare, done_s=T + 500)) is None
    assert slo_met(ledger("r", **bare, done_s=T + 500)) is None


def test_no_target_no_judgement():
    bare = RAN | {"ttft_slo_s": None, "tbt_slo_s": None, "ttlt_slo_s": None}
    record = ledger("r", **bare)
    assert record.outcome == Outcome.COMPLETED
    assert slo_met(record) is None
    assert judged(record).slo_met is None


def test_no_target_no_judgement_even_when_it_failed():
    bare = RAN | {"ttft_slo_s": None, "tbt_slo_s": None, "ttlt_slo_s": None}
    assert slo_met(ledger("r", Reason.INTERNAL, **bare)) is None


def test_of_few_requests_so_many_have_to_be_missed_that_it_is_no_chance():
    """The console has the same figures: ``frontend/src/pages/overview/verdict.test.ts``."""
    most = [max([k for k in range(n + 1) if falls_short(k / n, n, 0.9)], default=-1) for n in range(1, 12)]
    assert most == [-1, 0, 1, 1, 2, 3, 4, 5, 5, 8, 9]
    asked = [(0.0, 0, 0.9), (0.0, 1, 0.99), (0.0, 1, 1.0), (1.0, 1, 1.0)]
    assert [falls_short(*one) for one in asked] == [False, True, True, False]
