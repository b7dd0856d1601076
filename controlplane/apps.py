"""The shell as a Django application."""

from __future__ import annotations

import gc

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    name = "controlplane"
    label = "controlplane"

    def ready(self) -> None:
        """Tasks are sent from web processes and commands as well as from workers: all of them need the same broker."""
        import controlplane.celery
        import controlplane.signin.receivers  # noqa: F401  connects them

        gc.freeze()  # what settings.py left alone stays, and is never looked through
        gc.enable()
