"""Routes under ``/api/v1/``; the shell includes them."""

from __future__ import annotations

from django.urls import path

from telemetry.api.estimates import EstimatesResetView, EstimatesView
from telemetry.api.keys import KeysLastUsedView
from telemetry.api.live import LiveHistoryView, LiveView
from telemetry.api.requests import RequestsView, RequestView
from telemetry.api.scaling import AlertsView, ExternalMetricView, ScalingView
from telemetry.api.usage import UsageView

urlpatterns = [
    path("estimates", EstimatesView.as_view(), name="estimates"),
    path("estimates/reset", EstimatesResetView.as_view(), name="estimates-reset"),
    path("keys/last-used", KeysLastUsedView.as_view(), name="keys-last-used"),
    path("live", LiveView.as_view(), name="live"),
    path("live/history", LiveHistoryView.as_view(), name="live-history"),
    path("requests", RequestsView.as_view(), name="requests"),
    path("requests/<str:request_id>", RequestView.as_view(), name="request"),
    path("alerts", AlertsView.as_view(), name="alerts"),
    path("pools/<slug:pool>/scaling", ScalingView.as_view(), name="pool-scaling"),
    path("pools/<slug:pool>/external-metric", ExternalMetricView.as_view(), name="pool-external-metric"),
    path("usage", UsageView.as_view(), name="usage"),
]
