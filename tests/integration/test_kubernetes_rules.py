"""REST and a custom resource take the same values of TokenPool, TokenEntitlement and Tier, but for what is listed here.

That the definitions do as :func:`tests.support.kubernetes_rules.stored` says is compared with a real API server in
``tests/kubernetes/test_rules_of_the_server.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from rest_framework.test import APIClient

from controlplane.kubernetes import catalog
from controlplane.kubernetes.catalog import CustomResource
from controlplane.kubernetes.resources import BY_KIND
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Adapter, Pool, Project
from tests.support import worlds
from tests.support.kubernetes_rules import ROUTES, Case, cases, stored

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "kubernetes.md"


@dataclass(frozen=True, slots=True)
class Difference:
    """``reason`` is said in the guide, word for word."""

    reason: str
    rest_takes: bool  # and the resource does not; else the other way round
    fits: Callable[[Case], bool]


def is_text(value: Any) -> bool:
    return isinstance(value, str)


DIFFERENT = (
    Difference(
        "REST takes numbers, `true` and `false` in quotes, as forms send them, and 1, 0, `yes` and `no` for the latter",
        True,
        lambda case: case.type_of() in ("whole", "number", "flag") and type(case.value) in (str, int),
    ),
    Difference(
        "REST takes a number for a text",
        True,
        lambda case: case.type_of() == "text" and type(case.value) is int,
    ),
    Difference(
        "REST takes `true` for 1.0",
        True,
        lambda case: case.type_of() == "number" and case.value is True,
    ),
    Difference(
        "REST strips spaces around a text",
        True,
        lambda case: case.type_of() == "text" and is_text(case.value) and case.value != case.value.strip(),
    ),
    Difference(
        "REST takes an empty name of an optional object for none; a resource leaves it out, or says `null`",
        True,
        lambda case: case.type_of() == "ref" and case.value == "",
    ),
    Difference(
        "REST takes a time without a zone, as UTC, and one without `T`; definitions take RFC 3339 only",
        True,
        lambda case: case.type_of() == "time" and is_text(case.value) and not _is_rfc_3339(case.value),
    ),
    Difference(
        "the API server leaves `null` out where a field cannot be empty, as if it were not there; REST refuses it",
        False,
        lambda case: bool(case.type_of()) and (case.value is None or case.value == {"x": None}),
    ),
    Difference(
        "the API server leaves out fields that a definition does not have (`kubectl` refuses them before, "
        "from 1.27 on); REST refuses them",
        False,
        lambda case: case.about == ("unheard_of",),
    ),
)


def _is_rfc_3339(text: str) -> bool:
    return len(text) >= 20 and text[10] == "T" and (text.endswith("Z") or text[-6] in "+-")


@pytest.fixture
def api() -> APIClient:
    world = worlds.build()
    other = services.save(actor=SYSTEM, instance=Pool(slug="other", model="meta/other"))
    for row in (
        Project(slug="web", tenant=world.tenants["acme"]),
        Project(slug="elsewhere", tenant=world.tenants["globex"]),
        Adapter(slug="tuned", pool=world.pool, model="tuned"),
        Adapter(slug="strange", pool=other, model="strange"),
    ):
        services.save(actor=SYSTEM, instance=row)
    client = APIClient()
    client.force_login(world.users["adam"])
    return client


def refused_by_rest(api: APIClient, case: Case) -> str:
    """Empty, or what it says."""
    with transaction.atomic():
        answer = api.post(f"/api/v1/{ROUTES[case.kind]}", case.rest(), format="json")
        transaction.set_rollback(True)
    assert answer.status_code in (201, 400), (str(case), answer.content[:500])
    return "" if answer.status_code == 201 else answer.content.decode()


def refused_as_resource(case: Case) -> str:
    """Empty, or why it is: by its definition, or by the operator."""
    spec = stored(case.resource())
    if spec is None:
        return "its definition"
    with transaction.atomic():
        fault = catalog.reconcile([CustomResource(case.kind, "default", case.name, "uid", spec)])["uid"]
        transaction.set_rollback(True)
    assert "it cannot be applied" not in fault, f"{case}: no rule refused it, it broke something: {fault}"
    return fault


@pytest.mark.parametrize("kind", list(ROUTES))
def test_rest_and_resources_refuse_the_same_values(api: APIClient, kind: str) -> None:
    taken = refused = 0
    wrong: list[str] = []
    for case in (case for case in cases() if case.kind == kind):
        ours, theirs = refused_by_rest(api, case), refused_as_resource(case)
        if bool(ours) == bool(theirs):
            taken, refused = taken + (not ours), refused + bool(ours)
        elif not [one for one in DIFFERENT if one.fits(case) and one.rest_takes is not bool(ours)]:
            wrong.append(f"{case}: REST {ours[:200] or 'takes it'}, resource {theirs[:200] or 'taken'}")
    assert not wrong, "\n".join(wrong)
    assert min(taken, refused) > 20, "good and bad values are compared"


def test_each_difference_is_one_and_stands_in_the_guide(api: APIClient) -> None:
    guide = " ".join(GUIDE.read_text().split())
    for one in DIFFERENT:
        assert f"* {one.reason}" in guide
        fitting = (case for case in cases() if one.fits(case))
        found = any(
            bool(refused_by_rest(api, case)) is not one.rest_takes and bool(refused_as_resource(case)) is one.rest_takes
            for case in fitting
        )
        assert found, f"both say the same now: {one.reason}"


def test_every_field_of_a_resource_has_values() -> None:
    for kind in ROUTES:
        about = {case.about[0] for case in cases() if case.kind == kind and len(case.about) == 1}
        assert {field.attribute for field in BY_KIND[kind].fields.fields} <= about


def test_a_value_that_nobody_thought_of_holds_up_no_other_resource(api: APIClient) -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"x": deep}
    bad = CustomResource("TokenPool", "default", "bad", "1", {"model": "meta/bad", "policy": {"params": deep}})
    good = CustomResource("TokenPool", "default", "good", "2", {"model": "meta/good"})
    faults = catalog.reconcile([bad, good])
    assert faults["1"].startswith("it cannot be applied: RecursionError")
    assert faults["2"] == ""
    assert list(Pool.objects.filter(slug__in=["bad", "good"]).values_list("slug", flat=True)) == ["good"]
