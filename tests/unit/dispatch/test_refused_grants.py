"""What shared state refuses of a decision waits on as if it had not been decided."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from scheduling.core.types import Grant
from scheduling.dispatch.deciding import Decider
from scheduling.state.types import GrantStatus
from tests.support.scheduling_world import waiting


@pytest.mark.parametrize("status", [GrantStatus.FULL, GrantStatus.ENT, GrantStatus.AWAY])
async def test_all_of_a_refused_prompt_counts_again(status: GrantStatus) -> None:
    """What was believed to be cached where it did not go says nothing of where it goes next."""
    kept: list[Any] = []
    told: list[Any] = []

    async def grant(epoch: int, items: list[Any], turnaround_s: float | None) -> list[GrantStatus]:
        told.extend(items)
        return [status]

    queue: Any = SimpleNamespace(
        scheduler=_Nobody(), offer=lambda request, now_s: kept.append(request), park=kept.append
    )
    clock: Any = SimpleNamespace(turnaround_s=None, granted=lambda *_: None)
    store: Any = SimpleNamespace(grant=grant)
    unused: Any = None
    decider = Decider(store, "p", 1, "fifo@1", queue, unused, clock, unused)
    request = waiting(1, input_tokens=500)
    counted = replace(request, uncounted_tokens=400, uncounted_point="a")
    written = await decider._write([Grant(counted, "b", "why")], 1000.0)
    assert written.granted == [], "who did not get a place claims nobody's"
    assert [(item.point, item.cached_tokens) for item in told] == [("a", 400)]
    assert kept == [request]


class _Nobody:
    """A scheduler in which nobody waits."""

    def __contains__(self, request_id: str) -> bool:
        return False

    def settle(self, *_: object) -> None:
        pass
