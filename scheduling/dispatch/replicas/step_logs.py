"""Reads what an engine's own scheduler logs of its steps, and fits step times to it."""

from __future__ import annotations

import asyncio
import logging

from scheduling.core.engine.calibration import fit_steps
from scheduling.dispatch.replicas.watched import WHY_CHARS, WatchedBackend
from scheduling.engines.client import EngineError

log = logging.getLogger("quartermaster.dispatch")

STEPS_S = 5.0  # so often the log is read


async def follow_steps(backend: WatchedBackend) -> None:
    """Collects it while the replica is ready; the fit is made in a thread."""
    while True:
        if backend.state == "ready":
            await read_steps(backend)
        await asyncio.sleep(STEPS_S)


async def read_steps(backend: WatchedBackend) -> None:
    after, began = backend.steps_read
    try:
        page = await backend.control.steps(after, began)
    except EngineError as error:
        if not backend.steps_why:
            log.info("backend %s: its log of steps is not read: %s", backend.spec.id, error)
        backend.steps_why = str(error)[:WHY_CHARS]
        return
    if page.began != began:
        backend.steps.restarted()
    backend.steps_read, backend.steps_why = (page.last, page.began), ""
    before = backend.steps.drifts
    backend.steps.saw(page.steps)
    if backend.steps.drifts != before:
        log.warning(
            "backend %s: its steps take another time than was fitted (error %.0f %%); fitted anew",
            backend.spec.id, 100 * (backend.steps.recent_error or 0.0),
        )  # fmt: skip
    if steps := backend.steps.due():
        fit = None
        try:
            fit = await asyncio.to_thread(fit_steps, steps)
        finally:
            backend.steps.took(fit)
