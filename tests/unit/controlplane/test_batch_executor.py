"""Lines of one batch on several pools: each goes by the room of the pool that serves its model."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest

from controlplane.batches import services
from controlplane.batches.executor import BatchRun, Pace
from controlplane.batches.gateway import LineAnswer, SurplusGateway
from controlplane.batches.lines import Line
from controlplane.batches.room import Room
from controlplane.batches.services import Work
from scheduling.core.admission.batch_account import account_of
from scheduling.core.engine.step_time import load_preset
from scheduling.core.outcomes import Reason

A100 = load_preset("llama-3-8b-a100").step_time


class _Gateway:
    """Opens a pool for each model; answers when it is told to."""

    ready = True

    def __init__(self, usage: dict[str, int]) -> None:
        self.go = asyncio.Event()
        self.ran: list[str] = []
        self._body = json.dumps({"usage": usage}).encode()

    def runs_on(self, key_id: str, model: str) -> tuple[str, str]:
        return f"pool-{model}", account_of(f"team-{model}")

    async def run_line(self, key_id: str, path: str, body: bytes, request_id: str) -> LineAnswer:
        self.ran.append(request_id)
        await self.go.wait()
        return LineAnswer(200, Reason.STOP, self._body)


def batch_of(gateway: _Gateway, room: Room, models: str) -> BatchRun:
    ends = datetime(2030, 1, 1, tzinfo=UTC)
    work = Work(1, "batch_1", 1, "acme", "team-chat", "key", "chat", "/v1/x", "in", "in_progress", ends, 5)
    run = BatchRun(work, cast(SurplusGateway, gateway), Pace(100), room, lambda: False)
    run._pace._window = 100.0
    run._pending.extend(Line(n, f"c{n}", b"{}", model) for n, model in enumerate(models.split(), 1))
    return run


def room_of(people: dict[str, int]) -> Room:
    room = Room(lambda pool: [A100], 0.05, 256)
    for pool, running in people.items():
        one = room.of(pool)
        one.steps_take([A100])
        one.looked(0, -1e9)  # the first look, long ago
        if running:
            one.looked(running, asyncio.get_running_loop().time())
    return room


@pytest.mark.parametrize("broken", [False, True])
async def test_people_on_the_pool_of_a_line_count_and_not_those_on_the_keys_own(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = _Gateway({"prompt_tokens": 5, "completion_tokens": 2})
    if broken:  # as the batch's own model, whatever its lines say
        monkeypatch.setattr(gateway, "runs_on", lambda key_id, model: _Gateway.runs_on(gateway, key_id, "chat"))
    room = room_of({"pool-chat": 0, "pool-embed": 3})
    run = batch_of(gateway, room, "embed embed embed embed chat")
    started = 0
    while run._start_one():
        started += 1
    assert started == (5 if broken else 1), "beside people, of whose steps nothing is known yet, one line runs"
    assert room.of("pool-embed").running == (0 if broken else 1)
    assert room.of("pool-embed").accounts[account_of("team-embed")] == (0 if broken else 1)
    gateway.go.set()
    await asyncio.gather(*run._running)
    await asyncio.sleep(0)
    assert room.of("pool-embed").running == room.of("pool-chat").running == 0


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2)),
        ({"prompt_tokens": 5, "total_tokens": 5}, (5, 0)),
        ({"input_tokens": 5, "output_tokens": 2}, (5, 2)),
    ],
)
async def test_tokens_of_a_line_are_read_as_its_endpoint_says_them(
    usage: dict[str, int], told: tuple[int, int]
) -> None:
    gateway = _Gateway(usage)
    gateway.go.set()
    run = batch_of(gateway, room_of({"pool-chat": 0}), "chat")
    assert run._start_one()
    await asyncio.gather(*run._running)
    await asyncio.sleep(0)
    [outcome] = run._unstored
    assert (outcome.input_tokens, outcome.output_tokens) == told


@pytest.mark.parametrize("reason", [Reason.NO_KEY, Reason.KEY_REVOKED])
async def test_a_key_that_is_revoked_has_one_name_whether_a_line_of_it_had_begun_or_not(
    reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = _Gateway({})

    async def refused(*_: object) -> LineAnswer:
        return LineAnswer(401, reason, b"")

    monkeypatch.setattr(gateway, "run_line", refused)
    run = batch_of(gateway, room_of({"pool-chat": 0}), "chat")
    assert run._start_one()
    await asyncio.gather(*run._running)
    await asyncio.sleep(0)
    assert run._problem is not None
    assert run._problem["code"] == "key_revoked"
    assert len(run._pending) == 1, "it is not a result of the line"


async def test_a_fault_in_storing_results_ends_the_run_instead_of_keeping_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = {"custom_id": "c", "method": "POST", "url": "/v1/x", "body": {"model": "chat"}}
    gateway = _Gateway({"prompt_tokens": 5})
    gateway.go.set()

    def torn(*_: object) -> str:
        raise RuntimeError("torn")

    monkeypatch.setattr(gateway, "config", SimpleNamespace(max_body_bytes=1000), raising=False)
    monkeypatch.setattr(services, "done_lines", lambda work: set())
    monkeypatch.setattr(services, "open_input", lambda work: io.BytesIO(json.dumps(line).encode()))
    monkeypatch.setattr(services, "store", torn)
    run = batch_of(gateway, room_of({"pool-chat": 0}), "")
    with pytest.raises(RuntimeError, match="torn"):
        async with asyncio.timeout(20):
            await run.run()
