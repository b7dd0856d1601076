"""Kept responses as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "controlplane.responses"
    label = "responses"

    def ready(self) -> None:
        from controlplane.owners import when_gone
        from controlplane.responses import services

        when_gone(self.label, services.forget)
