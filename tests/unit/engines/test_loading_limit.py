"""How calibration finds the number of sequences that an engine runs at once, where it does not say it."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field

import httpx
import pytest

from controlplane.calibration import lasting
from scheduling.engines import loading
from scheduling.engines.client import EngineError, EngineMetrics
from scheduling.engines.kinds.vllm import VllmClient


@dataclass
class Full:
    """An engine of so many seats as its counters show it: after a step, when what ended with it is gone."""

    seats: int
    late: int = 0  # looks until all that was offered has arrived
    kv_tokens: int = 10**9  # that have to be free for what an answer may have, before it begins
    lengths: list[int] = field(default_factory=list)
    looks: int = 0

    async def take(self, request: httpx.Request) -> httpx.Response:
        self.lengths.append(json.loads(request.content)["max_tokens"])
        await asyncio.sleep(3600)
        raise AssertionError

    def seen(self) -> EngineMetrics:
        self.looks += 1
        here = len(self.lengths) // 2 if self.looks <= self.late else len(self.lengths)
        ended = sum(1 for length in self.lengths if length < 100) > 0
        reserved = self.kv_tokens // max(self.lengths, default=1)
        running = max(0, min(here, self.seats, reserved) - ended)
        return EngineMetrics(running, here - running, 0.1, float(self.looks // 2 * running), 32.0 * here, 0.0, 0.0)


async def found(engine: Full, offered: int, monkeypatch: pytest.MonkeyPatch, output: int = 4000) -> int | None:
    monkeypatch.setattr(loading, "LOOK_EVERY_S", 0.001)
    async with httpx.AsyncClient(transport=httpx.MockTransport(engine.take)) as http:
        client = VllmClient("http://engine", http=http, model="m")

        async def scrape(timeout_s: float = 1.0) -> EngineMetrics:
            return engine.seen()

        monkeypatch.setattr(client, "scrape", scrape)
        return await loading.limit(client, http, "m", {}, offered, 32, output, random.Random(1))


async def test_a_full_engine_is_seen_with_all_its_seats_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Full(seats=32)
    assert await found(engine, 64, monkeypatch) == 32
    assert set(engine.lengths) == {4000}


async def test_what_runs_before_all_have_arrived_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await found(Full(seats=32, late=20), 48, monkeypatch) == 32


async def test_an_engine_that_runs_all_that_is_offered_has_shown_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await found(Full(seats=32), 32, monkeypatch) is None


async def test_kv_cache_that_an_engine_reserves_for_answers_is_no_limit_of_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang sets aside most of what each may still have, up to 4,096 tokens."""
    engine = Full(seats=128, kv_tokens=100_000)
    assert await found(engine, 256, monkeypatch, lasting("sglang", 32_768)) == 128


def test_answers_are_no_longer_than_the_context_has_room_for() -> None:
    assert [lasting("vllm", context) for context in (None, 2048, 16)] == [4096, 2015, 1]


async def test_an_engine_that_takes_no_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LIMIT_S", 0.05)
    monkeypatch.setattr(Full, "seen", lambda _: EngineMetrics(3, 61, 0.1, 0.0, 0.0, 0.0, 0.0))
    with pytest.raises(EngineError, match="did not run the same number"):
        await found(Full(seats=32), 64, monkeypatch)
