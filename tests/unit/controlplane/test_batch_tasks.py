"""A task lasts for seconds; what it learned is there for the next one in its process."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.batches import executor, gateway, services, tasks


class _Gateway:
    given: list[object] = []

    def __init__(self, *args: object) -> None:
        self.given.append(args[-1])
        self.learned = args[-1] or object()

    async def start(self) -> None: ...

    async def drain(self, limit_s: float) -> None: ...

    async def stop(self) -> None: ...


class _Executor:
    def __init__(self, *args: object, **named: object) -> None: ...

    async def run(self) -> None: ...


def test_the_next_task_is_given_what_was_learned_and_none_is_kept_where_no_batch_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_for = iter([True, True, True, True, True, False, True, False])  # asked before and after a task
    monkeypatch.setattr(services, "due", lambda: next(open_for))
    monkeypatch.setattr(gateway, "SurplusGateway", _Gateway)
    monkeypatch.setattr(executor, "Executor", _Executor)
    monkeypatch.setattr(tasks, "_room", None)
    monkeypatch.setattr(tasks, "_learned", None)
    monkeypatch.setattr(tasks, "_stopping", bytearray(1))  # another test may have told this process to stop
    monkeypatch.setattr(_Gateway, "given", [])
    rung: list[Any] = []
    monkeypatch.setattr(tasks.work, "apply_async", lambda *args, **named: rung.append(args))
    for _ in range(4):
        tasks.work.run()
    first, second, third, after = _Gateway.given
    assert first is None
    assert second is third is not None, "not read anew"
    assert after is None, "all batches had ended"
    assert tasks._learned is None
    assert len(rung) == 2
