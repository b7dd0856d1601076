"""The management API. Reading is within the user's scope (``tenants.access``), writing goes through the services."""

from __future__ import annotations

import inspect
from io import StringIO
from typing import Any, ClassVar

from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, viewsets
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied, Throttled, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduling.core.policies.parameters import parameters_of
from scheduling.core.policies.registry import modifiers, orderings, routings
from tenants import audit, audit_chain, engine_figures, promises, services
from tenants.access import scope_of
from tenants.api import serializers
from tenants.api.base import WRITES, ByNumber, CatalogViewSet, Right, ScopedView, WritableViewSet, described, is_trial
from tenants.api.filters import Filter, ListedFilters
from tenants.api.inputs import Page
from tenants.models import (
    Adapter,
    AuditEntry,
    Backend,
    Budget,
    Entitlement,
    GroupRule,
    Membership,
    Owner,
    Pool,
    Price,
    Project,
    Quota,
    Slo,
    Tenant,
    Tier,
)

MOST_EXPORTED = 20_000  # audit entries in one answer


@described("tenant", "tenants", *WRITES)
class TenantViewSet(WritableViewSet):
    """Organisations and teams that share the GPUs."""

    model = Tenant
    serializer_class = serializers.TenantSerializer
    rights: ClassVar = {"pause": Right.OPERATE, "resume": Right.OPERATE, "revoke_user": Right.OWN}

    @extend_schema(
        summary="Pause a tenant",
        operation_id="tenants_pause",
        request=serializers.PauseSerializer,
        responses=serializers.TenantSerializer,
    )
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Refuses new requests of its keys; what was admitted goes on. For operators and admins."""
        given = serializers.PauseSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        reason = given.validated_data.get("reason", "")
        return self.answer(services.pause_tenant(actor=self.actor, tenant=self.get_object(), reason=reason))

    @extend_schema(
        summary="Resume a paused tenant",
        operation_id="tenants_resume",
        request=None,
        responses=serializers.TenantSerializer,
    )
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Admits its requests again. For operators and admins."""
        return self.answer(services.resume_tenant(actor=self.actor, tenant=self.get_object()))

    @extend_schema(
        summary="Revoke all keys of a user",
        operation_id="tenants_revoke_user",
        request=serializers.RevokeUserSerializer,
        responses=serializers.RevokedSerializer,
    )
    @action(detail=True, methods=["post"], url_path="revoke-user")
    def revoke_user(self, request: Request, **kwargs: Any) -> Response:
        """Ends the tenant's keys that are attributed to this user, all at once. For admins, and for members of the
        tenant."""
        tenant = self.get_object()
        if not self.scope.may_manage_keys(tenant):
            raise PermissionDenied("Only admins and members of the tenant can create or revoke its keys.")
        given = serializers.RevokeUserSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        ended = services.revoke_user(actor=self.actor, tenant=tenant, user=given.validated_data["user"])
        return Response({"revoked": [key.public_id for key in ended]})


@described("SLO", "SLOs", *WRITES)
class SloViewSet(WritableViewSet):
    """Promises about time [s]: TTFT and TBT (interactive), or TTLT."""

    model = Slo
    serializer_class = serializers.SloSerializer


@described("tier", "tiers", *WRITES)
class TierViewSet(WritableViewSet):
    """Contract templates: service class, rank, weight, SLO and queueing rule."""

    model = Tier
    related = ("slo",)
    serializer_class = serializers.TierSerializer
    filters: ClassVar = {
        "service_class": Filter("service_class", "Only this service class."),
        "slo": Filter("slo__slug", "Only tiers with this SLO."),
    }


