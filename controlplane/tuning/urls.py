"""Tuning's routes under ``/api/v1/``."""

from __future__ import annotations

from django.urls import path

from controlplane.tuning.api import (
    RollbackView,
    StudyStopView,
    TrialKeepView,
    TrialStartView,
    TrialStopView,
    TrialsView,
    TrialView,
    TrustView,
    TuningView,
    VersionsView,
)
from controlplane.tuning.lengths import LengthsView

urlpatterns = [
    path("pools/<slug:pool>/lengths", LengthsView.as_view(), name="pool-lengths"),
    path("pools/<slug:pool>/versions", VersionsView.as_view(), name="pool-versions"),
    path("pools/<slug:pool>/rollback", RollbackView.as_view(), name="pool-rollback"),
    path("pools/<slug:pool>/tuning", TuningView.as_view(), name="pool-tuning"),
    path("pools/<slug:pool>/study/stop", StudyStopView.as_view(), name="pool-study-stop"),
    path("pools/<slug:pool>/trials", TrialsView.as_view(), name="pool-trials"),
    path("pools/<slug:pool>/trials/<int:trial>", TrialView.as_view(), name="pool-trial"),
    path("pools/<slug:pool>/trials/<int:trial>/start", TrialStartView.as_view(), name="pool-trial-start"),
    path("pools/<slug:pool>/trials/<int:trial>/keep", TrialKeepView.as_view(), name="pool-trial-keep"),
    path("pools/<slug:pool>/trials/<int:trial>/stop", TrialStopView.as_view(), name="pool-trial-stop"),
    path("pools/<slug:pool>/trust", TrustView.as_view(), name="pool-trust"),
]
