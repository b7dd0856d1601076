"""``/api/v1/statements`` and ``/api/v1/spending``: a month's bill as JSON, CSV, FOCUS or Parquet, and budgets."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from itertools import islice
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduling.core.ledger.money import amount, forecast
from scheduling.state.usage import period_bounds_s
from telemetry.api import parquet_files
from telemetry.api.answers import SpendingSerializer, StatementSerializer
from telemetry.api.common import Telemetry, viewer_of
from telemetry.api.csv_files import CSVRenderer, send_rows
from telemetry.ledger import rollup, statement
from telemetry.ledger.quotas import of_accounts
from telemetry.ledger.usage import Cell
from tenants.models import Budget
from tenants.prices import budget_spec

MAX_LINES = 20_000


class FocusRenderer(CSVRenderer):
    """Chosen by ``format=focus``; the media type of its own keeps content negotiation from choosing it."""

    media_type = "application/x-focus+csv"
    format = "focus"


class StatementQuery(serializers.Serializer[Any]):
    """Whose month."""

    month = serializers.CharField(required=False, max_length=7)
    tenant = serializers.CharField(required=False)
    by_user = serializers.BooleanField(default=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("month", f"{timezone.now():%Y-%m}")
        try:
            attrs["begin"], attrs["end"] = statement.month_of(attrs["month"])
        except (ValueError, OverflowError):
            raise serializers.ValidationError({"month": "Give a year and a month, such as 2026-11."}) from None
        if attrs["by_user"] and not statement.users_known(attrs["begin"]):
            raise serializers.ValidationError(
                {"by_user": "The ledger, which alone knows users, no longer has all of this month. Leave by_user out."}
            )
        return attrs


class StatementView(Telemetry, APIView):
    """A month's bill of the visible tenants."""

    renderer_classes = [
        JSONRenderer, CSVRenderer, FocusRenderer, parquet_files.ParquetRenderer, parquet_files.FocusParquetRenderer,
    ]  # fmt: skip

    @extend_schema(
        summary="A month's costs line by line, with idle reservations",
        parameters=[
            OpenApiParameter("month", str, description="Of UTC, such as 2026-11; default the present one."),
            OpenApiParameter("tenant", str, description="Only this tenant's."),
            OpenApiParameter("by_user", bool, description="A line for each user, as long as the ledger knows them."),
            OpenApiParameter(
                "format",
                str,
                enum=["json", "csv", "focus", "parquet", "focus-parquet"],
                description=f"JSON has at most {MAX_LINES} lines; CSV and Parquet are streamed; focus is CSV with the "
                "columns of FOCUS 1.2. Parquet needs a part that an operator installs.",
            ),
        ],
        responses=StatementSerializer,
    )
    def get(self, request: Request, format: str | None = None) -> Response | StreamingHttpResponse:
        query = StatementQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        begin, end = given["begin"], given["end"]
        only = {"tenant": given["tenant"]} if "tenant" in given else {}
        viewer = viewer_of(request)
        lines = statement.lines(viewer.tenants, begin, end, viewer.former, by_user=given["by_user"], **only)
        kind, user = getattr(request.accepted_renderer, "format", ""), request.user.pk
        if kind in ("csv", "parquet"):
            rows, name = (line.row() for line in lines), f"statement-{given['month']}.{kind}"
            if kind == "csv":
                return send_rows(user, statement.COLUMNS, rows, name)
            return parquet_files.send_rows(user, statement.COLUMNS, statement.COLUMN_KINDS, rows, name)
        if kind in ("focus", "focus-parquet"):
            rows = (row for line in lines for row in statement.focus(line, begin, end))
            if kind == "focus":
                return send_rows(user, statement.FOCUS, rows, f"focus-{given['month']}.csv")
            return parquet_files.send_rows(
                user, statement.FOCUS, statement.FOCUS_KINDS, rows, f"focus-{given['month']}.parquet"
            )
        first_lines = list(islice(lines, MAX_LINES + 1))
        if len(first_lines) > MAX_LINES:
            raise serializers.ValidationError({"detail": f"More than {MAX_LINES} lines. Take format=csv."})
        seam = rollup.rolled_until()
        sums = sorted(statement.totals(first_lines).items())
        return Response(
            {
                "month": given["month"],
                "from": begin.isoformat(),
                "to": end.isoformat(),
                "final": seam is not None and end <= seam,
                "lines": [line.row() for line in first_lines],
                "totals": [{"amount": f"{amount(picos):f}", "currency": currency} for currency, picos in sums],
            }
        )


class SpendingView(Telemetry, APIView):
    """What was spent of each visible budget."""

    @extend_schema(
        summary="This month's spending of each budget, and where it will end",
        parameters=[OpenApiParameter("tenant", str, description="Only this tenant's.")],
        responses=SpendingSerializer,
    )
    def get(self, request: Request) -> Response:
        now = timezone.now()
        rows = Budget.objects.select_related("tenant")
        tenants = viewer_of(request).tenants
        if tenants is not None:
            rows = rows.filter(tenant__slug__in=tenants)
        if "tenant" in request.query_params:
            rows = rows.filter(tenant__slug=request.query_params["tenant"])
        specs = {row.pk: budget_spec(row) for row in rows}
        used: dict[str, Cell] = {}
        for name, cell in of_accounts(None, {spec.account: spec for spec in specs.values()}, now.timestamp()):
            used.setdefault(name, Cell()).add(cell)
        begin_s, end_s = period_bounds_s(now.timestamp(), "month")
        begin = datetime.fromtimestamp(begin_s, now.tzinfo)
        budgets = []
        for row in rows:
            cell = used.get(specs[row.pk].account, Cell())
            picos = cell.costs.get(row.currency, Fraction(0))
            expected = forecast(picos, begin_s, now.timestamp(), end_s)
            budgets.append(
                {
                    "id": row.pk,
                    "tenant": row.tenant.slug,
                    "scope": row.scope,
                    "name": row.name,
                    "currency": row.currency,
                    "spent": f"{amount(picos):f}",
                    "forecast": None if expected is None else f"{amount(round(expected)):f}",
                    "soft_amount": None if row.soft_amount is None else str(row.soft_amount),
                    "hard_amount": None if row.hard_amount is None else str(row.hard_amount),
                    "tokens_unknown": cell.without_tokens,
                    "complete": row.scope != "user" or statement.users_known(begin),
                }
            )
        return Response({"month": f"{now:%Y-%m}", "budgets": budgets})
