"""Files and batches as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "controlplane.batches"
    label = "batches"
