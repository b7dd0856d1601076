"""``/api/v1/estimates``: the errors of predicted output lengths, and what was learned from them."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduling.core.estimate.category import Category
from telemetry.api.answers import EstimatesHistorySerializer, EstimatesSerializer
from telemetry.api.common import RedisUnavailable, Telemetry, Unavailable, viewer_of
from telemetry.estimates import drift, learned
from telemetry.estimates.drift import DriftStore, DriftUnavailable
from telemetry.models import LearnedFactor, LedgerEntry
from tenants import audit
from tenants.access import scope_of
from tenants.api.inputs import Moment
from tenants.api.serializers import Strict
from tenants.models import Pool


@cache
def _store_at(url: str) -> DriftStore:
    return DriftStore(url)


def drift_store() -> DriftStore:
    """Where the gateways say what they have learned. Raises :class:`Unavailable` where no Redis is configured."""
    if not settings.QUARTERMASTER_REDIS_URL:
        raise Unavailable
    return _store_at(settings.QUARTERMASTER_REDIS_URL)


class EstimatesQuery(serializers.Serializer[Any]):
    pool = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {
            "from": Moment(required=False),
            "to": Moment(required=False),
        }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("to", timezone.now())
        attrs.setdefault("from", attrs["to"] - timedelta(hours=1))
        if attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"from": "Must be before 'to'."})
        return attrs


ASKED = [
    OpenApiParameter("pool", str, description="Name of the pool; all visible pools where absent."),
    OpenApiParameter("from", OpenApiTypes.DATETIME, description="Received at or after; default an hour before 'to'."),
    OpenApiParameter("to", OpenApiTypes.DATETIME, description="Received before; default now."),
]


def _query(request: Request) -> tuple[datetime, datetime, QuerySet[LedgerEntry], QuerySet[Pool]]:
    """From when until when, which of the user's requests can be judged, and which pools are asked about."""
    query = EstimatesQuery(data=request.query_params)
    query.is_valid(raise_exception=True)
    params = query.validated_data
    rows = viewer_of(request).requests().filter(received_at__gte=params["from"], received_at__lt=params["to"])
    pools = scope_of(request).visible(Pool)
    if "pool" in params:
        rows, pools = rows.filter(pool=params["pool"]), pools.filter(slug=params["pool"])
    return params["from"], params["to"], drift.judged(rows), pools


class EstimatesView(Telemetry, APIView):
    """Errors by category, tenant, model and predictor; the calibration curve; what is corrected by how much now."""

    @extend_schema(
        summary="Predicted against actual output lengths (docs/internals/estimates.md)",
        parameters=ASKED,
        responses=EstimatesSerializer,
    )
    def get(self, request: Request) -> Response:
        viewer = viewer_of(request)
        since, until, rows, pools = _query(request)
        overall = drift.errors(rows)
        try:
            learned_pools: dict[str, Any] | None = {
                name: seen
                for name, stored in drift_store().load(pools.values_list("slug", flat=True)).items()
                if (seen := drift.visible(stored, viewer.tenants)) is not None
            }
        except (DriftUnavailable, Unavailable):
            learned_pools = None  # the past is in the database all the same
        return Response(
            {
                "from": since.isoformat(),
                "to": until.isoformat(),
                "overall": overall[0] if overall else None,
                "by": {group: drift.errors(rows, group) for group in drift.GROUPS},
                "calibration": drift.calibration(rows),
                "pools": learned_pools,
            }
        )


class EstimatesHistoryView(Telemetry, APIView):
    """Errors and corrections over time."""

    @extend_schema(
        summary="Predicted against actual output lengths, over time (docs/internals/estimates.md)",
        operation_id="estimates_history",
        parameters=ASKED,
        responses=EstimatesHistorySerializer,
    )
    def get(self, request: Request) -> Response:
        viewer = viewer_of(request)
        since, until, rows, pools = _query(request)
        kept = LearnedFactor.objects.filter(pool__in=pools.values("slug"), at__gte=since, at__lt=until)
        if viewer.tenants is not None:
            kept = kept.filter(learned.OF_TENANTS, name__in=viewer.tenants)
        lines = learned.errors(rows, since, until)
        return Response({"from": since.isoformat(), "to": until.isoformat(), **lines, "factors": learned.factors(kept)})


class ResetQuery(Strict):
    pool = serializers.SlugRelatedField(slug_field="slug", queryset=Pool.objects.all())
    category = serializers.ChoiceField(
        [c.value for c in Category], required=False, allow_blank=True, default="", help_text="All where absent."
    )


class EstimatesResetView(Telemetry, APIView):
    """Forgets what drift was learned; histories and similar prompts stay. Operators and admins."""

    @extend_schema(summary="Reset the drift of a pool", request=ResetQuery, responses={204: None})
    def post(self, request: Request) -> Response:
        if not scope_of(request).may_operate:
            raise PermissionDenied("Only operators and admins can reset what was learned.")
        query = ResetQuery(data=request.data)
        query.is_valid(raise_exception=True)
        pool, category = query.validated_data["pool"], query.validated_data["category"]
        with transaction.atomic():
            audit.record(
                actor=audit.Actor.of(request, "api"),
                action="reset estimates",
                instance=pool,
                after={"category": category or "all"},
            )
            try:
                drift_store().reset(pool.slug, category)
            except DriftUnavailable:
                raise RedisUnavailable from None
        return Response(status=status.HTTP_204_NO_CONTENT)
