"""``/api/v1/usage``: requests, tokens, SLO figures and cost by group, as JSON, streamed CSV or Parquet."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api import parquet_files
from telemetry.api.answers import UsageSerializer
from telemetry.api.common import Telemetry, viewer_of
from telemetry.api.csv_files import CSVRenderer, send_rows
from telemetry.api.sent_files import SentFile
from telemetry.ledger import usage
from tenants.api.inputs import Moment

MAX_ROWS = 20_000
FILTERS = ("tenant", "pool", "model", "entitlement", "key", "user", "tier")


class UsageQuery(serializers.Serializer[Any]):
    """What to add up, and over which time."""

    group_by = serializers.CharField(default="tenant")
    tenant = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    entitlement = serializers.CharField(required=False)
    key = serializers.CharField(required=False)
    user = serializers.CharField(required=False)
    tier = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {
            "from": Moment(required=False),
            "to": Moment(required=False),
        }

    def validate_group_by(self, value: str) -> list[str]:
        groups = [name.strip() for name in value.split(",") if name.strip()]
        unknown = [name for name in groups if name not in usage.GROUPS]
        if unknown or len(set(groups)) != len(groups) or not groups:
            raise serializers.ValidationError(f"Use one or more of {', '.join(usage.GROUPS)}, each once.")
        return groups

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("to", timezone.now())
        attrs.setdefault("from", attrs["to"] - timedelta(days=1))
        if attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"from": "Must be before 'to'."})
        return attrs


class UsageView(Telemetry, APIView):
    """Usage of the visible tenants."""

    renderer_classes = [JSONRenderer, CSVRenderer, parquet_files.ParquetRenderer]

    @extend_schema(
        summary="Requests, tokens, SLO figures and cost by group",
        parameters=[
            OpenApiParameter("group_by", str, description=f"Comma-separated: {', '.join(usage.GROUPS)}."),
            OpenApiParameter(
                "from", OpenApiTypes.DATETIME, description="Received at or after; default a day before 'to'."
            ),
            OpenApiParameter("to", OpenApiTypes.DATETIME, description="Received before; default now."),
            *(OpenApiParameter(name, str, description=f"Only this {name}'s.") for name in FILTERS),
            OpenApiParameter(
                "format",
                str,
                enum=["json", "csv", "parquet"],
                description=f"How to answer. JSON has at most {MAX_ROWS} rows; CSV and Parquet are files and have "
                "no such limit. Parquet needs a part that an operator installs.",
            ),
        ],
        responses=UsageSerializer,
    )
    def get(self, request: Request, format: str | None = None) -> Response | SentFile:
        query = UsageQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        since, until, groups = given["from"], given["to"], given["group_by"]
        only = {name: given[name] for name in FILTERS if name in given}
        viewer = viewer_of(request)
        rows = usage.usage(viewer.tenants, since, until, groups, viewer.former, **only)
        columns = [*groups, *usage.FIGURES]
        kind, name = getattr(request.accepted_renderer, "format", ""), f"usage-{since:%Y%m%d}-{until:%Y%m%d}"
        if kind == "csv":
            return send_rows(request.user.pk, columns, rows, f"{name}.csv")
        if kind == "parquet":
            return parquet_files.send_rows(request.user.pk, columns, usage.COLUMN_KINDS, rows, f"{name}.parquet")
        lines = list(islice(rows, MAX_ROWS + 1))
        if len(lines) > MAX_ROWS:
            raise serializers.ValidationError(
                {"detail": f"More than {MAX_ROWS} rows. Shorten the range, group by less, or take format=csv."}
            )
        lines.sort(key=lambda row: tuple(row[name] for name in groups))
        return Response({"from": since.isoformat(), "to": until.isoformat(), "columns": columns, "rows": lines})
