"""A new pool keeps headroom by itself; one that says how much keeps that."""

from __future__ import annotations

import pytest

from tenants.models import Entitlement, Pool
from tenants.specs import load_catalog
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