@described("pool", "pools", *WRITES)
class PoolViewSet(WritableViewSet):
    """One model behind one capacity."""

    model = Pool
    serializer_class = serializers.PoolSerializer
    filters: ClassVar = {
        "model": Filter("model", "Only pools of this model."),
        "policy": Filter("policy", "Only pools ordered by this policy."),
    }
    rights: ClassVar = {"policy": Right.OPERATE}

    def get_queryset(self) -> QuerySet[Pool]:
        # What a pool has promised is summed up from its entitlements, of which there may be thousands: the columns that
        # say it, and the tier joined, for SQLite refuses a list of more than 1,000 tiers.
        promised = Entitlement.objects.select_related("tier").only(*promises.COLUMNS)
        return super().get_queryset().prefetch_related("backends", Prefetch("entitlements", promised))

    @extend_schema(
        summary="Change a pool's policy",
        operation_id="pools_policy",
        request=serializers.PolicySerializer,
        responses=serializers.PoolSerializer,
    )
    @action(detail=True, methods=["post"])
    def policy(self, request: Request, **kwargs: Any) -> Response:
        """Sets policy, parameters, modifiers and routing together; a change is a new policy version. For operators and
        admins."""
        body = serializers.PolicySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool = services.set_policy(actor=self.actor, pool=self.get_object(), **body.validated_data)
        return self.answer(pool)


@described("backend", "backends", *WRITES)
class BackendViewSet(WritableViewSet):
    """The engines (replicas) of pools. Members do not see them."""

    model = Backend
    related = ("pool",)
    serializer_class = serializers.BackendSerializer
    filters: ClassVar = {
        "pool": Filter("pool__slug", "Only backends of this pool."),
        "draining": Filter("draining", "Only those that drain, or do not.", "boolean"),
    }
    rights: ClassVar = {"drain": Right.OPERATE, "undrain": Right.OPERATE}

    def given(self, request: Request) -> Any:
        """Slots and KV cache that are left empty are what the engine says."""
        wait_s = engine_figures.TRIAL_S if is_trial(request) else engine_figures.WAIT_S
        if not self.detail:
            return engine_figures.filled(request.data, wait_s)
        if not engine_figures.empty(request.data, new=False):
            return request.data
        row = self.get_object()
        return engine_figures.filled(request.data, wait_s, row.url, row.api_key, row.pool.engine)

    @extend_schema(
        summary="Drain a backend", operation_id="backends_drain", request=None, responses=serializers.BackendSerializer
    )
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, **kwargs: Any) -> Response:
        """Gives it no new work; what runs there finishes. For operators and admins."""
        return self.answer(services.drain_backend(actor=self.actor, backend=self.get_object(), draining=True))

    @extend_schema(
        summary="Put a drained backend back",
        operation_id="backends_undrain",
        request=None,
        responses=serializers.BackendSerializer,
    )
    @action(detail=True, methods=["post"])
    def undrain(self, request: Request, **kwargs: Any) -> Response:
        """Gives it work again once it has answered a probe. For operators and admins."""
        return self.answer(services.drain_backend(actor=self.actor, backend=self.get_object(), draining=False))


@described("adapter", "adapters", *WRITES)
class AdapterViewSet(WritableViewSet):
    """LoRA adapters of pools' models: model names of their own, on the pools' capacity."""

    model = Adapter
    related = ("pool",)
    serializer_class = serializers.AdapterSerializer
    filters: ClassVar = {"pool": Filter("pool__slug", "Only those of this pool.")}


@described("project", "projects", *WRITES)
class ProjectViewSet(WritableViewSet):
    """Teams and applications of a tenant: what their keys open, and under which names. Deleting one deletes its
    keys."""

    model = Project
    related = ("tenant",)
    serializer_class = serializers.ProjectSerializer
    filters: ClassVar = {"tenant": Filter("tenant__slug", "Only this tenant's.")}


@described("entitlement", "entitlements", *WRITES)
class EntitlementViewSet(WritableViewSet):
    """A tenant's right to a share of a pool. Deleting one deletes its keys."""

    model = Entitlement
    related = ("tenant", "project", "pool", "adapter", "tier")
    serializer_class = serializers.EntitlementSerializer
    filters: ClassVar = {
        "tenant": Filter("tenant__slug", "Only this tenant's."),
        "project": Filter("project__slug", "Only those of this project."),
        "pool": Filter("pool__slug", "Only those to this pool."),
        "adapter": Filter("adapter__slug", "Only those to this adapter."),
        "tier": Filter("tier__slug", "Only those of this tier."),
        "state": Filter("state", "Only those in this state."),
    }


