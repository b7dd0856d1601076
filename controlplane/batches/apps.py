"""Files and batches as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "controlplane.batches"
    label = "batches"

    def ready(self) -> None:
        from controlplane.owners import when_gone

        when_gone(self.label, _forget)


def _forget(tenant: str, project: str | None) -> None:
    """With an import of its own: what answers requests is in few of the processes that start."""
    from controlplane.batches import services

    services.forget(tenant, project)
