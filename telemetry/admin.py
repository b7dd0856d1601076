"""The ledger, its hours, scaling decisions and alerts in the back office: to read and filter, never to change."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import RangeDateTimeFilter
from unfold.decorators import display

from telemetry.ledger.selectors import tokens_unknown
from telemetry.models import Alert, LedgerEntry, ScalingDecision, UsageHour
from tenants.admin.base import RoleRights


class _Record(RoleRights, ModelAdmin):
    """Rows that the system writes and nobody changes."""

    list_per_page = 50
    show_full_result_count = False  # counting millions of rows for a page title is not worth it

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


_SHOWN = {"input_tokens": "shown_input", "output_tokens": "shown_output"}


def _unknown(entry: LedgerEntry) -> bool:
    return tokens_unknown(entry.reason, entry.granted_at, entry.output_tokens)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(_Record):
    """Requests that ended."""

    list_display = [
        "received_at", "request_id", "tenant", "tier", "pool", "shown_outcome", "reason", "queued", "first_token",
        "total", "shown_input", "shown_output", "shown_slo", "backend",
    ]  # fmt: skip
    list_filter = [("received_at", RangeDateTimeFilter), "outcome", "reason", "slo_met", "tier", "pool", "tenant"]
    list_filter_submit = True
    search_fields = ["=request_id", "=tenant", "=entitlement", "=key_id"]
    search_help_text = "A whole request id, or the name of a tenant, entitlement or key."
    date_hierarchy = None
    ordering = ["-received_at", "-id"]
    readonly_fields = [_SHOWN.get(f.name, f.name) for f in LedgerEntry._meta.fields]
    fields = readonly_fields

    @display(description="input [tokens]", ordering="input_tokens")
    def shown_input(self, entry: LedgerEntry) -> str:
        return "unknown" if _unknown(entry) and not entry.input_tokens else str(entry.input_tokens)

    @display(description="output [tokens]", ordering="output_tokens")
    def shown_output(self, entry: LedgerEntry) -> str:
        return "unknown" if _unknown(entry) else str(entry.output_tokens)

    @display(
        description="outcome",
        ordering="outcome",
        label={"completed": "success", "refused": "warning", "failed": "danger", "cancelled": "info"},
    )
    def shown_outcome(self, entry: LedgerEntry) -> str:
        return entry.outcome

    @display(description="SLO", ordering="slo_met", label={"met": "success", "missed": "danger"})
    def shown_slo(self, entry: LedgerEntry) -> str:
        return {True: "met", False: "missed", None: ""}[entry.slo_met]

    @display(description="queued [ms]")
    def queued(self, entry: LedgerEntry) -> str:
        if entry.queued_at is None:
            return ""
        return f"{(entry.wait_s or 0.0) * 1000:,.0f}"

    @display(description="TTFT [ms]")
    def first_token(self, entry: LedgerEntry) -> str:
        return _ms(entry.received_at, entry.first_token_at)

    @display(description="total [ms]")
    def total(self, entry: LedgerEntry) -> str:
        return _ms(entry.received_at, entry.done_at)


@admin.register(UsageHour)
class UsageHourAdmin(_Record):
    """The ledger added up, hour by hour."""

    list_display = [
        "hour", "tenant", "entitlement", "key_id", "pool", "model", "requests", "completed", "refused", "failed",
        "cancelled", "input_tokens", "output_tokens", "tokens_unknown",
    ]  # fmt: skip
    list_filter = [("hour", RangeDateTimeFilter), "pool", "tenant", "tier"]
    list_filter_submit = True
    search_fields = ["=tenant", "=entitlement", "=key_id"]
    readonly_fields = [f.name for f in UsageHour._meta.fields]


@admin.register(ScalingDecision)
class ScalingDecisionAdmin(_Record):
    """What the planner proposed, and what became of it."""

    list_display = ["at", "pool", "from_replicas", "to_replicas", "shown_result", "reason", "detail", "finished_at"]
    list_filter = ["pool", "outcome", ("at", RangeDateTimeFilter)]
    list_filter_submit = True
    readonly_fields = [f.name for f in ScalingDecision._meta.fields]

    @display(
        description="outcome",
        ordering="outcome",
        label={"done": "success", "running": "info", "advised": "info", "failed": "danger", "superseded": "warning"},
    )
    def shown_result(self, decision: ScalingDecision) -> str:
        return decision.outcome


@admin.register(Alert)
class AlertAdmin(_Record):
    """What operators were told."""

    list_display = ["at", "severity", "kind", "tenant", "pool", "line", "resolved_at", "delivered_at"]
    list_filter = ["kind", "pool", "tenant"]
    readonly_fields = [f.name for f in Alert._meta.fields]


def _ms(start: Any, end: Any) -> str:
    return "" if end is None else f"{(end - start).total_seconds() * 1000:,.0f}"
