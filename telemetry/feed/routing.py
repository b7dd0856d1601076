"""WebSocket routes of the telemetry floor, for the shell's ASGI application."""

from __future__ import annotations

from django.urls import path

from telemetry.feed.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/live", LiveConsumer.as_asgi())]
