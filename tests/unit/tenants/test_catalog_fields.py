"""What can be written over REST can be written in the console, in YAML and in the back office too: every field of every
resource, or an exception with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import RequestFactory
from rest_framework import serializers

from controlplane.console_types import resources
from tenants.api.urls import router
from tenants.manifest.kinds import KINDS

PAGES = Path(__file__).parents[3] / "frontend" / "src" / "pages"

# The console's form of each resource, by its route.
FORMS = {
    "tenants": ("tenantSpecs",), "slos": ("sloSpecs",), "tiers": ("tierSpecs",), "pools": ("poolSpecs",),
    "backends": ("backendSpecs",), "adapters": ("adapterSpecs",), "entitlements": ("entitlementSpecs",),
    "projects": ("projectSpecs",), "quotas": ("quotaSpecs",), "budgets": ("budgetSpecs",),
    "prices": ("priceSpecs",), "keys": ("keySpecs",), "memberships": ("memberSpecs", "roleSpecs"),
    "group-rules": ("groupSpecs",), "invitations": ("invitationSpecs",),
    "alert-rules": ("ruleSpecs",), "notification-channels": ("channelSpecs",),
}  # fmt: skip
NO_FORMS = {
    "tokens": "one's own, made on the page People; a file holds no secrets",
    "audit": "is only read",
    "people": "are read; accounts come from invitations, the identity provider or a dialog on the page",
    "sessions": "are begun by signing in",
    "owners": "are written by the operator of a cluster",
}
POLICY = "has a page of its own in the console, with a preview"
PAGE = "the form stands on its page"
ALL = "*"
EXCEPTIONS: dict[str, dict[tuple[str, str], str]] = {
    "console": {
        **{("pools", n): POLICY for n in ("policy", "policy_params", "modifiers", "routing", "routing_params")},
        ("backends", "draining"): "an action beside each backend",
        ("entitlements", "tenant"): f"the tenant's: {PAGE}",
        ("projects", "tenant"): f"the tenant's: {PAGE}",
        ("quotas", "tenant"): f"the tenant's: {PAGE}",
        ("budgets", "tenant"): f"the tenant's: {PAGE}",
        ("memberships", "tenant"): f"the tenant's: {PAGE}; admins and operators have none",
    },
    "yaml": {
        ("backends", "api_key"): "a secret: never in a file",
        ("backends", "managed"): "what a driver manages is not in files: it comes and goes by itself",
        ("invitations", ALL): "are secrets for one person: never in a file",
        ("alert-rules", ALL): "what somebody watches; files say what there is",
        ("notification-channels", ALL): "hold secrets: never in a file",
        **{
            (route, "slug"): "metadata.name"
            for route in ("tenants", "slos", "tiers", "pools", "backends", "adapters", "entitlements", "projects")
        },
    },
    "admin": {
        ("invitations", ALL): "are written in the console, on the page People",
        ("alert-rules", ALL): "are written in the console, beside the alerts",
        ("notification-channels", ALL): "are written in the console, beside the alerts",
    },
}


def writable(route: str) -> set[str]:
    """The fields that a POST or PATCH of this route may carry."""
    fields = resources()[route].fields
    return {name for name, f in fields.items() if not f.read_only and not isinstance(f, serializers.HiddenField)}


def sources(route: str) -> str:
    page = (
        PAGES / "alerts" / "rules.ts"
        if route in ("alert-rules", "notification-channels")
        else PAGES / "tenants" / "specs.ts"
    )
    return page.read_text(encoding="utf-8")


def console_fields(source: str, route: str, form: str) -> set[str]:
    """The names in one exported list of fields; fields that several forms share are named there by their constant."""
    (builder,) = re.findall(rf'^const (\w+) = fieldsOf\("{route}"\);$', source, re.M)
    blocks = dict(
        re.findall(r"^(?:export )?const (\w+)\b(.*?)(?=^(?:export )?(?:const|function) |\Z)", source, re.M | re.S)
    )
    body = blocks[form]
    names = set(re.findall(rf'\b{builder}\("(\w+)"', body))
    for shared, declared in blocks.items():
        if re.search(rf"(?:^\s*|[\[,(]\s*|\.\.\.){shared}\b(?=[,\]}}])", body, re.M):
            names |= set(re.findall(rf'\b{builder}\("(\w+)"', declared))
    return names


def yaml_fields(model: type[Any]) -> set[str]:
    return {f.attribute for kind in KINDS if kind.model is model for f in kind.fields}


def admin_fields(model: type[Any]) -> set[str]:
    """The fields of the back office's form for a new row."""
    page = admin.site._registry[model]
    request = RequestFactory().get("/")
    request.user = get_user_model()(username="a", is_superuser=True, is_staff=True)
    page.has_delete_permission = lambda *_, **__: True  # type: ignore[method-assign]  # as an admin
    try:
        return set(_flat(options["fields"] for _, options in page.get_fieldsets(request)))
    finally:
        del page.has_delete_permission


def _flat(items: Iterable[Any]) -> Iterable[str]:
    for item in items:
        if isinstance(item, str):
            yield item
        else:
            yield from _flat(item)


def shown(where: str, route: str, source: str) -> set[str]:
    if where == "console":
        return set().union(*(console_fields(source, route, form) for form in FORMS[route]))
    model = resources()[route].Meta.model  # type: ignore[attr-defined]
    return yaml_fields(model) if where == "yaml" else admin_fields(model)


def missing(where: str, route: str, source: str) -> set[str]:
    if (route, ALL) in EXCEPTIONS[where]:
        return set()
    excepted = {name for of, name in EXCEPTIONS[where] if of == route}
    return writable(route) - shown(where, route, source) - excepted


def test_every_route_that_writes_rows_is_compared_or_says_why_not():
    assert {prefix for prefix, *_ in router.registry} | resources().keys() == FORMS.keys() | NO_FORMS.keys()


@pytest.mark.parametrize("where", EXCEPTIONS)
@pytest.mark.parametrize("route", FORMS)
def test_what_rest_can_write_can_be_written_there(route: str, where: str):
    assert missing(where, route, sources(route)) == set()


@pytest.mark.parametrize("where", EXCEPTIONS)
def test_no_exception_outlives_its_field(where: str):
    named = {(route, name) for route, name in EXCEPTIONS[where] if name != ALL}
    stale = {(r, n) for r, n in named if n not in writable(r) or n in shown(where, r, sources(r))}
    assert stale == set()


@pytest.mark.parametrize(
    ("route", "name"),
    [("pools", "headroom_slots"), ("tiers", "max_grammar_bytes"), ("slos", "ttlt_s"), ("alert-rules", "for_s")],
)
def test_a_field_that_is_taken_out_of_a_form_is_found(route: str, name: str):
    source = re.sub(rf'^ *\w+\("{name}".*\n', "", sources(route), flags=re.M)
    assert missing("console", route, source) == {name}
