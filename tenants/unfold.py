"""The back office's menu: which pages belong together."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.http import urlencode


def _page(title: str, icon: str, name: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{name}_changelist")}


def _kept_forms(request: HttpRequest) -> str:
    """The script that asks who is logged in before a form is sent: a login page in its place would lose it."""
    asked = {"user": request.user.get_username(), "csrf": settings.CSRF_COOKIE_NAME}
    return f"{static('back-office.js')}?{urlencode(asked)}"


UNFOLD: dict[str, Any] = {
    "SCRIPTS": [_kept_forms],
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
        "navigation": [
            {
                "title": "Who may what",
                "items": [
                    _page("Tenants", "groups", "tenants_tenant"),
                    _page("Entitlements", "handshake", "tenants_entitlement"),
                    _page("API keys", "key", "tenants_apikey"),
                    _page("Quotas", "data_usage", "tenants_quota"),
                    _page("Budgets", "savings", "tenants_budget"),
                    _page("Prices", "payments", "tenants_price"),
                ],
            },
            {
                "title": "Contracts",
                "items": [
                    _page("Tiers", "stairs", "tenants_tier"),
                    _page("SLOs", "timer", "tenants_slo"),
                ],
            },
            {
                "title": "Capacity",
                "items": [
                    _page("Pools", "memory", "tenants_pool"),
                    _page("Backends", "dns", "tenants_backend"),
                    _page("Adapters", "extension", "tenants_adapter"),
                    _page("Scaling decisions", "swap_vert", "telemetry_scalingdecision"),
                ],
            },
            {
                "title": "What happened",
                "items": [
                    _page("Requests", "receipt_long", "telemetry_ledgerentry"),
                    _page("Usage by hour", "bar_chart", "telemetry_usagehour"),
                    _page("Alerts", "notifications", "telemetry_alert"),
                    _page("Audit log", "history", "tenants_auditentry"),
                ],
            },
            {
                "title": "People",
                "items": [
                    _page("Users", "person", "auth_user"),
                    _page("Roles", "badge", "tenants_membership"),
                    _page("Groups", "group_work", "tenants_grouprule"),
                    _page("My access tokens", "terminal", "tenants_accesstoken"),
                ],
            },
        ],
    },
}
