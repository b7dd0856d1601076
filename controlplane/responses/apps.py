"""Kept responses as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "controlplane.responses"
    label = "responses"

    def ready(self) -> None:
        from controlplane.owners import when_gone

        when_gone(self.label, _forget)


def _forget(tenant: str, project: str | None) -> None:
    """With an import of its own: what answers requests is in few of the processes that start."""
    from controlplane.responses import services

    services.forget(tenant, project)
