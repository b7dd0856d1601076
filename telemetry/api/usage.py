"""``/api/v1/usage``: requests, tokens and SLO figures by whatever they are asked by, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from itertools import islice
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry import selectors
from telemetry.api.common import Telemetry, viewer_of

MOST_ROWS = 20_000


class CSVRenderer(BaseRenderer):
    """The rows of a usage answer as a file for a spreadsheet."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        if "rows" not in data:  # an error
            return f"{data.get('detail', data)}\n".encode()
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=data["columns"])
        writer.writeheader()
        writer.writerows(data["rows"])
        return out.getvalue().encode()


class UsageQuery(serializers.Serializer[Any]):
    """What to add up, and over which time."""

    group_by = serializers.CharField(default="tenant")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {
            "from": serializers.DateTimeField(required=False),
            "to": serializers.DateTimeField(required=False),
        }

    def validate_group_by(self, value: str) -> list[str]:
        groups = [name.strip() for name in value.split(",") if name.strip()]
        unknown = [name for name in groups if name not in selectors.GROUPS]
        if unknown or len(set(groups)) != len(groups) or not groups:
            raise serializers.ValidationError(f"Use one or more of {', '.join(selectors.GROUPS)}, each once.")
        return groups

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("to", timezone.now())
        attrs.setdefault("from", attrs["to"] - timedelta(days=1))
        if attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"from": "Must be before 'to'."})
        return attrs


class UsageView(Telemetry, APIView):
    """Usage of the tenants in sight."""

    renderer_classes = [JSONRenderer, CSVRenderer]

    @extend_schema(
        summary="Requests, tokens and SLO figures by group",
        parameters=[
            OpenApiParameter("group_by", str, description=f"Comma-separated: {', '.join(selectors.GROUPS)}."),
            OpenApiParameter(
                "from", OpenApiTypes.DATETIME, description="Received at or after; default a day before 'to'."
            ),
            OpenApiParameter("to", OpenApiTypes.DATETIME, description="Received before; default now."),
            OpenApiParameter("format", str, enum=["json", "csv"], description="How to answer."),
        ],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request, format: str | None = None) -> Response:
        query = UsageQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        since, until = query.validated_data["from"], query.validated_data["to"]
        groups = query.validated_data["group_by"]
        rows = viewer_of(request).requests().filter(received_at__gte=since, received_at__lt=until)
        found = list(islice(selectors.usage_rows(rows, groups), MOST_ROWS + 1))
        if len(found) > MOST_ROWS:
            raise serializers.ValidationError(
                {"detail": f"More than {MOST_ROWS} rows. Shorten the time range or group by less."}
            )
        answer = {
            "from": since.isoformat(),
            "to": until.isoformat(),
            "columns": [*groups, *selectors.FIGURES],
            "rows": found,
        }
        headers = {}
        if getattr(request.accepted_renderer, "format", "") == "csv":
            headers["Content-Disposition"] = f'attachment; filename="usage-{since:%Y%m%d}-{until:%Y%m%d}.csv"'
        return Response(answer, headers=headers)
