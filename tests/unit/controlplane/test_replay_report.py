"""The replay's arithmetic: counts, percentiles and SLOs as a client would judge them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.replay.client import PromptSizing, prompt_of
from controlplane.replay.keep import ReportFile
from controlplane.replay.report import Sent, slo_met, summarise, work_while_sending
from controlplane.replay.verify import compare
from scheduling.core.types import Slo


def sent(**changes: object) -> Sent:
    row = Sent("req_1", "acme", "premium", 0.0, 0.0, status=200, outcome="completed", reason="completed")
    for name, value in {"ttft_s": 0.5, "ttlt_s": 1.4, "output_tokens": 10, "input_tokens": 5, **changes}.items():
        setattr(row, name, value)
    return row


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (sent(), True),
        (sent(ttft_s=1.1), False),
        (sent(ttlt_s=2.0), False),  # 9 gaps of more than 0.1 s after the TTFT target
        (sent(ttft_s=0.1, ttlt_s=1.9), True),  # an early first token is slack (QoServe)
        (sent(outcome="refused"), None),
        (sent(outcome="failed", ttlt_s=None), False),
    ],
)
def test_an_interactive_slo_asks_for_the_first_and_the_last_token(row: Sent, met: bool | None) -> None:
    assert slo_met(row, Slo(ttft_s=1.0, tbt_s=0.1)) is met


@pytest.mark.parametrize(("ttlt_s", "met"), [(1.8, True), (1.95, False)])
def test_of_a_whole_answer_the_deadline_of_its_last_token_counts(ttlt_s: float, met: bool) -> None:
    """As in the ledger. Its end was taken for its first token: a replay of whole answers said 16 % where 98 % were in
    time."""
    row = sent(streamed=False, ttft_s=None, ttlt_s=ttlt_s)
    assert slo_met(row, Slo(ttft_s=1.0, tbt_s=0.1)) is met
    assert slo_met(row, Slo(ttft_s=1.0)) is None, "its first token is not seen"


def test_a_total_time_slo_asks_for_the_last_token_only() -> None:
    assert slo_met(sent(ttft_s=50.0, ttlt_s=59.0), Slo(ttlt_s=60.0)) is True
    assert slo_met(sent(ttlt_s=61.0), Slo(ttlt_s=60.0)) is False


def test_every_request_is_counted_once_under_its_outcome() -> None:
    rows = [
        sent(),
        sent(name="globex", tier="batch", outcome="refused", reason="queue_full"),
        sent(name="globex", tier="batch", outcome="failed", reason="backend_lost"),
        sent(outcome="cancelled", reason="client_left"),
    ]
    report = summarise(rows, {"premium": Slo(ttft_s=1.0, tbt_s=0.1)}, 2.0)
    total = report["total"]
    assert total["sent"] == 4 == total["completed"] + 1 + 1 + total["cancelled"]
    assert total["refused"] == {"queue_full": 1}
    assert total["failed"] == {"backend_lost": 1}
    assert report["tenants"]["globex"]["completed"] == 0
    assert report["tiers"]["premium"]["slo_attainment"] == 1.0
    assert report["tiers"]["batch"]["slo_attainment"] is None
    assert sum(group["sent"] for group in report["tenants"].values()) == 4


def test_prompt_length_is_learned_from_the_answers_usage() -> None:
    calibration = PromptSizing()
    for words in (10, 200, 50):
        calibration.learn(words, round(7 + 1.5 * words))
    assert calibration.words_for(307) == 200


def test_prompts_share_the_text_of_the_blocks_that_they_share() -> None:
    def words(count: int, blocks: tuple[int, ...], seed: int) -> list[str]:
        return prompt_of(count, blocks, random.Random(seed)).split()

    one, other = words(1300, (7, 8, 9), 1), words(1500, (7, 8, 10), 2)
    assert (len(one), len(other)) == (1300, 1500)
    assert one[:1024] == other[:1024]
    assert one[1024:] != other[1024:1300]
    assert words(1300, (7, 8, 9), 3) == one
    assert words(1500, (7, 8, 9), 3)[:1300] == one, "a conversation that goes on"
    assert words(100, (7, 8, 9), 3) == one[:100]
    assert words(2000, (7,), 1)[:512] == one[:512]
    assert len(words(2000, (7,), 1)) == 2000
    assert words(300, (), 1) != words(300, (), 2)


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--speed", "nan"], "--speed must be a number above 0"),
        (["--speed", "inf"], "--speed must be a number above 0"),
        (["--speed", "0"], "--speed must be a number above 0"),
        (["--limit", "0"], "--limit must be a number above 0"),
        (["--report", "{folder}"], "is a folder"),
        (["--report", "{folder}/nowhere/out.json"], "no folder"),
        (["--tenants-from", "{folder}/trace.csv"], "expected an object"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_anything_is_sent(
    tmp_path: Path, options: list[str], told: str
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    with pytest.raises(CommandError, match=told):
        call_command("replay", str(trace), *[option.format(folder=tmp_path) for option in options])


def test_a_report_is_whole_whenever_it_is_read_and_a_pipe_gets_the_last_state_only(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "out.json")
    for number in (1, 2):
        file.write({"n": number})
        assert json.loads((tmp_path / "out.json").read_text()) == {"n": number}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    pipe = ReportFile(Path("/dev/null"))
    pipe.write({"n": 1})
    pipe.write({"n": 1}, last=True)


def test_what_the_ledger_says_otherwise_is_a_difference() -> None:
    rows = [sent(request_id="a"), sent(request_id="b"), sent(request_id="c"), sent(request_id="")]
    ledger = {
        "a": {"outcome": "completed", "reason": "stop", "input_tokens": 5, "output_tokens": 10},
        "b": {"outcome": "failed", "reason": "backend_lost", "input_tokens": 5, "output_tokens": 3},
        "z": {"outcome": "completed", "reason": "stop", "input_tokens": 1, "output_tokens": 1},
    }
    found = compare(rows, lambda: ledger, patience_s=0)
    assert (found.sent, found.found, found.without_id, found.equal) == (3, 2, 1, False)
    assert [line.split(":")[0] for line in found.differences] == ["b", "c"]


def test_the_work_of_an_overload_is_counted_while_requests_are_sent() -> None:
    one = sent(planned_s=0.0, ttft_s=0.5, ttlt_s=0.6, input_tokens=7_000)  # of the first tenth: engines are filling
    two = sent(planned_s=5.0, ttft_s=1.0, ttlt_s=2.0, input_tokens=900, output_tokens=100)
    late = sent(planned_s=10.0, ttft_s=30.0, ttlt_s=90.0, input_tokens=9_000, output_tokens=60)
    assert work_while_sending([one, two, late]) == pytest.approx(1_000 / 9.0, abs=0.1)
    across = sent(planned_s=9.0, ttft_s=0.5, ttlt_s=1.5, input_tokens=0, output_tokens=80)  # half of it by then
    assert work_while_sending([one, across, late]) == pytest.approx(40 / 9.0, abs=0.1)
    whole = sent(planned_s=5.0, streamed=False, ttft_s=None, ttlt_s=2.0, input_tokens=900, output_tokens=100)
    assert work_while_sending([one, whole, late]) == work_while_sending([one, two, late])
    refused = sent(planned_s=10.0, outcome="refused", ttft_s=None, ttlt_s=None, input_tokens=0, output_tokens=0)
    assert work_while_sending([one, two, refused]) == work_while_sending([one, two, late])
    assert work_while_sending([one]) is None, "one moment has no speed"
    assert summarise([one, two, late], {}, 100.0)["total"]["tokens_per_s_while_sending"] == pytest.approx(111.1)
