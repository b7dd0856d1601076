"""The shell as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    name = "controlplane"
    label = "controlplane"

    def ready(self) -> None:
        """Tasks are sent from web processes and commands as well as from workers: all of them need the same broker."""
        import controlplane.celery
        import controlplane.signin.receivers  # noqa: F401  connects them
