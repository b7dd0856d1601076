"""A leader asks gateways to take long prompts back: each once, and again where it was not heard."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import LongPrompt
from scheduling.core.types import Grant, PoolView
from scheduling.dispatch.preemption import ASK_AGAIN_S, LOOK_AGAIN_S, Preempter
from tests.support.dispatch_world import on_virtual_time
from tests.support.scheduling_world import backend_view, pool_view, waiting

NOW_S = 2000.0
LONG = LongPrompt(waiting(9, "batch", rank=2, input_tokens=40_000, kv_tokens=40_000), "b1", 40_000, NOW_S - 5)
URGENT = waiting(1, "urgent", rank=0, ttft_deadline_s=NOW_S + 1)


class Store:
    def __init__(self) -> None:
        self.prompts = [LONG]
        self.looked = 0
        self.preempted: list[tuple[str, int, int]] = []

    async def long_prompts(self) -> list[LongPrompt]:
        self.looked += 1
        return self.prompts

    async def preempt(self, prompt: LongPrompt, computed: int) -> None:
        self.preempted.append((prompt.request.id, prompt.request.attempt, computed))


def busy(**changes: Any) -> PoolView:
    given = {"kv_tokens": 10**6, "prefill_credit": 1024, "prefill_used": 30_000, "running": 1, "resumes": True}
    return pool_view(backend_view("b1", **(given | changes)))


def two() -> PoolView:
    given = {"kv_tokens": 10**6, "prefill_credit": 1024, "running": 1, "resumes": True}
    return pool_view(backend_view("b1", prefill_used=30_000, **given), backend_view("b2", prefill_used=20_000, **given))


def wants(view: PoolView) -> Scheduler:
    """A scheduler whose last decision left an urgent request that lacks credit."""
    scheduler = Scheduler(make_ordering("priority"), make_routing("least_work"))
    scheduler.offer(URGENT, NOW_S)
    assert not scheduler.step(view, NOW_S)
    return scheduler


def test_a_prompt_is_asked_for_once_and_again_where_nobody_heard() -> None:
    async def run() -> None:
        store = Store()
        preempter, view = Preempter(store, "p"), busy()  # type: ignore[arg-type]
        scheduler = wants(view)
        for _ in range(5):
            await preempter.look(scheduler, view, (), NOW_S)
            await asyncio.sleep(LOOK_AGAIN_S)
        assert store.preempted == [(LONG.request.id, 1, 10_000)]
        await asyncio.sleep(ASK_AGAIN_S)
        await preempter.look(scheduler, view, (), NOW_S)
        assert len(store.preempted) == 2
        store.prompts = [replace(LONG, request=replace(LONG.request, attempt=2))]
        await asyncio.sleep(LOOK_AGAIN_S)
        await preempter.look(scheduler, view, (), NOW_S)
        assert store.preempted[2:] == [(LONG.request.id, 2, 10_000)]

    on_virtual_time(run)


def test_another_prompt_gives_way_where_a_gateway_does_not_take_its_own_back() -> None:
    """It may hold a request that another proxy has sent, or know nothing of interruptions."""

    async def run() -> None:
        store = Store()
        other = replace(LONG, request=waiting(8, "batch", rank=2, input_tokens=20_000, kv_tokens=20_000), backend="b2")
        store.prompts = [LONG, replace(other, held=20_000)]
        preempter, view = Preempter(store, "p"), two()  # type: ignore[arg-type]
        scheduler = wants(view)
        for _ in range(4):
            await preempter.look(scheduler, view, (), NOW_S)
            await asyncio.sleep(ASK_AGAIN_S)
        assert [name for name, *_ in store.preempted] == [LONG.request.id] * 2 + [other.request.id] * 2

    on_virtual_time(run)


def test_who_was_granted_beside_a_long_prompt_interrupts_it() -> None:
    async def run() -> None:
        store, nobody = Store(), Scheduler(make_ordering("priority"), make_routing("least_work"))
        preempter = Preempter(store, "p")  # type: ignore[arg-type]
        await preempter.look(nobody, busy(prefill_owned=100), [Grant(URGENT, "b1", "owner")], NOW_S)
        assert [name for name, *_ in store.preempted] == [LONG.request.id]

    on_virtual_time(run)


def test_who_was_granted_beside_a_prompt_that_has_just_gone_on_interrupts_it_later() -> None:
    async def run() -> None:
        store, nobody = Store(), Scheduler(make_ordering("priority"), make_routing("least_work"))
        store.prompts = [replace(LONG, request=replace(LONG.request, preempted=1), granted_s=NOW_S - 0.2)]
        preempter, view = Preempter(store, "p"), busy(prefill_owned=100)  # type: ignore[arg-type]
        await preempter.look(nobody, view, [Grant(URGENT, "b1", "owner")], NOW_S)
        assert preempter.watches
        assert not store.preempted
        assert 0.29 < preempter.again_s < 0.31
        await asyncio.sleep(preempter.again_s)
        await preempter.look(nobody, view, (), NOW_S + 0.31)
        assert [name for name, *_ in store.preempted] == [LONG.request.id]
        await preempter.look(nobody, busy(prefill_owned=0), (), NOW_S + 0.4)
        assert not preempter.watches, "it has its first token"

    on_virtual_time(run)


def test_shared_state_is_not_asked_where_nothing_could_be_interrupted_or_nobody_wants_it() -> None:
    async def run() -> None:
        store, nobody = Store(), Scheduler(make_ordering("priority"), make_routing("least_work"))
        preempter = Preempter(store, "p")  # type: ignore[arg-type]
        for view in (busy(resumes=False), busy(prefill_used=2000)):
            await preempter.look(wants(view), view, (), NOW_S)
        await preempter.look(nobody, busy(), (), NOW_S)
        assert store.looked == 0
        view = busy()
        for _ in range(9):
            await preempter.look(wants(view), view, (), NOW_S)
        assert store.looked == 1, "a decision is made for each event: not each looks at what runs"

    on_virtual_time(run)
