"""Routes under ``/api/v1/``; the shell includes them."""

from __future__ import annotations

from django.urls import path

from telemetry.api.alerts import (
    AcknowledgeView,
    AlertsOpenView,
    AlertsView,
    AssigneesView,
    AssignView,
    RulesView,
    RuleView,
    SilenceView,
)
from telemetry.api.channels import ChannelsView, ChannelTestView, ChannelView
from telemetry.api.estimates import EstimatesHistoryView, EstimatesResetView, EstimatesView
from telemetry.api.events import EventsView
from telemetry.api.find import ColorsView, FindView
from telemetry.api.incidents import IncidentView, RehearsalView
from telemetry.api.keys import KeysLastUsedView
from telemetry.api.live import LiveHistoryView, LiveView
from telemetry.api.moment import MomentView
from telemetry.api.neighbours import NeighboursView
from telemetry.api.queue import CancelView, QueueView
from telemetry.api.requests import ExploreView, ExportView, RequestsView, RequestView, TailView
from telemetry.api.statements import SpendingView, StatementView
from telemetry.api.usage import UsageView
from telemetry.api.views import SavedViewsView, SavedViewView

urlpatterns = [
    path("estimates", EstimatesView.as_view(), name="estimates"),
    path("estimates/history", EstimatesHistoryView.as_view(), name="estimates-history"),
    path("estimates/reset", EstimatesResetView.as_view(), name="estimates-reset"),
    path("keys/last-used", KeysLastUsedView.as_view(), name="keys-last-used"),
    path("find", FindView.as_view(), name="find"),
    path("tenant-colors", ColorsView.as_view(), name="tenant-colors"),
    path("live", LiveView.as_view(), name="live"),
    path("live/history", LiveHistoryView.as_view(), name="live-history"),
    path("requests", RequestsView.as_view(), name="requests"),
    path("requests/explore", ExploreView.as_view(), name="requests-explore"),
    path("requests/export", ExportView.as_view(), name="requests-export"),
    path("requests/tail", TailView.as_view(), name="requests-tail"),
    path("saved-views", SavedViewsView.as_view(), name="saved-views"),
    path("saved-views/<int:pk>", SavedViewView.as_view(), name="saved-view"),
    path("requests/<str:request_id>", RequestView.as_view(), name="request"),
    path("requests/<str:request_id>/cancel", CancelView.as_view(), name="request-cancel"),
    path("pools/<slug:pool>/queue", QueueView.as_view(), name="pool-queue"),
    path("pools/<slug:pool>/moment", MomentView.as_view(), name="pool-moment"),
    path("alerts", AlertsView.as_view(), name="alerts"),
    path("alerts/open", AlertsOpenView.as_view(), name="alerts-open"),
    path("alerts/<int:pk>/acknowledge", AcknowledgeView.as_view(), name="alert-acknowledge"),
    path("alerts/<int:pk>/silence", SilenceView.as_view(), name="alert-silence"),
    path("alerts/<int:pk>/assign", AssignView.as_view(), name="alert-assign"),
    path("alerts/<int:pk>/incident", IncidentView.as_view(), name="alert-incident"),
    path("alert-rules/rehearsal", RehearsalView.as_view(), name="alert-rules-rehearsal"),
    path("alerts/assignees", AssigneesView.as_view(), name="alerts-assignees"),
    path("notification-channels", ChannelsView.as_view(), name="notification-channels"),
    path("notification-channels/<int:pk>", ChannelView.as_view(), name="notification-channel"),
    path("notification-channels/<int:pk>/test", ChannelTestView.as_view(), name="notification-channel-test"),
    path("events", EventsView.as_view(), name="events"),
    path("alert-rules", RulesView.as_view(), name="alert-rules"),
    path("alert-rules/<int:pk>", RuleView.as_view(), name="alert-rule"),
    path("tenants/<slug:tenant>/neighbours", NeighboursView.as_view(), name="tenant-neighbours"),
    path("spending", SpendingView.as_view(), name="spending"),
    path("statements", StatementView.as_view(), name="statements"),
    path("usage", UsageView.as_view(), name="usage"),
]
