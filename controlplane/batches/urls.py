"""Batches under ``/api/v1/``."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_view

from controlplane.batches.api import BatchCancelView, BatchesView, BatchFileView, BatchView


@extend_schema_view(get=extend_schema(operation_id="batches_errors", summary="Download a batch's errors"))
class _Errors(BatchFileView):
    file = "errors"


@extend_schema_view(get=extend_schema(operation_id="batches_output", summary="Download a batch's answers"))
class _Output(BatchFileView):
    file = "output"


urlpatterns = [
    path("batches", BatchesView.as_view(), name="batches"),
    path("batches/<slug:batch>", BatchView.as_view(), name="batch"),
    path("batches/<slug:batch>/cancel", BatchCancelView.as_view(), name="batch-cancel"),
    path("batches/<slug:batch>/output", _Output.as_view(), name="batch-output"),
    path("batches/<slug:batch>/errors", _Errors.as_view(), name="batch-errors"),
]
