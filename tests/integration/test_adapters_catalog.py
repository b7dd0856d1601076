"""Adapters in the catalog: their names, what they belong to, who sees what, and as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db.models import ProtectedError
from rest_framework.test import APIClient

from tenants import manifest, services
from tenants.audit import SYSTEM
from tenants.models import Adapter, Entitlement, Pool
from tenants.specs import load_catalog
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    """Acme has an entitlement to an adapter of the pool."""
    world = worlds.build()
    adapter = _adapter(world, "sql", "llama-sql", upstream_model="sql-v2", source="/adapters/sql")
    services.save(
        actor=SYSTEM,
        instance=Entitlement(
            slug="acme-sql", tenant=world.tenants["acme"], pool=world.pool, adapter=adapter,
            tier=worlds.tier("standard"), concurrency=2,
        ),
    )  # fmt: skip
    return world


def _adapter(world: worlds.World, slug: str, model: str, **more: object) -> Adapter:
    return services.save(actor=SYSTEM, instance=Adapter(slug=slug, pool=world.pool, model=model, **more))


def _client(world: worlds.World, who: str) -> APIClient:
    client = APIClient()
    client.force_login(world.users[who])
    return client


def test_the_catalog_has_the_adapters_of_a_pool_and_whose_they_are(world: worlds.World) -> None:
    catalog = load_catalog()
    (spec,) = catalog.pools["llama"].adapters
    assert (spec.id, spec.model, spec.name, spec.source) == ("sql", "llama-sql", "sql-v2", "/adapters/sql")
    assert not catalog.pools["llama"].load_adapters
    assert {e.id: e.adapter for e in catalog.entitlements.values()} == {
        "acme-llama": "", "globex-llama": "", "acme-sql": "sql",
    }  # fmt: skip
    assert catalog.entitlements["acme-sql"].pool == "llama"


@pytest.mark.parametrize(
    ("field", "model", "more"),
    [
        ("model", "llama-sql", {}),  # another adapter's
        ("model", "llama-3-8b", {"upstream_model": "x"}),  # the pool's own
        ("model", "default", {}),  # an alias of the pool
        ("upstream_model", "llama-law", {"upstream_model": "sql-v2"}),  # the engines' name of another one
        ("upstream_model", "llama-law", {"upstream_model": "llama-3-8b"}),  # or of the base
        ("model", "no spaces", {}),
    ],
)
def test_a_name_stands_for_one_model(world: worlds.World, field: str, model: str, more: dict[str, str]) -> None:
    Pool.objects.filter(slug="llama").update(model="llama-3-8b", upstream_model="", aliases=["default"])
    world.pool.refresh_from_db()
    with pytest.raises(ValidationError) as refused:
        _adapter(world, "law", model, **more)
    assert set(refused.value.message_dict) == {field}


@pytest.mark.parametrize("changed", [{"model": "llama-sql"}, {"aliases": ["llama-sql"]}])
def test_a_pool_takes_no_name_of_an_adapter(world: worlds.World, changed: dict[str, object]) -> None:
    pool = Pool.objects.get(slug="llama")
    for name, value in changed.items():
        setattr(pool, name, value)
    with pytest.raises(ValidationError) as refused:
        services.save(actor=SYSTEM, instance=pool)
    assert "adapter 'sql'" in str(refused.value.message_dict[next(iter(changed))])


def test_an_entitlement_is_to_an_adapter_of_its_own_pool_for_good(world: worlds.World) -> None:
    other = services.save(actor=SYSTEM, instance=Pool(slug="other", model="other"))
    right = Entitlement.objects.get(slug="acme-llama")
    right.adapter = Adapter.objects.get(slug="sql")
    with pytest.raises(ValidationError, match="cannot change"):
        services.save(actor=SYSTEM, instance=right)
    wrong = Entitlement(
        slug="x", tenant=right.tenant, pool=other, adapter=right.adapter, tier=right.tier, concurrency=1
    )  # fmt: skip
    with pytest.raises(ValidationError, match="belongs to pool llama"):
        services.save(actor=SYSTEM, instance=wrong)


def test_an_adapter_that_somebody_may_use_is_not_deleted(world: worlds.World) -> None:
    with pytest.raises(ProtectedError):
        services.delete(actor=SYSTEM, instance=Adapter.objects.get(slug="sql"))
    services.delete(actor=SYSTEM, instance=Entitlement.objects.get(slug="acme-sql"))
    services.delete(actor=SYSTEM, instance=Adapter.objects.get(slug="sql"))
    assert load_catalog().pools["llama"].adapters == ()


def test_only_engines_that_can_be_asked_are_asked_to_load(world: worlds.World) -> None:
    pool = Pool.objects.get(slug="llama")
    pool.load_adapters = True
    services.save(actor=SYSTEM, instance=pool)
    assert load_catalog().pools["llama"].load_adapters
    pool.engine, pool.prefix_cache, pool.prefill_credit = "openai", "unsalted", 0
    with pytest.raises(ValidationError) as refused:
        services.save(actor=SYSTEM, instance=pool)
    assert set(refused.value.message_dict) == {"load_adapters"}


def test_members_see_the_adapters_they_may_use_and_not_where_they_lie(world: worlds.World) -> None:
    _adapter(world, "law", "llama-law")
    rows = {who: _client(world, who).get("/api/v1/adapters").json()["results"] for who in ("alice", "carol", "olga")}
    assert [row["slug"] for row in rows["alice"]] == ["sql"]
    assert rows["carol"] == []
    assert [row["slug"] for row in rows["olga"]] == ["law", "sql"]
    assert not {"source", "upstream_model"} & set(rows["alice"][0])
    assert {"source", "upstream_model"} <= set(rows["olga"][0])


def test_adapters_are_written_and_read_as_files(world: worlds.World, tmp_path: Path) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text(manifest.export())
    text = file.read_text()
    assert "kind: Adapter" in text
    assert "adapterRef" in text
    Entitlement.objects.filter(slug="acme-sql").update(concurrency=5)
    Adapter.objects.filter(slug="sql").update(source="/elsewhere")
    call_command("apply", "-f", str(file), "--yes")
    assert Adapter.objects.get(slug="sql").source == "/adapters/sql"
    assert Entitlement.objects.get(slug="acme-sql").adapter == Adapter.objects.get(slug="sql")
