"""A new pool keeps headroom by itself; one that says how much keeps that."""

from __future__ import annotations

import pytest

from tenants.models import Entitlement, Pool
from tenants.specs import load_catalog, pool_and_entitlements
from tests.support import worlds

pytestmark = pytest.mark.django_db


def test_a_new_pool_keeps_a_part_of_its_slots_for_baselines_and_a_number_stands() -> None:
    worlds.build()
    pool = Pool.objects.get(slug="llama")
    assert pool.headroom_slots is None
    slots = sum(backend.slots for backend in pool.backends.all())
    assert load_catalog().pools["llama"].headroom_slots == round(slots / 6)
    last = Entitlement.objects.filter(pool=pool).order_by("pk").first()
    Entitlement.objects.filter(pool=pool).exclude(pk=last.pk).delete()
    assert load_catalog().pools["llama"].headroom_slots == 0  # nobody else to keep it for
    Pool.objects.filter(slug="llama").update(headroom_slots=0)
    assert load_catalog().pools["llama"].headroom_slots == 0
    Pool.objects.filter(slug="llama").update(headroom_slots=7)
    assert load_catalog().pools["llama"].headroom_slots == 7


def test_the_lab_takes_a_pool_and_its_entitlements_as_the_catalog_has_them() -> None:
    worlds.build()
    for fixed in (None, 0, 7):
        Pool.objects.filter(slug="llama").update(headroom_slots=fixed)
        catalog = load_catalog()
        spec, entitlements = pool_and_entitlements(Pool.objects.get(slug="llama"))
        assert spec == catalog.pools["llama"]
        assert {e.id: e for e in entitlements} == {e.id: e for e in catalog.entitlements.values() if e.pool == "llama"}
