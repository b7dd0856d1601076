"""A reader that reads only what was written holds the same catalog as one that reads everything."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tenants import services
from tenants.audit import SYSTEM
from tenants.models import ApiKey, AuditEntry, CatalogVersion, Entitlement, Project, Tenant
from tenants.specs import CatalogReader, load_catalog
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    world = worlds.build()
    services.save(actor=SYSTEM, instance=Project(slug="acme-chat", tenant=world.tenants["acme"]))
    return world


def _new(world: worlds.World, n: int, rng: random.Random) -> None:
    if rng.random() < 0.5:
        services.issue_key(actor=SYSTEM, entitlement=rng.choice(list(world.entitlements.values())), name=f"k{n}")
    else:
        project = Project.objects.get(slug="acme-chat")
        subset = ["acme-llama"] if rng.random() < 0.5 else []
        services.issue_key(actor=SYSTEM, project=project, name=f"k{n}", entitlements=subset, user="ada")


def _write(world: worlds.World, n: int, rng: random.Random) -> None:
    """One write of the kinds that happen, keys most often."""
    keys = list(ApiKey.objects.filter(revoked_at__isnull=True))
    match rng.randrange(10):
        case 0 | 1 | 2:
            _new(world, n, rng)
        case 3 | 4 if keys:
            services.revoke_key(actor=SYSTEM, key=rng.choice(keys))
        case 5 if keys:
            services.rotate_key(actor=SYSTEM, key=rng.choice(keys), overlap_s=rng.choice([0, 60]))
        case 6:
            services.save(actor=SYSTEM, instance=Tenant(slug=f"t{n}"))
        case 7:
            row = rng.choice(list(world.entitlements.values()))
            row.concurrency = rng.randrange(1, 9)
            services.save(actor=SYSTEM, instance=row)
        case 8:
            row = Entitlement(slug=f"e{n}", tenant=world.tenants["acme"], pool=world.pool, tier=worlds.tier("batch"))
            services.save(actor=SYSTEM, instance=row)
            key = services.issue_key(actor=SYSTEM, entitlement=row, name="gone with it")
            services.delete(actor=SYSTEM, instance=row)
            assert not ApiKey.objects.filter(pk=key.row.pk).exists()
        case _:
            project = Project.objects.get(slug="acme-chat")
            project.aliases = {f"a{n}": "meta/llama"}
            services.save(actor=SYSTEM, instance=project)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_written_it_reads_what_a_whole_load_reads(world: worlds.World, seed: int) -> None:
    rng, reader = random.Random(seed), CatalogReader()
    assert reader() == load_catalog()
    for n in range(25):
        for _ in range(rng.randrange(3)):
            _write(world, n * 10 + rng.randrange(10**6) * 1000, rng)
        if rng.random() < 0.7:
            assert reader() == load_catalog()


def test_a_written_key_costs_three_queries_and_the_rest_stays_as_it_is(
    world: worlds.World, django_assert_max_num_queries: Any
) -> None:
    reader = CatalogReader()
    before = reader()
    issued = services.issue_key(actor=SYSTEM, entitlement=world.entitlements["acme"], name="new")
    with django_assert_max_num_queries(3):
        after = reader()
    assert after.keys.keys() - before.keys.keys() == {issued.row.public_id}
    assert after.entitlements is before.entitlements
    assert (after.version, after.version == load_catalog().version) == (before.version + 1, True)
    services.revoke_key(actor=SYSTEM, key=world.keys["acme"].row)  # type: ignore[arg-type]
    assert before.keys.keys() - reader().keys.keys() == {world.keys["acme"].row.public_id}


def test_what_is_written_beside_keys_reads_no_key_again(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenants import specs

    reader = CatalogReader()
    before = reader()

    def read(*_: object) -> None:
        raise AssertionError("keys are read")

    monkeypatch.setattr(specs, "_key_rows", read)
    row = world.entitlements["acme"]
    row.concurrency += 1
    services.save(actor=SYSTEM, instance=row)
    services.save(actor=SYSTEM, instance=Tenant(slug="new"))
    after = reader()
    assert after.entitlements[row.slug].concurrency == before.entitlements[row.slug].concurrency + 1
    assert after.keys == before.keys


def test_an_entitlement_that_was_unreadable_for_a_moment_has_its_keys_again(world: worlds.World) -> None:
    """Read between its tier and itself, it leads nowhere, and neither do its keys; their entries are older."""
    reader = CatalogReader()
    whole, row = reader(), world.entitlements["acme"]
    lost = [key for key in whole.keys.values() if key.entitlement == row.slug]
    assert lost
    reader._last = replace(
        whole,
        entitlements={name: spec for name, spec in whole.entitlements.items() if name != row.slug},
        keys={name: key for name, key in whole.keys.items() if key not in lost},
    )
    services.save(actor=SYSTEM, instance=row)
    assert reader() == load_catalog()
    assert all(key.id in reader().keys for key in lost)


def test_a_version_without_an_entry_and_another_database_are_read_whole(world: worlds.World) -> None:
    reader = CatalogReader()
    reader()
    Entitlement.objects.update(concurrency=3)  # past the services, as a restored backup
    CatalogVersion.objects.update(version=1000)
    assert {e.concurrency for e in reader().entitlements.values()} == {3}
    Entitlement.objects.update(concurrency=4)
    AuditEntry.objects.all()._raw_delete("default")
    services.issue_key(actor=SYSTEM, entitlement=world.entitlements["acme"], name="after it")
    assert {e.concurrency for e in reader().entitlements.values()} == {4}


def test_a_failed_read_is_made_up_for_by_the_next(world: worlds.World, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenants import specs

    reader = CatalogReader()
    before = reader()
    services.issue_key(actor=SYSTEM, entitlement=world.entitlements["acme"], name="new")

    def away(*_: object) -> None:
        raise OSError("no database")

    for change in (None, Tenant(slug="t")):
        if change is not None:
            services.save(actor=SYSTEM, instance=change)
            services.issue_key(actor=SYSTEM, entitlement=world.entitlements["acme"], name="newer")
        with monkeypatch.context() as patched:
            patched.setattr(specs, "_key_rows", away)
            with pytest.raises(OSError, match="no database"):
                reader()
        services.issue_key(actor=SYSTEM, entitlement=world.entitlements["acme"], name="newest")
        assert reader() == load_catalog()
    assert replace(before, version=0) != replace(reader(), version=0)
