"""A pool's predictors in a gateway: what a prompt is judged by, what is told, what is learned."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from scheduling.core.estimate.chain import Outlook
from scheduling.core.types import PredictorMode
from scheduling.estimation.embedding import Embedder
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.estimate.forecasts import (
    PROMPTS_KEPT,
    SYSTEM_LOOKED_AT,
    TAUGHT_PER_ROUND,
    TEXT_LOOKED_AT,
    Forecasts,
    PoolForecasts,
    prompt_text,
)
from scheduling.state.history import Observation, Reset, Seal, decode_fields
from tests.support.preparing import prepare
from tests.unit.gateway.test_gateway_prepare import POOL

ENCODED = msgspec.msgpack.Encoder().encode


class Stream:
    """A pool's stream in memory, read in pieces."""

    def __init__(self) -> None:
        self.entries: list[Observation | Reset | None] = []

    async def append(self, observations: list[Observation]) -> None:
        self.entries += observations

    async def read(self, after: str, count: int) -> list[tuple[str, Observation | Reset | None]]:
        start = int(after)
        return [(str(start + i + 1), entry) for i, entry in enumerate(self.entries[start : start + count])]


def chat(*messages: dict[str, Any]) -> Prepared:
    return prepare(json.dumps({"model": POOL.model, "messages": messages}).encode(), True, POOL)


def completion(prompt: Any) -> Prepared:
    return prepare(json.dumps({"model": POOL.model, "prompt": prompt, "max_tokens": 9}).encode(), False, POOL)


def call_of(text: str) -> Any:
    return SimpleNamespace(
        access=SimpleNamespace(
            key=SimpleNamespace(id="k1"), entitlement=SimpleNamespace(tenant="acme"), pool=SimpleNamespace(model="m")
        ),
        prepared=chat({"role": "user", "content": text}),
        outlook=None,
    )


def forecasts(mode: PredictorMode = PredictorMode.SIMILAR, stream: Stream | None = None) -> PoolForecasts:
    return PoolForecasts(mode, stream or Stream(), Embedder())  # type: ignore[arg-type]


def look(pool: PoolForecasts, call: Any, input_tokens: int, bound: int) -> Outlook:
    call.outlook = pool.look(call.access, call.prepared, input_tokens, bound)
    return call.outlook  # type: ignore[no-any-return]


def test_a_conversation_is_judged_by_what_the_user_said_last() -> None:
    prepared = chat(
        {"role": "system", "content": "You are a pirate. " + "x" * 1000},
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "text", "text": "question"}]},
    )
    text = prompt_text(prepared)
    assert text.startswith("second question\nYou are a pirate.")
    assert len(text) == len("second question\n") + SYSTEM_LOOKED_AT
    assert "first" not in text


def test_long_prompts_are_looked_at_only_so_far_and_token_ids_not_at_all() -> None:
    assert len(prompt_text(completion("word " * 5000))) == TEXT_LOOKED_AT
    assert prompt_text(completion([1, 2, 3])) == ""
    assert prompt_text(chat({"role": "assistant", "content": "only me"})) == ""


@pytest.mark.parametrize("text", ["", " ", "\ud800 half a pair", "日本語のテキスト", "\x00", "?" * 5000])
def test_any_text_gets_a_prediction_within_its_bound(text: str) -> None:
    pool = forecasts()
    call = SimpleNamespace(**vars(call_of("x")))
    call.prepared.body.messages[0].content = text
    outlook = look(pool, call, 10, 25)
    assert call.outlook is outlook
    assert outlook.forecast.prediction.lengths[-1] <= 25
    assert outlook.forecast.p90 <= 25


async def test_what_is_told_is_learned_by_all_and_by_itself_once() -> None:
    stream = Stream()
    one, other = forecasts(stream=stream), forecasts(stream=stream)
    call = call_of("Describe the harbour")
    look(one, call, 12, 400)
    one.ended(call.outlook, 33)
    for pool in (one, other, one, other):
        await pool.round()
    assert (one.learned, other.learned) == (1, 1)
    for pool in (one, other):
        again = call_of("Describe the harbour")
        assert look(pool, again, 12, 400).forecast.prediction.source == "similar"


async def test_who_goes_on_for_another_knows_what_that_learned_and_reads_only_what_is_new() -> None:
    streams = {"one": Stream(), "two": Stream()}
    asked: list[str] = []

    class Counted(Stream):
        async def read(self, after: str, count: int) -> list[tuple[str, Observation | Reset | None]]:
            asked.append(after)
            return await streams["two"].read(after, count)

    catalog = SimpleNamespace(pools={"p": SimpleNamespace(id="p", predictor=PredictorMode.SIMILAR)})
    first = Forecasts(lambda pool: streams["one"])  # type: ignore[arg-type, return-value]
    first.configure(catalog)  # type: ignore[arg-type]
    pool = first._pools["p"]
    for _ in range(30):
        pool.ended(look(pool, call_of("how long is a piece of string"), 7, 400), 40)
    await pool.round()
    streams["two"].entries = [*streams["one"].entries, streams["one"].entries[0]]

    second = Forecasts(lambda pool: Counted())  # type: ignore[arg-type, return-value]
    second.resume(first)
    second.configure(catalog)  # type: ignore[arg-type]
    again = second._pools["p"]
    assert again.learned == 30
    await again.round()
    assert (again.learned, asked) == (31, ["30"])


