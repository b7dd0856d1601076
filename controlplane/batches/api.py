"""``/api/v1/batches``: batches and how far they are, for the console. Members see their tenants'; what lines say and
answer is for the tenant's members and admins alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import QuerySet
from django.http import FileResponse, Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import generics, serializers, status
from rest_framework.exceptions import APIException, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.batches import services
from controlplane.batches.models import OPEN, Batch, Status, StoredFile
from telemetry.api.common import Telemetry
from tenants import audit
from tenants.access import scope_of
from tenants.api.filters import Filter, ListedFilters
from tenants.api.inputs import Page
from tenants.models import Tenant

FILES = {"output": "output_file", "errors": "error_file"}


class Ended(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    line = serializers.IntegerField(allow_null=True, help_text="Of the input file, the first is 1.")
    param = serializers.CharField(allow_null=True)


class BatchSerializer(serializers.ModelSerializer[Batch]):
    id = serializers.CharField(source="public_id", read_only=True)
    problems = serializers.SerializerMethodField(help_text="Why it failed or was cancelled.")
    expected_end = serializers.SerializerMethodField(
        help_text="When all lines are done, at the pace since it began. null: nothing is known yet, or it has ended."
    )
    has_output = serializers.SerializerMethodField(help_text="There are answers to download.")
    has_errors = serializers.SerializerMethodField(help_text="There are errors to download.")

    class Meta:
        model = Batch
        fields = [
            "id", "tenant", "project", "entitlement", "key_id", "model", "endpoint", "status", "problems", "total",
            "completed", "failed", "input_tokens", "output_tokens", "created_at", "in_progress_at", "expires_at",
            "ended_at", "expected_end", "has_output", "has_errors",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(ProblemSerializer(many=True))
    def get_problems(self, row: Batch) -> list[dict[str, Any]]:
        return [{"param": None, "line": None} | problem for problem in row.problems]

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_expected_end(self, row: Batch) -> datetime | None:
        return expected_end(row, timezone.now())

    def get_has_output(self, row: Batch) -> bool:
        return bool(row.output_file)

    def get_has_errors(self, row: Batch) -> bool:
        return bool(row.error_file)


def expected_end(row: Batch, now: datetime) -> datetime | None:
    """When the last line is done, if lines go on as since the beginning; None: not known, or it has ended."""
    done = row.completed + row.failed
    if row.status != Status.IN_PROGRESS or row.in_progress_at is None or not done:
        return None
    left_s = (now - row.in_progress_at).total_seconds() / done * max(0, row.total - done)
    return now + timedelta(seconds=min(left_s, services.LONGEST_S))  # it expires before


def visible(request: Request) -> QuerySet[Batch]:
    """Those that the user may see."""
    scope = scope_of(request)
    rows = Batch.objects.all()
    if scope.sees_all:
        return rows
    return rows.filter(tenant__in=Tenant.objects.filter(pk__in=scope.tenant_ids).values("slug"))


class BatchesView(Telemetry, generics.ListAPIView[Batch]):
    """Batches, newest first."""

    serializer_class = BatchSerializer
    pagination_class = Page
    filter_backends = [ListedFilters]
    queryset = Batch.objects.none()
    filters: ClassVar = {
        "tenant": Filter("tenant", "Only this tenant's."),
        "project": Filter("project", "Only those of this project."),
        "status": Filter("status", "Only those in this state."),
    }

    def get_queryset(self) -> QuerySet[Batch]:
        return visible(self.request)

    @extend_schema(summary="Batches, newest first", operation_id="batches_list")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)


class BatchView(Telemetry, APIView):
    """One batch."""

    def row(self, batch: str) -> Batch:
        row = visible(self.request).filter(public_id=batch).first()
        if row is None:
            raise Http404
        return row

    def own(self, batch: str) -> Batch:
        """... of which the user may do what its keys may."""
        row = self.row(batch)
        scope = scope_of(self.request)
        tenant = Tenant.objects.filter(slug=row.tenant).first()
        if not scope.may_write and (tenant is None or not scope.may_manage_keys(tenant)):
            raise PermissionDenied("Only admins and members of the tenant can cancel its batches or read their lines.")
        return row

    @extend_schema(summary="Read a batch", operation_id="batches_retrieve", responses=BatchSerializer)
    def get(self, request: Request, batch: str) -> Response:
        return Response(BatchSerializer(self.row(batch)).data)


class BatchCancelView(BatchView):
    http_method_names = ("post", "options")

    @extend_schema(summary="Cancel a batch", operation_id="batches_cancel", request=None, responses=BatchSerializer)
    def post(self, request: Request, batch: str) -> Response:
        """What was done stays, and the rest is named in the file of errors. For admins, and members of the tenant."""
        row = self.own(batch)
        if row.status not in OPEN:
            raise Ended(f"The batch is {row.status}: nothing is left to cancel.")
        with transaction.atomic():
            before = {"status": row.status}
            row = services.cancel(row.tenant, row.public_id, row.project)
            actor = audit.Actor.of(request, "api")
            audit.record(actor=actor, action="cancel", instance=row, before=before, after={"status": row.status})
        services.notify(row.pk)
        return Response(BatchSerializer(row).data)


class BatchFileView(BatchView):
    """Answers or errors of a batch, one JSON object a line."""

    http_method_names = ("get", "head", "options")
    file = "output"

    @extend_schema(
        summary="Download a file of a batch", operation_id="batches_file",
        responses={200: OpenApiResponse(OpenApiTypes.BINARY, "JSON lines.")},
    )  # fmt: skip
    def get(self, request: Request, batch: str) -> Any:
        """For admins, and members of the tenant: lines contain prompts and answers."""
        row = self.own(batch)
        name = getattr(row, FILES[self.file])
        stored = StoredFile.objects.filter(public_id=name, expires_at__gt=timezone.now()).first() if name else None
        try:
            content = None if stored is None else services.storage().open(stored.name, "rb")
        except OSError:
            content = None
        if content is None:
            raise Http404
        answer = FileResponse(
            content, as_attachment=True, filename=f"{row.public_id}-{self.file}.jsonl",
            content_type="application/octet-stream",
        )  # fmt: skip
        answer["Cache-Control"] = "no-store"
        return answer
