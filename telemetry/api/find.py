"""``/api/v1/find``: objects by a part of their name, for the console's command palette; ``/api/v1/tenant-colors``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Model, Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api.common import Telemetry, viewer_of
from telemetry.ledger.selectors import id_begins
from telemetry.models import Alert
from tenants.access import scope_of
from tenants.models import ApiKey, Backend, Entitlement, Pool, Project, Tenant

EACH = 6  # of a kind
LEAST_OF_REQUEST = 6  # letters of a request's id: fewer would be any of millions
COLORS = 8  # slots of the console's palette of tenants (frontend/src/charts/palette.ts)
MOST_COLORED = 2_000
KINDS = ("tenant", "pool", "backend", "entitlement", "project", "key", "request", "alert")

Match = dict[str, str]


class FindQuery(serializers.Serializer[Any]):
    q = serializers.CharField(max_length=100, help_text="A part of a name; of a key its public id, never its secret.")

    def validate_q(self, value: str) -> str:
        if value.startswith("qm") and "." in value:
            raise serializers.ValidationError("Send the part of the key before the dot only: the rest is its secret.")
        return value


class FoundSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=KINDS)
    id = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]  # also an attribute of fields
    tenant = serializers.CharField(help_text="Whose it is; empty: of no single tenant.")
    state = serializers.CharField(help_text="Paused, draining, revoked, open; else empty.")


class FindSerializer(serializers.Serializer[Any]):
    found = FoundSerializer(many=True)


class FindView(Telemetry, APIView):
    """Tenants, pools, backends, entitlements, projects, keys, requests and alerts that the user may see."""

    @extend_schema(
        summary="Find objects by a part of their name", operation_id="find", parameters=[FindQuery],
        responses=FindSerializer,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        query = FindQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        return Response({"found": list(_matches(request, query.validated_data["q"].strip()))})


def _line(kind: str, id_: str, label: str, tenant: str = "", state: str = "") -> Match:
    return {"kind": kind, "id": id_, "label": label, "tenant": tenant, "state": state}


def _matches(request: Request, text: str) -> Iterator[Match]:
    if not text:
        return
    scope = scope_of(request)

    def named(model: type[Model], *related: str) -> QuerySet[Any]:
        rows = scope.visible(model).filter(slug__icontains=text).order_by("slug")
        return rows.select_related(*related)[:EACH]

    for tenant in named(Tenant):
        yield _line("tenant", tenant.slug, tenant.slug, tenant.slug, "paused" if tenant.paused_since else "")
    for pool in named(Pool):
        yield _line("pool", pool.slug, pool.slug)
    for backend in named(Backend):
        yield _line("backend", backend.slug, backend.slug, "", "draining" if backend.draining else "")
    for entitlement in named(Entitlement, "tenant"):
        yield _line("entitlement", entitlement.slug, entitlement.slug, entitlement.tenant.slug)
    for project in named(Project, "tenant"):
        yield _line("project", project.slug, project.slug, project.tenant.slug)
    yield from _keys(scope.visible(ApiKey), text.removeprefix("qm-"))
    if len(text) >= LEAST_OF_REQUEST:
        rows = viewer_of(request).requests().filter(**id_begins(text)).order_by("request_id")
        for number, tenant in rows.values_list("request_id", "tenant")[:EACH]:
            yield _line("request", number, number, tenant)
    if text.isdecimal() and len(text) < 10 and scope.sees_all:
        for alert in Alert.objects.filter(pk=int(text)):
            yield _line("alert", str(alert.pk), alert.line, alert.tenant, alert.state)


def _keys(visible: QuerySet[ApiKey], text: str) -> Iterator[Match]:
    """By the public id, wherever it is pasted from, or by name."""
    fits = Q(public_id__istartswith=text) | Q(name__icontains=text)
    rows = visible.filter(fits).select_related("entitlement__tenant", "project__tenant").order_by("name", "public_id")
    for key in rows[:EACH]:
        yield _line(
            "key",
            key.public_id,
            f"{key.name} (qm-{key.public_id})",
            key.tenant.slug,
            "revoked" if key.revoked_at else "",
        )


class ColorsSerializer(serializers.Serializer[Any]):
    colors = serializers.DictField(child=serializers.IntegerField(), help_text="By tenant: a place in the palette.")


class ColorsView(Telemetry, APIView):
    """Which colour each visible tenant has in charts: by the number of its row, so it never changes, and the first
    eight tenants differ."""

    @extend_schema(summary="Colours of tenants in charts", operation_id="tenant_colors", responses=ColorsSerializer)
    def get(self, request: Request) -> Response:
        rows = scope_of(request).visible(Tenant).order_by("pk").values_list("slug", "pk")[:MOST_COLORED]
        return Response({"colors": {slug: (pk - 1) % COLORS for slug, pk in rows}})
