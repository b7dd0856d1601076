"""``/api/v1/pools/<pool>/moment``: the requests that ran and waited at a time."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api.common import Telemetry
from telemetry.ledger.moment import at_moment
from tenants.access import scope_of
from tenants.api.inputs import Moment
from tenants.models import Pool


class MomentQuery(serializers.Serializer[Any]):
    at = Moment(help_text="The moment.")


class MomentTenantSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    waiting = serializers.IntegerField()
    running = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="Granted, without a first token.")


class MomentRowSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    tenant = serializers.CharField()
    tier = serializers.CharField()
    backend = serializers.CharField()
    state = serializers.ChoiceField(choices=["waiting", "prefill", "decode"])
    for_s = serializers.FloatField(help_text="In that state by then.")
    prompt_tokens = serializers.IntegerField()


class MomentSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    at = serializers.DateTimeField()
    waiting = serializers.IntegerField()
    running = serializers.IntegerField()
    tenants = MomentTenantSerializer(many=True)
    rows = MomentRowSerializer(many=True, help_text="The longest waiting first, then what ran.")
    whole = serializers.BooleanField(help_text="False: there were more than are listed.")


class MomentView(Telemetry, APIView):
    """For operators and admins: members never see who else is there. Of requests that have ended by now."""

    @extend_schema(
        summary="Who ran and who waited at a moment", operation_id="pools_moment", parameters=[MomentQuery],
        responses=MomentSerializer,
    )  # fmt: skip
    def get(self, request: Request, pool: str) -> Response:
        query = MomentQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        if not scope_of(request).sees_all or not Pool.objects.filter(slug=pool).exists():
            raise Http404
        return Response(MomentSerializer(at_moment(pool, query.validated_data["at"])).data)
