"""The telemetry app: what happened."""

from __future__ import annotations

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "telemetry"
    label = "telemetry"
    verbose_name = "Telemetry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from telemetry.feed import rights

        rights.watch()
