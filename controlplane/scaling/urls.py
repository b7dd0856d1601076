"""Scaling's routes under ``/api/v1/``."""

from __future__ import annotations

from django.urls import path

from controlplane.scaling.api import ExternalMetricView, ScalingView

urlpatterns = [
    path("pools/<slug:pool>/scaling", ScalingView.as_view(), name="pool-scaling"),
    path("pools/<slug:pool>/external-metric", ExternalMetricView.as_view(), name="pool-external-metric"),
]
