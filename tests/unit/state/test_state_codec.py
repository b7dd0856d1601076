"""What is written into Redis is read back as it was."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.types import Slo
from scheduling.state import codec
from scheduling.state.notices import PreemptionNotice
from scheduling.state.types import RequestFacts, StoredRequest
from tests.support.state_world import FACTS, entitlement, ledger, request

STORED = StoredRequest(request("r1", entitlement(), ttft_deadline_s=1_700_000_001.25, client_priority=-3), FACTS)


def test_a_request_and_a_ledger_record_survive_the_round_trip():
    assert codec.decode_request(codec.encode_request(STORED)) == STORED
    record = ledger("r1", slo_met=None, first_token_s=None)
    assert codec.decode_ledger(codec.encode_ledger(record)) == record


@given(st.text(min_size=1, alphabet=st.characters(codec="utf-8", exclude_characters="|")), st.text())
def test_a_note_is_one_word_whatever_the_reason_says(policy: str, why: str):
    note = codec.encode_note(policy, why)
    if why:
        assert len(note.split()) == 1
        assert codec.decode_note(note) == (policy, why)
    payload = f"r1 2 b1 {codec.encode_note('fifo@1', why)}".encode()
    notice = codec.decode_notice(payload)
    assert (notice.request_id, notice.attempt, notice.backend, notice.policy, notice.why) == (
        "r1",
        2,
        "b1",
        "fifo@1",
        why,
    )


@given(st.text())
def test_an_entry_keeps_any_record_behind_its_fourteen_words(model: str):
    stored = StoredRequest(STORED.request, RequestFacts(model, "k", False, Slo(ttlt_s=1.0)))
    entry = codec.Entry(2, "acme", "elastic", "", 1, 2, 3, 4, 5, 0, "gw-1", 7, 9, "-", codec.encode_request(stored))
    again = codec.decode_entry(codec.encode_entry(entry))
    assert again == entry
    assert codec.decode_request(again.record) == stored
    assert (again.queued_request().attempt, again.queued_request().seq) == (2, 7)


@pytest.mark.parametrize(
    ("backend", "served", "held", "used"),
    [
        ("b1", 0, False, (100, 0)),  # its prompt was read
        ("b1", 60, False, (100, 0)),
        ("b1", 123, False, (100, 23)),  # as its gateway said when it last renewed it
        ("", 123, False, (0, 0)),  # it waited
        ("b1", 0, True, (100, 200)),  # nobody saw its answer: at most
        ("", 0, True, (0, 0)),
    ],
)
def test_what_a_lost_gateway_left_has_used_what_is_known_of_it(backend: str, served: int, held: bool, used: tuple):
    queued = replace(STORED.request, input_tokens=100, output_bound=200)
    stored = StoredRequest(queued, replace(FACTS, held=held))
    entry = codec.Entry(
        1, "acme", "elastic", backend, 1, 2, 3, 4, 5, 6, "gw-1", 7, served, "-", codec.encode_request(stored)
    )
    record = codec.swept_record("p", entry, 9000)
    assert (record.input_tokens, record.output_tokens) == used
    assert record.reason == "gateway_lost"


@pytest.mark.parametrize("junk", [b"", b"1 2 3", b"x" * 50])
def test_what_no_script_wrote_is_refused(junk: bytes):
    with pytest.raises(ValueError, match="an entry has 14 words"):
        codec.decode_entry(junk)
    with pytest.raises(msgspec.DecodeError):
        codec.decode_request(junk)
    with pytest.raises(ValueError, match="a ledger entry has the fields"):
        codec.decode_ledger_fields("p", [b"junk", junk])


def test_an_entry_says_what_it_holds_of_a_prefill_credit_and_older_ones_hold_none():
    record = codec.encode_request(STORED)
    entry = codec.Entry(2, "acme", "elastic", "b1", 1, 2, 3, 4, 5, 0, "gw-1", 7, 9, "-", record, prefill=700)
    data = codec.encode_entry(entry)
    assert b' - {"v":3,"pre":700,"request":' in data
    assert codec.decode_entry(data).prefill == 700
    before = data.replace(b'{"v":3,"pre":700,', b'{"v":2,')
    assert codec.decode_entry(before).prefill == 0
    assert codec.decode_entry(before.replace(b" b1 ", b" - ", 1)).prefill == STORED.request.prefill_tokens
    assert codec.decode_notice(b"r1 1 b1 fifo@1|first 700").prefill == 700
    assert codec.decode_notice(b"r1 1 b1 fifo@1|first").prefill == 0


def test_a_gateway_of_before_reads_a_preemption_as_a_grant_that_it_has_already():
    """It compares the attempt of a grant with the one that it waits for, and this request runs."""
    payload = codec.encode_preemption("r1", 2, "b1", 900).encode()
    assert codec.decode_notice(payload) == PreemptionNotice("r1", 2, "b1", 900)
    request_id, attempt, backend, note, *more = payload.decode().split(" ", 4)
    assert (request_id, attempt, backend, more) == ("r1", "2", "b1", ["900"])
    assert codec.decode_note(note) == ("preempted", ""), "no policy has this name, as all have a version"


def test_a_lease_says_up_to_which_point_its_prompt_does_not_count():
    record = codec.encode_request(StoredRequest(replace(STORED.request, input_tokens=100), FACTS))
    entry = codec.Entry(2, "acme", "elastic", "b1", 1, 2, 3, 4, 5, 6, "gw-1", 7, 9, "-", record, prefill=30)
    assert codec.uncounted_point(codec.decode_entry(codec.encode_entry(entry)).record) == ""
    entry = replace(entry, record=codec.with_uncounted(record, "00ff" * 3))
    data = codec.encode_entry(entry)
    assert b'{"v":3,"pre":30,"uncounted":"00ff00ff00ff","request"' in data
    read = codec.decode_entry(data)
    assert (codec.uncounted_point(read.record), read.prefill) == ("00ff" * 3, 30)
    assert read.queued_request().prefill_tokens == 100, "what runs once more counts whole until it is granted"
    assert codec.encode_entry(read) == data


def test_an_entry_says_how_many_sequences_it_is_and_an_older_one_is_one():
    head = b"1 acme elastic b1 140 0 140 300 0 1700000000000 gone 1 0 - "
    text = replace(FACTS, user='"sequences":9', trace='x","sequences":9,"y":"')
    record = codec.encode_request(replace(STORED, facts=text, request=replace(STORED.request, sequences=4)))
    assert codec.decode_entry(head + record).sequences == 4
    older = record.replace(b',"sequences":4', b"")
    assert codec.decode_entry(head + older).sequences == codec.decode_request(older).request.sequences == 1