@described("quota", "quotas", *WRITES)
class QuotaViewSet(ByNumber, WritableViewSet):
    """Tokens a tenant may use in a day or month (UTC), over all pools."""

    model = Quota
    related = ("tenant",)
    serializer_class = serializers.QuotaSerializer
    search_fields: ClassVar = ("tenant__slug",)
    filters: ClassVar = {
        "tenant": Filter("tenant__slug", "Only this tenant's."),
        "period": Filter("period", "Only day, or month."),
    }


@described("budget", "budgets", *WRITES)
class BudgetViewSet(ByNumber, WritableViewSet):
    """What may be spent in a month (UTC), over all pools, by a tenant or one project, user or key of it."""

    model = Budget
    related = ("tenant",)
    serializer_class = serializers.BudgetSerializer
    search_fields: ClassVar = ("tenant__slug", "name")
    filters: ClassVar = {
        "tenant": Filter("tenant__slug", "Only this tenant's."),
        "scope": Filter("scope", "Only those of a tenant, project, user or key."),
    }


@described("price", "prices", *WRITES)
class PriceViewSet(ByNumber, WritableViewSet):
    """What use of a pool or adapter costs, from an hour on until its next price. Those of the past stay as they are."""

    model = Price
    related = ("pool",)
    serializer_class = serializers.PriceSerializer
    search_fields: ClassVar = ("pool__slug",)
    filters: ClassVar = {"pool": Filter("pool__slug", "Only this pool's.")}


@described("membership", "memberships", *WRITES)
class MembershipViewSet(ByNumber, WritableViewSet):
    """Users' memberships in tenants: admins and operators manage all of them, members see their tenant's."""

    model = Membership
    veiled = True
    related = ("user", "tenant")
    serializer_class = serializers.MembershipSerializer
    search_fields: ClassVar = ("user__username",)
    filters: ClassVar = {
        "user": Filter("user__username", "Only this user's."),
        "tenant": Filter("tenant__slug", "Only those in this tenant."),
        "role": Filter("role", "Only this role."),
    }


@described("group rule", "group rules", *WRITES)
class GroupRuleViewSet(ByNumber, WritableViewSet):
    """What roles the identity provider's groups give. A change acts at the next check, seconds later."""

    model = GroupRule
    related = ("tenant",)
    serializer_class = serializers.GroupRuleSerializer
    search_fields: ClassVar = ("group",)
    filters: ClassVar = {
        "group": Filter("group", "Only this group's."),
        "tenant": Filter("tenant__slug", "Only those of this tenant."),
        "role": Filter("role", "Only this role."),
    }


