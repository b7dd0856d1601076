"""Resources at fault among many that are not: what one look costs, and that it has an end."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kubernetes import catalog
from controlplane.kubernetes.catalog import CustomResource
from tenants.models import Tenant

pytestmark = pytest.mark.django_db

reconcile = catalog.reconcile.__wrapped__  # without closing the connection that holds the test's transaction


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many resources each transaction had."""
    apply, seen = catalog._apply, []

    def counted(objects: list[CustomResource], actor: Any) -> None:
        seen.append(len(objects))
        apply(objects, actor)

    monkeypatch.setattr(catalog, "_apply", counted)
    return seen


def tenants(count: int) -> list[CustomResource]:
    return [CustomResource("Tenant", "search", f"t{n}", f"t{n}", {}) for n in range(count)]


def of_nobody(count: int) -> list[CustomResource]:
    spec = {"tenantRef": {"name": "nobody"}, "poolRef": {"name": "none"}, "qos": {"tier": "none"}}
    return [CustomResource("TokenEntitlement", "research", f"bad{n}", f"bad{n}", spec) for n in range(count)]


def test_one_fault_costs_two_more_transactions_however_many_there_are(sizes: list[int]) -> None:
    for _ in range(2):  # also each 15 s after that
        sizes.clear()
        said = reconcile([*of_nobody(1), *tenants(40)])
        assert "there is no" in said.pop("bad0")
        assert set(said.values()) == {""}
        assert sizes == [41, 40, 1]
    assert Tenant.objects.filter(slug__startswith="t").count() == 40


def test_a_fault_that_names_nobody_is_found_by_halves(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    apply = catalog._apply

    def breaking(objects: list[CustomResource], actor: Any) -> None:
        if any(one.name == "t21" for one in objects):
            sizes.append(len(objects))
            raise RecursionError("too deep")
        apply(objects, actor)

    monkeypatch.setattr(catalog, "_apply", breaking)
    said = reconcile(tenants(40))
    assert said.pop("t21") == "it cannot be applied: RecursionError: too deep"
    assert set(said.values()) == {""}
    assert len(sizes) < 20


def test_many_faults_end_a_look_and_all_that_is_left_is_said_in_the_next_ones(sizes: list[int]) -> None:
    """As the operator asks: what was at fault is tried alone, and what was not come to is asked again."""
    bad, good = of_nobody(catalog.TRIES * 2), tenants(5)
    said: dict[str, str] = {}
    for look in range(20):
        sizes.clear()
        asked = [one for one in [*bad, *good] if one.uid not in said]
        said |= reconcile(asked, {uid for uid, fault in said.items() if fault})
        assert len(sizes) <= catalog.TRIES, look
    assert set(said) == {one.uid for one in [*bad, *good]}
    assert [said[one.uid] for one in good] == [""] * 5
    sizes.clear()  # and each 15 s after that
    again = reconcile([*bad, *good], {uid for uid, fault in said.items() if fault})
    assert sizes == [5, *[1] * (catalog.TRIES - 1)], "those that fit go first and at once"
    assert [again[one.uid] for one in good] == [""] * 5
