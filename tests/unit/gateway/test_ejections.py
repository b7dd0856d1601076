"""A replica that is ejected: what runs there and has sent nothing moves elsewhere, whenever it was granted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from scheduling.core.outcomes import Reason
from scheduling.gateway.in_flight import InFlight


class Store:
    def __init__(self, *ready: str) -> None:
        self.backends = {name: SimpleNamespace(ready=True, slots=4) for name in ready}

    async def view(self) -> Any:
        return SimpleNamespace(leader="l", rebuilding_ms=0, backends=self.backends, waiting=0, service_ms=0)


async def test_what_is_granted_there_after_the_ejection_was_heard_moves_at_the_next_look() -> None:
    """An answer of shared state may take longer than the notification of an ejection."""
    store = Store("b1", "b2")
    in_flight = InFlight("gw-1", lambda _: cast(Any, store), 60.0, lambda _: True)
    assert not in_flight.works("p", "b1"), "never looked at"
    await in_flight._look("p", cast(Any, store), [])
    assert in_flight.works("p", "b1")
    in_flight.ejected("b1")
    interrupted: list[Reason] = []
    call = SimpleNamespace(responding=False, interrupt=interrupted.append)
    late: Any = SimpleNamespace(id="r1", backend="b1", prefill_at="", moving=False, call=call)
    in_flight.calls["r1"] = late
    store.backends["b1"].ready = False
    await in_flight._look("p", cast(Any, store), [late])
    assert interrupted == [Reason.BACKEND_LOST]
    assert not in_flight.works("p", "b1")
    assert in_flight.works("p", "b2")
    await asyncio.sleep(0)