async def test_who_is_stopped_while_he_learns_learns_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    teacher = forecasts(stream=stream)
    for _ in range(50):
        teacher.ended(look(teacher, call_of("how long is a piece of string"), 7, 400), 40)
    await teacher.tell()
    pool = forecasts(stream=stream)

    async def stopped() -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as stopping:
        stopping.setattr(pool, "_fit", stopped)  # where others get their turn in between
        with pytest.raises(asyncio.CancelledError):
            await pool.round()
    assert 0 < pool.learned < 50
    await pool.round()
    assert pool.learned == 50


async def test_an_answer_at_its_bound_is_told_as_cut_and_one_below_is_not() -> None:
    stream = Stream()
    pool = forecasts(stream=stream)
    for bound in (40, 41):
        call = call_of("Describe the harbour")
        look(pool, call, 12, bound)
        pool.ended(call.outlook, 40)
    await pool.round()
    assert [seen.cut for seen in stream.entries if isinstance(seen, Observation)] == [True, False]


async def test_a_busy_gateway_tells_a_fair_sample() -> None:
    stream = Stream()
    pool = forecasts(PredictorMode.HISTORY, stream)
    call = call_of("Describe the harbour")
    look(pool, call, 12, 100_000)
    for actual in range(1, 2001):
        pool.ended(call.outlook, actual)
    await pool.round()
    told = [seen.actual for seen in stream.entries if isinstance(seen, Observation)]
    assert len(told) == TAUGHT_PER_ROUND
    assert 500 < sum(told) / len(told) < 1500, "early and late ones alike"


async def test_history_mode_keeps_no_embeddings_and_says_so() -> None:
    stream = Stream()
    pool = forecasts(PredictorMode.HISTORY, stream)
    call = call_of("Describe the harbour")
    look(pool, call, 12, 400)
    pool.ended(call.outlook, 33)
    await pool.round()
    [seen] = stream.entries
    assert isinstance(seen, Observation)
    assert seen.embedding == b""
    shown = json.loads(pool.drift())
    assert (shown["predictor"], shown["learned"], shown["prompts"]) == ("history", 1, 0)
    [factor] = shown["tenants"]["acme"]["factors"]
    assert (factor["category"], factor["observed"]) == (seen.category, 1)
    assert shown["tenants"]["acme"]["learned"] == 1


async def test_what_cannot_be_read_is_passed_over() -> None:
    stream = Stream()
    good = Observation("k", "t", "m", "report", 5, 50, False, "prior", 400.0, b"of another version")
    stream.entries = [None, good, Reset("report"), None]
    pool = forecasts(stream=stream)
    await pool.round()
    assert pool.learned == 1
    known = pool.chain.of("t")
    assert known is not None
    assert known.baseline.drift.factors() == []


def test_entries_of_the_stream_are_read_as_they_were_written() -> None:
    seen = Observation("k", "t", "m", "report", 5, 50, True, "prior", 400.0, b"abc")
    seal, other = Seal(b"secret", "p"), Seal(b"another", "p")
    assert decode_fields([b"2", seal.close(seen)], seal) == seen
    assert decode_fields([b"r", b"summary"], seal) == Reset("summary")
    assert decode_fields([b"o", ENCODED(seen)], seal) is None, "an earlier version's"
    assert decode_fields([b"2", ENCODED(seen)], seal) is None
    assert decode_fields([b"2", b""], seal) is None
    assert decode_fields([b"2", other.close(seen)], seal) is None, "another secret's"
    assert decode_fields([b"2", Seal(b"secret", "q").close(seen)], seal) is None, "another pool's"
    assert decode_fields([b"x", b"y"], seal) is None


def test_equal_observations_are_sealed_differently() -> None:
    seen = Observation("k", "t", "m", "report", 5, 50, True, "prior", 400.0, b"abc")
    seal = Seal(b"secret", "p")
    assert seal.close(seen) != seal.close(seen)
    assert seal.owner("t") != Seal(b"another", "p").owner("t")


def test_embeddings_of_known_prompts_are_bounded() -> None:
    pool = forecasts(PredictorMode.HISTORY)
    for number in range(PROMPTS_KEPT + 10):
        pool._read(("acme", b"%d" % number), f"prompt {number}")
    assert len(pool._prompts) == PROMPTS_KEPT


def test_a_repeated_question_is_answered_from_memory_until_something_is_learned() -> None:
    pool = forecasts(PredictorMode.HISTORY)
    first = look(pool, call_of("once more"), 12, 400)
    assert look(pool, call_of("once more"), 12, 400) is first
    assert look(pool, call_of("once more"), 12, 300) is not first  # another bound is another question
    pool._learn(Observation("key", "acme", "m", "", 12, 90, False, "", 0.0, b""))
    assert look(pool, call_of("once more"), 12, 400) is not first


def test_remembered_answers_are_bounded() -> None:
    pool = forecasts(PredictorMode.HISTORY)
    for bound in range(1, PROMPTS_KEPT + 10):
        look(pool, call_of("once more"), 12, bound)
    assert len(pool._looked) <= PROMPTS_KEPT
