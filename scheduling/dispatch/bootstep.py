"""The dispatch service as a step of the Celery worker: it lives and dies with the worker.

The shell says once, where it makes its Celery app::

    from scheduling.dispatch.bootstep import host_dispatch

    host_dispatch(app, make_setup)  # make_setup() -> DispatchSetup, called when a worker starts

Celery only hosts: no request's fate hangs on one of its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals

from scheduling.dispatch.runner import DispatchService, DispatchSetup

log = logging.getLogger("quartermaster.dispatch")

_ATTRIBUTE = "quartermaster_dispatch_setup"


def host_dispatch(app: Celery, make_setup: Callable[[], DispatchSetup]) -> None:
    """Every worker of ``app`` runs a dispatch service with what ``make_setup`` gives it."""
    setattr(app, _ATTRIBUTE, make_setup)
    app.steps["worker"].add(DispatchStep)


class DispatchStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Starts after the worker's pool, so that no child process is forked from the service's threads at start."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._service: DispatchService | None = None

    def start(self, parent: Any) -> None:
        self._service = DispatchService(getattr(parent.app, _ATTRIBUTE)())
        self._service.start()
        # At SIGTERM a worker first waits for its tasks, for up to half a minute: another must lead meanwhile.
        signals.worker_shutting_down.connect(self._leave, weak=False)

    def _leave(self, **_: Any) -> None:
        if self._service is not None:
            self._service.begin_stop()

    def stop(self, parent: Any) -> None:
        service, self._service = self._service, None
        if service is not None and not service.stop():
            log.warning("the dispatch service did not stop in time; its leaderships run out by themselves")

    terminate = stop
