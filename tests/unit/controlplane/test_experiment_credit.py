"""Short questions beside long prompts: what is counted."""

from __future__ import annotations

from controlplane.experiments.clients import Sent
from controlplane.experiments.credit import LEARN_S, LENGTH_S, experiment, summary


def _row(sent_s: float, ttft_s: float | None, reason: str = "") -> Sent:
    return Sent("chat", sent_s, 200 if not reason else 503, reason, ttft_s, sent_s + 1.0)


def test_what_was_sent_while_the_engine_filled_up_is_not_counted() -> None:
    told = summary([_row(LEARN_S - 1.5, 9.0), _row(LEARN_S, 0.2), _row(LEARN_S + 1, 0.4)], "chat")
    assert (told["sent"], told["completed"], told["ttft_p50_s"], told["ttft_p95_s"]) == (2, 2, 0.2, 0.4)
    assert told["per_s"] == 2 / (LENGTH_S - LEARN_S)


def test_first_tokens_of_requests_that_were_refused_are_unknown_not_zero() -> None:
    told = summary([_row(LEARN_S, None, "pool_unavailable")], "chat")
    assert (told["sent"], told["completed"], told["ttft_p50_s"]) == (1, 0, None)


def test_long_prompts_fill_every_slot_and_short_questions_come_on_their_own_pace() -> None:
    chat, docs = experiment(16, 3000).crowds(admission=True)
    assert (docs.clients, docs.input_tokens, docs.open_loop) == (16, 3000, False)
    assert chat.open_loop
    assert chat.input_tokens < docs.input_tokens