@described("audit entry", "audit entries")
class AuditViewSet(ByNumber, CatalogViewSet):
    """Who changed, was refused or read what, newest first. Each entry is linked to the one before it
    (`manage.py audit verify`); members see their tenant's."""

    model = AuditEntry
    related = ("tenant",)
    serializer_class = serializers.AuditSerializer
    veiled = True
    search_fields: ClassVar = ("actor", "object_id")
    filters: ClassVar = {
        "actor": Filter("actor", "Only what this user did."),
        "outcome": Filter("outcome", "Only what was done, refused, or read."),
        "via": Filter("via", "Only what came this way: api, admin, cli, login, oidc, invitation, kubernetes, system."),
        "address": Filter("address", "Only what came from this address."),
        "action": Filter("action", "Only this action."),
        "kind": Filter("kind", "Only objects of this kind, such as entitlement."),
        "object": Filter("object_id", "Only this object."),
        "tenant": Filter("tenant__slug", "Only this tenant's."),
        "since": Filter("at__gte", "Not before this time.", "date-time"),
        "until": Filter("at__lt", "Before this time.", "date-time"),
    }
    rights: ClassVar = {"export": Right.SEE}

    @extend_schema(
        summary="Export audit entries",
        operation_id="audit_export",
        parameters=[OpenApiParameter("as", str, enum=["csv", "jsonl"], description="csv (the default), or jsonl.")],
        responses={(200, "text/csv"): str},
    )
    @action(detail=False, methods=["get"], pagination_class=None)
    def export(self, request: Request) -> HttpResponse:
        """The newest 20,000 that the filters keep, as a file; `manage.py audit export` writes all. It is an entry of
        the log itself."""
        form = request.query_params.get("as", "csv")
        if form not in ("csv", "jsonl"):
            raise ValidationError({"as": "Use csv or jsonl."})
        if audit.are_many(self.actor, "read", audit.READS_A_MINUTE):
            raise Throttled(60, f"The log was exported {audit.READS_A_MINUTE} times in a minute.")
        chained = self.scope.sees_all
        entries = self.filter_queryset(self.get_queryset())[:MOST_EXPORTED]
        if form == "csv":
            text = StringIO()
            audit_chain.write_csv(entries, text, chained)
            answer = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
        else:
            answer = HttpResponse(
                "".join(audit_chain.lines(entries, chained)), content_type="application/jsonl; charset=utf-8"
            )
        answer["Content-Disposition"] = f'attachment; filename="audit.{form}"'
        answer["Cache-Control"] = "no-store"
        audit.note(actor=self.actor, action="export", outcome="read", what=f"{request.method} {request.path}")
        return answer


@extend_schema_view(list=extend_schema(summary="List rows that Kubernetes keeps"))
class OwnerViewSet(ScopedView, mixins.ListModelMixin, viewsets.GenericViewSet[Owner]):
    """Which rows are kept by custom resources in Kubernetes, and which of their fields these set."""

    serializer_class = serializers.OwnerSerializer
    filter_backends = [ListedFilters]
    pagination_class = Page
    filters: ClassVar = {
        "kind": Filter("kind", "Only rows of this kind, as in files: TokenPool, Backend and so on."),
        "name": Filter("name", "Only this row."),
    }

    def get_queryset(self) -> QuerySet[Owner]:
        return self.scope.visible(Owner)


class PolicyListView(ScopedView, APIView):
    """The rules that can decide for a pool: who goes next, what is laid around that, and where."""

    @extend_schema(
        summary="List policies", operation_id="policies_list", responses=serializers.PolicyInfoSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        infos = []
        for kind, registry in (("ordering", orderings()), ("modifier", modifiers()), ("routing", routings())):
            for name, policy in registry.items():
                doc = inspect.getdoc(policy) or ""
                infos.append(
                    {
                        "name": name,
                        "kind": kind,
                        "question": doc.partition("\n")[0],
                        "params": parameters_of(policy),
                    }
                )
        return Response(serializers.PolicyInfoSerializer(infos, many=True).data)


class MeView(ScopedView, APIView):
    """Who am I, and what may I do?"""

    @extend_schema(summary="Read who is signed in", operation_id="me", responses=serializers.MeSerializer)
    def get(self, request: Request) -> Response:
        scope = scope_of(request)
        own = Tenant.objects.filter(pk__in=scope.tenant_ids)
        return Response(
            serializers.MeSerializer(
                {
                    "username": scope.username,
                    "role": scope.role,
                    "tenants": own,
                    "may_write": scope.may_write,
                    "may_operate": scope.may_operate,
                    "sees_all": scope.sees_all,
                }
            ).data
        )


class RootView(ScopedView, viewsets.ViewSet):
    """Where things are. ``sections``: the collections, as the routes name them."""

    sections: tuple[str, ...] = ()

    @extend_schema(exclude=True)
    def list(self, request: Request) -> Response:
        base = request.build_absolute_uri(request.path.rstrip("/") + "/")
        return Response({name: base + name for name in [*self.sections, "policies", "me", "docs", "schema"]})
