"""The order of what waits, published while somebody looks at it (``docs/internals/state.md``, ``preview``).

Only then: whoever shows the page leaves a mark that expires. What it costs is bounded twice: at most ``MOST_PLANNED``
requests are planned, and a preview that took long is not made again before twenty times as long has passed, so that it
uses at most a twentieth of one core. Copying happens between two decisions, playing forward in a thread.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

import msgspec

from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.preview import Planned, Preview, copy_of, preview
from scheduling.core.types import PoolView
from scheduling.state.store import PoolStore
from scheduling.state.types import SERVICE_MS

MOST_PLANNED = 200
EVERY_S = 0.9
SHARE = 20  # times as long as a preview took passes before the next


class QueuePreview:
    """The preview of one pool, for one leader."""

    def __init__(self, store: PoolStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._from_s = 0.0  # of the loop's clock

    async def show(
        self, scheduler: Scheduler, view: PoolView, now_s: float, service_ms: float | None, policy: str, parked: int
    ) -> None:
        """Publishes the order, if somebody looks and it is time. ``parked`` requests wait for a gateway to listen."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._from_s or not await self._store.preview_asked():
            return
        occupation_s = (service_ms or SERVICE_MS) / 1000
        waiting = len(scheduler)
        begun = time.perf_counter()
        copied = copy_of(scheduler, now_s)
        plan = await loop.run_in_executor(None, preview, copied, view, now_s, MOST_PLANNED, occupation_s)
        took_s = time.perf_counter() - begun
        self._from_s = loop.time() + max(EVERY_S, SHARE * took_s)
        head = {
            "at": round(now_s, 3),
            "epoch": self._epoch,
            "policy": policy,
            "waiting": waiting,
            "parked": parked,
            "occupation_s": round(occupation_s, 3),
            "took_ms": round(took_s * 1000, 1),
        }
        await self._store.show_preview(msgspec.json.encode(head | _body(plan)))


def _body(plan: Preview) -> dict[str, Any]:
    return {
        "exact": plan.exact,
        "parts": [_without_none(asdict(part)) for part in plan.parts],
        "requests": [_request(planned) for planned in plan.planned],
    }


def _request(planned: Planned) -> dict[str, Any]:
    r = planned.request
    row = {
        "id": r.id,
        "tenant": r.tenant,
        "entitlement": r.entitlement,
        "tier": r.tier,
        "class": r.service_class.value,
        "arrival_s": round(r.arrival_s, 3),
        "expires_s": None if r.expires_s is None else round(r.expires_s, 3),
        "deadline_s": r.ttft_deadline_s if r.ttft_deadline_s is not None else r.ttlt_deadline_s,
        "input_tokens": r.input_tokens,
        "output_tokens": round(r.output_tokens, 1),
        "kv_tokens": r.kv_tokens,
        "priority": r.client_priority or None,
        "attempt": r.attempt,
        "start_s": None if planned.start_s is None else round(planned.start_s, 3),
        "backend": planned.backend or None,
        "why": planned.why,
    }
    return _without_none(row)


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
