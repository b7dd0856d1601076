"""Pages for SLOs, tiers, pools with their backends, tenants and entitlements."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Field, QuerySet, Sum
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import TabularInline
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminSelectWidget, UnfoldBooleanWidget

from scheduling.core.policies.registry import orderings, routings
from tenants import promises, services
from tenants.admin.base import CatalogAdmin, RoleRights, actor_of
from tenants.admin.meanwhile import Meanwhile
from tenants.models import Adapter, Backend, Budget, Entitlement, Pool, Price, Project, Quota, Slo, Tenant, Tier
from tenants.models.limits import OF_USER

STATE_COLOURS = {"bound": "success", "pending": "warning", "degraded": "danger", "expired": "info"}
CLASS_COLOURS = {
    "dedicated": "primary",
    "guaranteed": "success",
    "elastic": "info",
    "spot": "warning",
    "preemptible": "danger",
}


@admin.register(Slo)
class SloAdmin(CatalogAdmin):
    list_display = ("slug", "promise", "description")
    search_fields = ("slug", "description")
    fields = ("slug", "description", ("ttft_s", "tbt_s"), "ttlt_s")

    @display(description="Promise")
    def promise(self, slo: Slo) -> str:
        if slo.ttlt_s is not None:
            return f"whole answer in {slo.ttlt_s:g} s"
        return f"first token in {slo.ttft_s:g} s, then one each {slo.tbt_s:g} s"


@admin.register(Tier)
class TierAdmin(CatalogAdmin):
    list_display = ("slug", "show_class", "rank", "weight", "slo", "over_limit", "queue_limit", "max_wait_s")
    list_filter = ("service_class",)
    list_select_related = ("slo",)
    search_fields = ("slug", "description")
    fieldsets = (
        (None, {"fields": ("slug", "description", "service_class", "slo")}),
        ("Order and share", {"fields": (("rank", "weight"),)}),
        ("Over the limit", {"fields": ("over_limit", ("queue_limit", "max_wait_s"))}),
        ("One request", {"fields": ("max_grammar_bytes",)}),
    )

    @display(description="Service class", ordering="service_class", label=CLASS_COLOURS)
    def show_class(self, tier: Tier) -> str:
        return tier.service_class


class BackendInline(RoleRights, TabularInline):
    model = Backend
    form = Meanwhile
    fields = ("slug", "url", "slots", "kv_tokens", "tokens_per_s", "draining", "phase", "dcgm_url")
    extra = 0
    show_change_link = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ()


@admin.register(Pool)
class PoolAdmin(CatalogAdmin):
    list_display = ("slug", "model", "show_policy", "show_backends", "show_slots", "show_entitlements")
    list_filter = ("policy",)
    search_fields = ("slug", "model", "description")
    inlines = (BackendInline,)
    operators_may_change = ("policy", "policy_params", "modifiers", "routing", "routing_params")
    readonly_fields = ("policy_version", "show_promised", "show_provisionable")
    fieldsets = (
        (None, {"fields": ("slug", "description", ("model", "upstream_model"), "engine", "aliases", "load_adapters")}),
        (
            "Policy",
            {"fields": (("policy", "policy_params"), "modifiers", ("routing", "routing_params"), "policy_version")},
        ),
        (
            "Limits",
            {
                "fields": (
                    "max_model_len",
                    ("default_output_tokens", "max_output_tokens"),
                    ("queue_limit", "queue_bytes"),
                    ("threshold", "headroom_slots", "kv_bytes_per_token"),
                    ("coefficients", "slo_mean_s"),
                    ("predictor", "tokenizer"),
                    "prefix_cache",
                    "prefill_credit",
                )
            },
        ),
        (
            "Scaling",
            {
                "fields": (
                    "scaling_mode",
                    ("min_replicas", "max_replicas"),
                    ("scaling_driver", "scaling_params"),
                    ("scaling_headroom", "drain_limit_s"),
                    ("scale_up_cooldown_s", "scale_down_cooldown_s"),
                    ("sleep_after_s", "wakes_in_s"),
                    ("show_promised", "show_provisionable"),
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        counted: QuerySet[Any] = rows.annotate(
            backend_count=Count("backends", distinct=True),
            entitlement_count=Count("entitlements", distinct=True),
        )
        return counted

    def formfield_for_dbfield(self, db_field: Field[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        registry = {"policy": orderings, "routing": routings}.get(db_field.name)
        if registry is not None:
            names = [(name, name) for name in registry()]
            return forms.ChoiceField(choices=names, widget=UnfoldAdminSelectWidget, help_text=db_field.help_text)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    @display(description="Policy", ordering="policy", label=True)
    def show_policy(self, pool: Pool) -> str:
        return f"{pool.policy}@{pool.policy_version}"

    @display(description="Backends", ordering="backend_count")
    def show_backends(self, pool: Pool) -> int:
        count: int = pool.backend_count  # type: ignore[attr-defined]  # annotated by get_queryset
        return count

    @display(description="Slots")
    def show_slots(self, pool: Pool) -> int:
        return pool.backends.filter(draining=False).aggregate(slots=Sum("slots"))["slots"] or 0

    @display(description="Promised")
    def show_promised(self, pool: Pool) -> str:
        return _amounts(promises.promised(pool).as_dict()) if pool.pk else "-"

    @display(description="Can be provisioned")
    def show_provisionable(self, pool: Pool) -> str:
        most = promises.provisionable(pool) if pool.pk else None
        return "scaling is off: what the backends offer" if most is None else _amounts(most.as_dict())

    @display(description="Entitlements", ordering="entitlement_count")
    def show_entitlements(self, pool: Pool) -> int:
        count: int = pool.entitlement_count  # type: ignore[attr-defined]  # annotated by get_queryset
        return count


class BackendForm(forms.ModelForm):  # type: ignore[type-arg]  # generic for checkers only
    """The engine's key can be set and removed, never read."""

    api_key = forms.CharField(
        label="API key",
        required=False,
        widget=UnfoldAdminPasswordWidget(render_value=False),
        help_text="Sent to the engine (vLLM's --api-key). Leave empty to keep what is stored; it is never shown.",
    )
    forget_api_key = forms.BooleanField(label="Remove the stored API key", required=False, widget=UnfoldBooleanWidget)

    class Meta:
        model = Backend
        fields = (
            "slug", "description", "pool", "url", "slots", "kv_tokens", "api_key", "draining", "phase", "dcgm_url",
        )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored = self.instance.api_key
        self.initial["api_key"] = ""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "api_key" in self.fields:
            kept = "" if cleaned.get("forget_api_key") else self._stored
            cleaned["api_key"] = cleaned.get("api_key") or kept
        return cleaned


