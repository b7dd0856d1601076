"""The audit log: to be read, never written."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.decorators import display

from tenants.admin.base import CatalogAdmin
from tenants.models import AuditEntry

ACTION_COLOURS = {"create": "success", "issue": "success", "change": "info", "delete": "danger", "revoke": "danger"}


@admin.register(AuditEntry)
class AuditAdmin(CatalogAdmin):
    list_display = ("at", "actor", "via", "show_action", "kind", "object_id", "show_summary")
    list_filter = ("action", "kind", "via", "at")
    search_fields = ("actor", "object_id")
    date_hierarchy = "at"
    fields = (
        "at",
        ("actor", "via"),
        "show_action",
        ("kind", "object_id"),
        "tenant",
        "show_before",
        "show_after",
        "request_id",
    )
    readonly_fields = ("show_action", "show_before", "show_after")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Action", ordering="action", label=ACTION_COLOURS)
    def show_action(self, entry: AuditEntry) -> str:
        return entry.action

    @display(description="What changed")
    def show_summary(self, entry: AuditEntry) -> str:
        if entry.before is None or entry.after is None:
            return ""
        parts = [f"{name}: {_short(entry.before.get(name))} → {_short(value)}" for name, value in entry.after.items()]
        text = ", ".join(parts)
        return text if len(text) <= 120 else text[:119] + "…"

    @display(description="Before")
    def show_before(self, entry: AuditEntry) -> str:
        return _pretty(entry.before)

    @display(description="After")
    def show_after(self, entry: AuditEntry) -> str:
        return _pretty(entry.after)


def _short(value: Any) -> str:
    return "(none)" if value in (None, "") else str(value)


def _pretty(values: Any) -> str:
    if values is None:
        return "-"
    return format_html('<pre style="white-space: pre-wrap">{}</pre>', json.dumps(values, indent=2, ensure_ascii=False))
