"""The planner's view of a pool, its decisions, and the figure that KEDA reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api.common import Telemetry, Unavailable, viewer_of
from telemetry.models import ScalingDecision, ScalingState
from tenants import promises
from tenants.models import Pool, ScalingMode

SHOWN = 50  # decisions in one answer
FRESH_FOR = timedelta(minutes=3)  # an older figure is no basis for ending replicas

_SEEN = (
    "at", "reason", "dimension", "used", "waiting", "refused", "entitled", "per_replica", "slo_met", "slo_total",
)  # fmt: skip


class StateSerializer(serializers.ModelSerializer[ScalingState]):
    class Meta:
        model = ScalingState
        fields = ["mode", "current", "leaving", "wanted", *_SEEN]


class DecisionSerializer(serializers.ModelSerializer[ScalingDecision]):
    class Meta:
        model = ScalingDecision
        fields = ["id", "from_replicas", "to_replicas", "applied", "outcome", "detail", "finished_at", *_SEEN]


class ScalingSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    mode = serializers.ChoiceField(choices=ScalingMode.choices)
    driver = serializers.CharField()
    min_replicas = serializers.IntegerField()
    max_replicas = serializers.IntegerField()
    promised = serializers.DictField(child=serializers.FloatField(), help_text="By dimension.")
    provisionable = serializers.DictField(child=serializers.FloatField(), allow_null=True, help_text="By dimension.")
    state = StateSerializer(allow_null=True, help_text="Null while scaling is off, or the planner has not run.")
    decisions = DecisionSerializer(many=True)


class _StaffOnly(Telemetry, APIView):
    """Where engines stand and how many is the operators' business: for members it does not exist."""

    def pool(self, request: Request, name: str) -> Pool:
        if viewer_of(request).tenants is not None:
            raise Http404
        pool = Pool.objects.prefetch_related("backends", "entitlements__tier").filter(slug=name).first()
        if pool is None:
            raise Http404
        return pool


class ScalingView(_StaffOnly):
    """A pool's scaling: what is promised and provisionable, what the planner saw last, and its latest decisions."""

    @extend_schema(summary="Read a pool's scaling", operation_id="pools_scaling", responses=ScalingSerializer)
    def get(self, request: Request, pool: str) -> Response:
        row = self.pool(request, pool)
        state = ScalingState.objects.filter(pool=pool).first() if row.scaling_mode != ScalingMode.OFF else None
        most = promises.provisionable(row)
        return Response(
            {
                "pool": pool,
                "mode": row.scaling_mode,
                "driver": row.scaling_driver,
                "min_replicas": row.min_replicas,
                "max_replicas": row.max_replicas,
                "promised": promises.promised(row).as_dict(),
                "provisionable": most.as_dict() if most is not None else None,
                "state": StateSerializer(state).data if state is not None else None,
                "decisions": DecisionSerializer(ScalingDecision.objects.filter(pool=pool)[:SHOWN], many=True).data,
            }
        )


class ExternalMetricView(_StaffOnly):
    """The replicas a pool wants, as KEDA's metrics-api scaler reads them (``valueLocation: replicas``)."""

    @extend_schema(
        summary="Read the wanted replicas of a pool",
        operation_id="pools_external_metric",
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request, pool: str) -> Response:
        """503 while the planner is off or has been silent: an autoscaler then keeps what there is."""
        row = self.pool(request, pool)
        state = ScalingState.objects.filter(pool=pool, at__gt=timezone.now() - FRESH_FOR).first()
        if state is None or row.scaling_mode == ScalingMode.OFF:
            raise Unavailable(
                "The planner has not reported on this pool in the last minutes. Check that its scaling mode is not off."
            )
        return Response({"pool": pool, "replicas": state.wanted, "current": state.current, "at": state.at})