@admin.register(Backend)
class BackendAdmin(CatalogAdmin):
    form = BackendForm
    list_display = ("slug", "pool", "url", "slots", "kv_tokens", "show_state", "show_key")
    list_filter = ("pool", "draining")
    list_select_related = ("pool",)
    search_fields = ("slug", "url", "description")
    operators_may_change = ("draining",)
    actions = ("drain", "undrain")
    fieldsets = (
        (None, {"fields": ("slug", "description", "pool", "url", "draining", "phase")}),
        ("Capacity", {"fields": (("slots", "kv_tokens", "tokens_per_s"), "managed")}),
        ("Access", {"fields": ("api_key", "forget_api_key", "dcgm_url")}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who cannot write sees no key field at all: a read-only one would show the key."""
        fieldsets = super().get_fieldsets(request, obj)
        if self.has_delete_permission(request, obj):
            return fieldsets
        return (*fieldsets[:2], ("Access", {"fields": ("dcgm_url",)}))

    @display(description="State", label={"in use": "success", "draining": "warning"})
    def show_state(self, backend: Backend) -> str:
        return "draining" if backend.draining else "in use"

    @display(description="Has a key", boolean=True)
    def show_key(self, backend: Backend) -> bool:
        return bool(backend.api_key)

    @action(description="Drain: no new work", permissions=["operate"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._drain(request, queryset, draining=True)

    @action(description="Put back into use", permissions=["operate"])
    def undrain(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._drain(request, queryset, draining=False)

    def _drain(self, request: HttpRequest, queryset: QuerySet[Any], *, draining: bool) -> None:
        actor = actor_of(request)
        with services.change(actor=actor):
            for backend in queryset:
                services.drain_backend(actor=actor, backend=backend, draining=draining)
        names = ", ".join(backend.slug for backend in queryset)
        messages.success(request, f"{'Draining' if draining else 'In use again'}: {names}.")


@admin.register(Tenant)
class TenantAdmin(CatalogAdmin):
    list_display = ("slug", "description", "show_entitlements", "show_members", "created_at")
    search_fields = ("slug", "description")
    fields = ("slug", "description")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        counted: QuerySet[Any] = rows.annotate(
            entitlement_count=Count("entitlements", distinct=True),
            member_count=Count("memberships", distinct=True),
        )
        return counted

    @display(description="Entitlements", ordering="entitlement_count")
    def show_entitlements(self, tenant: Tenant) -> int:
        count: int = tenant.entitlement_count  # type: ignore[attr-defined]  # annotated by get_queryset
        return count

    @display(description="Members", ordering="member_count")
    def show_members(self, tenant: Tenant) -> int:
        count: int = tenant.member_count  # type: ignore[attr-defined]  # annotated by get_queryset
        return count


@admin.register(Adapter)
class AdapterAdmin(CatalogAdmin):
    list_display = ("slug", "pool", "model", "upstream_model", "source")
    list_filter: ClassVar = ("pool",)
    list_select_related = ("pool",)
    search_fields = ("slug", "pool__slug", "model", "description")
    autocomplete_fields = ("pool",)
    fields = ("slug", "description", "pool", ("model", "upstream_model"), "source")


@admin.register(Project)
class ProjectAdmin(CatalogAdmin):
    list_display = ("slug", "tenant", "description", "default_model", "created_at")
    list_filter: ClassVar = ("tenant",)
    list_select_related = ("tenant",)
    search_fields = ("slug", "tenant__slug", "description")
    autocomplete_fields = ("tenant",)
    fields = ("slug", "description", "tenant", "aliases", "default_model", "fallbacks", *OF_USER)


@admin.register(Entitlement)
class EntitlementAdmin(CatalogAdmin):
    list_display = (
        "slug", "tenant", "project", "pool", "adapter", "tier", "show_state", "concurrency", "tokens_per_s",
        "kv_tokens", "valid_until", "state_reason",
    )  # fmt: skip
    list_filter: ClassVar = ("state", "tier", "pool", "tenant")
    list_select_related = ("tenant", "project", "pool", "adapter", "tier")
    search_fields = ("slug", "tenant__slug", "description")
    autocomplete_fields = ("tenant", "project", "pool", "adapter")
    readonly_fields = ("show_state", "state_reason")
    fieldsets = (
        (None, {"fields": ("slug", "description", ("tenant", "project"), ("pool", "adapter"), "tier")}),
        ("State", {"fields": ("show_state", "state_reason")}),
        ("Share of the pool", {"fields": ("concurrency", ("tokens_per_s", "burst_tokens"), "kv_tokens")}),
        ("Validity", {"fields": ("valid_from", "valid_until")}),
    )

    @display(description="State", ordering="state", label=STATE_COLOURS)
    def show_state(self, entitlement: Entitlement) -> str:
        return str(entitlement.state_at(timezone.now()))


def _amounts(amounts: dict[str, float]) -> str:
    return ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in amounts.items() if value) or "nothing"


@admin.register(Quota)
class QuotaAdmin(CatalogAdmin):
    list_display = ("tenant", "period", "soft_tokens", "hard_tokens")
    list_filter: ClassVar = ("period", "tenant")
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug",)
    autocomplete_fields = ("tenant",)
    fields = ("tenant", "period", ("soft_tokens", "hard_tokens"))


@admin.register(Budget)
class BudgetAdmin(CatalogAdmin):
    list_display = ("tenant", "scope", "name", "currency", "soft_amount", "hard_amount")
    list_filter: ClassVar = ("scope", "tenant")
    list_select_related = ("tenant",)
    search_fields = ("tenant__slug", "name")
    autocomplete_fields = ("tenant",)
    fields = ("tenant", ("scope", "name"), "currency", ("soft_amount", "hard_amount"), "alert_at")


@admin.register(Price)
class PriceAdmin(CatalogAdmin):
    list_display = (
        "pool", "model", "valid_from", "currency", "per_million_input", "per_million_output", "per_gpu_second",
        "slots_per_gpu",
    )  # fmt: skip
    list_filter: ClassVar = ("pool",)
    list_select_related = ("pool",)
    search_fields = ("pool__slug",)
    autocomplete_fields = ("pool",)
    fields = (
        ("pool", "model"),
        ("valid_from", "currency"),
        ("per_million_input", "per_million_cached", "per_million_output"),
        ("per_gpu_second", "slots_per_gpu"),
        ("per_reserved_used_second", "per_reserved_idle_second"),
    )
