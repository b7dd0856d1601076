"""Files and batches as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "controlplane.batches"
    label = "batches"

    def ready(self) -> None:
        from controlplane.batches import services
        from controlplane.owners import when_gone

        when_gone(self.label, services.forget)
