"""Routes under ``/api/v1/``; the shell includes them."""

from __future__ import annotations

from django.urls import path

from controlplane.lab.api import RecordingsView, RunAgainView, RunCancelView, RunsView, RunView
from controlplane.scaling.api import ExternalMetricView, ScalingView
from controlplane.tuning.api import (
    RollbackView,
    TrialStartView,
    TrialStopView,
    TrialsView,
    TrialView,
    TrustView,
    TuningView,
    VersionsView,
)
from controlplane.tuning.lengths import LengthsView
from telemetry.api.alerts import AlertsOpenView, AlertsView, RulesView, RuleView
from telemetry.api.estimates import EstimatesHistoryView, EstimatesResetView, EstimatesView
from telemetry.api.keys import KeysLastUsedView
from telemetry.api.live import LiveHistoryView, LiveView
from telemetry.api.neighbours import NeighboursView
from telemetry.api.queue import CancelView, QueueView
from telemetry.api.requests import RequestsView, RequestView
from telemetry.api.usage import UsageView

urlpatterns = [
    path("estimates", EstimatesView.as_view(), name="estimates"),
    path("estimates/history", EstimatesHistoryView.as_view(), name="estimates-history"),
    path("estimates/reset", EstimatesResetView.as_view(), name="estimates-reset"),
    path("keys/last-used", KeysLastUsedView.as_view(), name="keys-last-used"),
    path("live", LiveView.as_view(), name="live"),
    path("live/history", LiveHistoryView.as_view(), name="live-history"),
    path("requests", RequestsView.as_view(), name="requests"),
    path("requests/<str:request_id>", RequestView.as_view(), name="request"),
    path("requests/<str:request_id>/cancel", CancelView.as_view(), name="request-cancel"),
    path("pools/<slug:pool>/queue", QueueView.as_view(), name="pool-queue"),
    path("alerts", AlertsView.as_view(), name="alerts"),
    path("alerts/open", AlertsOpenView.as_view(), name="alerts-open"),
    path("alert-rules", RulesView.as_view(), name="alert-rules"),
    path("alert-rules/<int:pk>", RuleView.as_view(), name="alert-rule"),
    path("pools/<slug:pool>/scaling", ScalingView.as_view(), name="pool-scaling"),
    path("pools/<slug:pool>/external-metric", ExternalMetricView.as_view(), name="pool-external-metric"),
    path("pools/<slug:pool>/lengths", LengthsView.as_view(), name="pool-lengths"),
    path("pools/<slug:pool>/versions", VersionsView.as_view(), name="pool-versions"),
    path("pools/<slug:pool>/rollback", RollbackView.as_view(), name="pool-rollback"),
    path("pools/<slug:pool>/tuning", TuningView.as_view(), name="pool-tuning"),
    path("pools/<slug:pool>/trials", TrialsView.as_view(), name="pool-trials"),
    path("pools/<slug:pool>/trials/<int:trial>", TrialView.as_view(), name="pool-trial"),
    path("pools/<slug:pool>/trials/<int:trial>/start", TrialStartView.as_view(), name="pool-trial-start"),
    path("pools/<slug:pool>/trials/<int:trial>/stop", TrialStopView.as_view(), name="pool-trial-stop"),
    path("pools/<slug:pool>/trust", TrustView.as_view(), name="pool-trust"),
    path("lab/recordings", RecordingsView.as_view(), name="lab-recordings"),
    path("lab/runs", RunsView.as_view(), name="lab-runs"),
    path("lab/runs/<int:run>", RunView.as_view(), name="lab-run"),
    path("lab/runs/<int:run>/cancel", RunCancelView.as_view(), name="lab-run-cancel"),
    path("lab/runs/<int:run>/again", RunAgainView.as_view(), name="lab-run-again"),
    path("tenants/<slug:tenant>/neighbours", NeighboursView.as_view(), name="tenant-neighbours"),
    path("usage", UsageView.as_view(), name="usage"),
]
