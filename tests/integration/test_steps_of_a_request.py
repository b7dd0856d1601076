"""A request takes a known number of steps in the web process: instructions of functions of ours and of the server.

Counted, not timed, so that a change which makes every request a little dearer is seen on any machine, however busy. A
bound is what was counted when it was set, and a little: who adds steps raises it here, and says in the commit for what.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import uvicorn

from tests.support.gateway_world import World, gateway_world

REPOSITORY = Path(__file__).parents[2]
FOLDERS = (
    *(REPOSITORY / name for name in ("scheduling", "controlplane", "telemetry", "tenants")),
    Path(uvicorn.__file__),
)
OURS = tuple(f"{folder.parent if folder.suffix else folder}/" for folder in FOLDERS)
WINDOWS, REQUESTS = 12, 10  # of each the least counts: clocks and rounds of the gateway take steps beside requests
WHOLE = 8_450  # for a short answer; 8,140 when it was set, by CPython 3.11: newer ones take fewer
STREAM = 18_000  # for a stream of 64 tokens; 17,100


class Steps:
    """Counts instructions of the functions of ours that begin or go on inside it."""

    def __init__(self) -> None:
        self.seen: Counter[CodeType] = Counter()

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.seen[frame.f_code] += 1
        return self._step

    def __enter__(self) -> Steps:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    @property
    def total(self) -> int:
        return sum(self.seen.values())


async def least(ask: Callable[[], Awaitable[None]]) -> Steps:
    """The steps of ``REQUESTS`` requests in the window with the fewest."""
    for _ in range(2 * REQUESTS):
        await ask()
    windows = []
    for _ in range(WINDOWS):
        with Steps() as steps:
            for _ in range(REQUESTS):
                await ask()
        windows.append(steps)
    return min(windows, key=lambda steps: steps.total)


def told(steps: Steps) -> str:
    """Where a request takes most, for who has to find what was added."""
    return "\n".join(
        f"{count / REQUESTS:8.1f} {code.co_filename.removeprefix(f'{REPOSITORY}/')}:{code.co_name}"
        for code, count in steps.seen.most_common(60)
    )


async def ask(world: World, http: Any, stream: bool) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "stream": stream}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("stream", "bound"), [(False, WHOLE), (True, STREAM)], ids=["whole answer", "stream of 64"])
async def test_a_request_takes_no_more_steps_than_it_did(
    redis_url: str, pool_id: str, stream: bool, bound: int
) -> None:
    async with gateway_world(redis_url, pool_id) as world, world.http() as http:
        steps = await least(lambda: ask(world, http, stream))
    found = steps.total / REQUESTS
    assert found <= bound, f"{found:.0f} steps:\n{told(steps)}"
    assert found > bound / 2, "a request that is counted takes steps"
