"""Kept responses as a Django application."""

from __future__ import annotations

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    name = "controlplane.responses"
    label = "responses"
