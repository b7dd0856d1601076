"""The lab's routes under ``/api/v1/``."""

from __future__ import annotations

from django.urls import path

from controlplane.lab.api import RecordingsView, RunAgainView, RunCancelView, RunsView, RunView

urlpatterns = [
    path("lab/recordings", RecordingsView.as_view(), name="lab-recordings"),
    path("lab/runs", RunsView.as_view(), name="lab-runs"),
    path("lab/runs/<int:run>", RunView.as_view(), name="lab-run"),
    path("lab/runs/<int:run>/cancel", RunCancelView.as_view(), name="lab-run-cancel"),
    path("lab/runs/<int:run>/again", RunAgainView.as_view(), name="lab-run-again"),
]
