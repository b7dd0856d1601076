"""``python -m controlplane.standby``: a second candidate for leading the pools, beside the worker.

It runs the dispatch service alone: no tasks, no Celery consumer and no processes for them, so that it costs less than a
second worker would. Which of the two leads a pool makes no difference: who leads only sends tasks, and those are kept
in Redis until a worker takes them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

from controlplane import env_loading
from controlplane.env import SettingsError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

log = logging.getLogger("quartermaster.dispatch")


def main() -> int:
    """Returns the exit code, at SIGTERM or Ctrl-C."""
    import django
    from django.conf import settings

    try:
        django.setup()
        env_loading.needs_redis(settings.ENV)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    from controlplane.wiring import make_dispatch  # its models load once Django is set up
    from scheduling.dispatch.runner import DispatchService

    service = DispatchService(make_dispatch())
    stop = threading.Event()

    def leave(_number: int, _frame: FrameType | None) -> None:
        service.begin_stop()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    service.start()
    while not stop.wait(60.0):
        pass
    if not service.stop():
        log.warning("the dispatch service did not stop in time; its leaderships run out by themselves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
