"""Writes: audited, versioned, published on commit, and refused with a reason."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import ProtectedError
from django.utils import timezone

from scheduling.core import types as core
from tenants import demo, keys, notify, rows, services, specs
from tenants.audit import SYSTEM
from tenants.epochs import BookedEpochs
from tenants.models import ApiKey, AuditEntry, Backend, CatalogVersion, Entitlement, Pool, Slo, Tenant, Tier, backends
from tenants.validators import place_of
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Versions that the notification announced."""
    versions: list[int] = []
    monkeypatch.setattr(notify, "listeners", [versions.append])
    return versions


def _save(instance):  # type: ignore[no-untyped-def]
    return services.save(actor=SYSTEM, instance=instance)


def test_the_shipped_tiers_are_those_of_the_contract() -> None:
    shown = {tier.slug: rows.tier_spec(tier) for tier in Tier.objects.select_related("slo")}
    assert shown["premium"] == core.TierSpec(
        "premium", core.ServiceClass.GUARANTEED, 0, 50, core.Slo(1.0, 0.1), core.OverLimit.REFUSE, 100, 30
    )
    assert shown["standard"] == core.TierSpec(
        "standard", core.ServiceClass.ELASTIC, 1, 30, core.Slo(5.0, 0.2), core.OverLimit.REFUSE, 500, 60
    )
    assert shown["batch"] == core.TierSpec(
        "batch", core.ServiceClass.SPOT, 2, 20, core.Slo(ttlt_s=600), core.OverLimit.WAIT, 5000, 600
    )


def test_processes_are_notified_once_per_transaction_and_only_on_commit(
    world: worlds.World, rung: list[int], django_capture_on_commit_callbacks
) -> None:
    version = CatalogVersion.objects.get().version
    with django_capture_on_commit_callbacks(execute=True), services.change(actor=SYSTEM):
        _save(Tenant(slug="one"))
        _save(Tenant(slug="two"))
        assert rung == []
    assert rung == [version + 1]
    assert CatalogVersion.objects.get().version == version + 1


def test_a_write_that_fails_leaves_no_trace(world: worlds.World) -> None:
    version, entries = CatalogVersion.objects.get().version, AuditEntry.objects.count()

    def write() -> None:
        with services.change(actor=SYSTEM):
            _save(Tenant(slug="good"))
            _save(Tenant(slug="Not Good"))

    with pytest.raises(ValidationError):
        write()
    assert not Tenant.objects.filter(slug="good").exists()
    assert (CatalogVersion.objects.get().version, AuditEntry.objects.count()) == (version, entries)


def test_saving_without_a_change_writes_nothing(world: worlds.World) -> None:
    version, entries = CatalogVersion.objects.get().version, AuditEntry.objects.count()
    _save(Pool.objects.get())
    assert (CatalogVersion.objects.get().version, AuditEntry.objects.count()) == (version, entries)


def test_the_audit_shows_what_changed_and_no_secret(world: worlds.World) -> None:
    world.backend.slots, world.backend.api_key = 16, "canary-engine-key"
    _save(world.backend)
    entry = AuditEntry.objects.filter(kind="backend").latest("pk")
    assert (entry.before, entry.after) == ({"slots": 32, "api_key": ""}, {"slots": 16, "api_key": "(changed)"})
    world.backend.api_key = "canary-second-key"
    _save(world.backend)
    assert AuditEntry.objects.filter(kind="backend").latest("pk").after == {"api_key": "(changed)"}


def test_audit_entries_cannot_be_changed_or_deleted(world: worlds.World) -> None:
    entry = AuditEntry.objects.first()
    with pytest.raises(TypeError):
        entry.save()
    with pytest.raises(TypeError):
        entry.delete()


def test_the_audit_outlives_what_it_tells_about(world: worlds.World) -> None:
    for key in ApiKey.objects.all():
        services.delete(actor=SYSTEM, instance=key)
    services.delete(actor=SYSTEM, instance=world.entitlements["acme"])
    services.delete(actor=SYSTEM, instance=world.tenants["acme"])
    assert AuditEntry.objects.filter(kind="tenant", object_id="acme", action="delete").count() == 1
    assert AuditEntry.objects.filter(kind="membership", action="delete").count() == 2


@pytest.mark.parametrize(
    ("instance", "field", "words"),
    [
        (lambda w: Tenant(slug="Bad Name"), "slug", "lower-case letters"),
        (lambda w: Tenant(slug="acme"), "slug", "already exists"),
        (lambda w: Slo(slug="s", ttft_s=1.0), "__all__", "Give TTFT and TBT"),
        (lambda w: Slo(slug="s", ttft_s=1.0, tbt_s=0.1, ttlt_s=5.0), "__all__", "Give TTFT and TBT"),
        (lambda w: Slo(slug="s", ttlt_s=float("inf")), "ttlt_s", "ordinary number"),
        (lambda w: Slo(slug="s", ttlt_s=float("nan")), "ttlt_s", "ordinary number"),
        (lambda w: Pool(slug="p", model="m", policy="fifoo"), "policy", "did you mean 'fifo'"),
        (lambda w: Pool(slug="p", model="m", policy="fifo", policy_params={"x": 1}), "policy_params", "no parameter"),
        (lambda w: Pool(slug="p", model="m", max_model_len=100), "__all__", "must not exceed"),
        (lambda w: Pool(slug="p", model="m", aliases=["m"]), "aliases", "own name"),
        (lambda w: Pool(slug="p", model="m", aliases=["a", "a"]), "aliases", "twice"),
        (lambda w: Backend(slug="b", pool=w.pool, url=w.backend.url), "url", "one engine counts once"),
        (lambda w: Backend(slug="b", pool=w.pool, url="http://h:1", slots=0), "slots", "greater than or equal to 1"),
        (
            lambda w: Entitlement(
                slug="e", tenant=w.tenants["acme"], pool=w.pool, tier=Tier.objects.first(), tokens_per_s=5
            ),
            "__all__",
            "needs a burst",
        ),
    ],
)
def test_a_refused_value_names_its_field_and_what_to_do(world: worlds.World, instance, field: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        _save(instance(world))
    assert words in " ".join(refused.value.message_dict[field])


def test_names_and_owners_never_change(world: worlds.World) -> None:
    entitlement = world.entitlements["acme"]
    entitlement.tenant = world.tenants["globex"]
    with pytest.raises(ValidationError, match="cannot change"):
        _save(entitlement)
    world.pool.slug = "other"
    with pytest.raises(ValidationError, match="cannot change"):
        _save(world.pool)


def test_what_others_need_is_not_deleted(world: worlds.World) -> None:
    with pytest.raises(ProtectedError):
        services.delete(actor=SYSTEM, instance=world.pool)
    assert AuditEntry.objects.filter(action="delete").count() == 0


def test_each_change_of_policy_is_a_new_version(world: worlds.World) -> None:
    pool = services.set_policy(actor=SYSTEM, pool=world.pool, policy="fifo", params={})
    assert pool.policy_version == 2
    assert services.set_policy(actor=SYSTEM, pool=pool, policy="fifo", params={}).policy_version == 2
    with pytest.raises(ValidationError):
        services.set_policy(actor=SYSTEM, pool=pool, policy="nonsense", params={})
    assert specs.load_catalog().pools["llama"].policy == "fifo"


def test_an_entitlement_beyond_the_capacity_waits_and_says_why(world: worlds.World) -> None:
    large = _save(
        Entitlement(
            slug="large", tenant=world.tenants["acme"], pool=world.pool, tier=worlds.tier("premium"), concurrency=30
        )
    )
    large.refresh_from_db()
    assert large.state == "pending"
    assert "needs 30 slots, the pool has 24 left" in large.state_reason
    _save(Backend(slug="gpu-2", pool=world.pool, url="http://10.0.0.2:8000", slots=32, kv_tokens=1))
    large.refresh_from_db()
    assert (large.state, large.state_reason) == ("bound", "")
    services.drain_backend(actor=SYSTEM, backend=world.backend, draining=True)
    large.refresh_from_db()
    assert large.state == "degraded"


def test_entitlements_begin_and_end_by_themselves(world: worlds.World) -> None:
    entitlement = world.entitlements["acme"]
    entitlement.valid_until = timezone.now() + timedelta(hours=1)
    _save(entitlement)
    version = specs.catalog_version()
    assert specs.load_catalog().entitlements["acme-llama"].state == core.EntitlementState.BOUND
    # the hour passes
    Entitlement.objects.filter(pk=entitlement.pk).update(valid_until=timezone.now() - timedelta(seconds=1))
    CatalogVersion.objects.update(next_change_at=timezone.now() - timedelta(seconds=1))
    assert specs.load_catalog().entitlements["acme-llama"].state == core.EntitlementState.EXPIRED
    assert specs.catalog_version() == version + 1
    assert specs.catalog_version() == version + 1
    entitlement.refresh_from_db()
    assert entitlement.state == "expired"
    assert CatalogVersion.objects.get().next_change_at is None


def test_the_catalog_has_active_keys_with_their_digests(world: worlds.World) -> None:
    issued = world.keys["acme"]
    catalog = specs.load_catalog()
    spec = catalog.keys[issued.row.public_id]
    assert spec.entitlement == "acme-llama"
    assert spec.digest == bytes.fromhex(keys.digest(issued.credential.secret))
    assert catalog.version == specs.catalog_version()
    assert catalog.pools["llama"].backends[0].slots == 32
    services.revoke_key(actor=SYSTEM, key=issued.row)
    assert issued.row.public_id not in specs.load_catalog().keys
    assert specs.catalog_version() == catalog.version + 1


def test_loading_the_catalog_takes_few_queries_however_large_it_is(
    world: worlds.World, django_assert_max_num_queries
) -> None:
    with services.change(actor=SYSTEM):
        for n in range(20):
            tenant = _save(Tenant(slug=f"t-{n}"))
            entitlement = _save(
                Entitlement(slug=f"e-{n}", tenant=tenant, pool=world.pool, tier=worlds.tier("standard"))
            )
            services.issue_key(actor=SYSTEM, entitlement=entitlement, name="k")
    with django_assert_max_num_queries(11):  # one for each kind of row: joined, each row would make objects of its own
        catalog = specs.load_catalog()
    assert len(catalog.entitlements) == len(catalog.keys) == 22
    with django_assert_max_num_queries(1):
        specs.catalog_version()


def test_a_rotated_key_works_on_for_its_overlap(world: worlds.World) -> None:
    old = world.keys["acme"].row
    new = services.rotate_key(actor=SYSTEM, key=old, overlap_s=3600)
    old.refresh_from_db()
    now = timezone.now()
    assert new.row.name == old.name
    assert old.status_at(now) == new.row.status_at(now) == "active"
    assert old.status_at(now + timedelta(seconds=3601)) == "expired"
    assert specs.load_catalog().keys[old.public_id].expires_s is not None


def test_rotating_without_overlap_ends_the_old_key_at_once(world: worlds.World) -> None:
    old = world.keys["acme"].row
    services.rotate_key(actor=SYSTEM, key=old)
    with pytest.raises(ValidationError, match="revoked"):
        services.rotate_key(actor=SYSTEM, key=old)
    for overlap_s in (-1, 10**9, float("nan")):
        with pytest.raises(ValidationError):
            services.rotate_key(actor=SYSTEM, key=world.keys["globex"].row, overlap_s=overlap_s)


def test_no_secret_is_in_the_database(world: worlds.World) -> None:
    from django.apps import apps

    secrets = [issued.credential.secret for issued in (*world.keys.values(), *world.tokens.values())]
    dump = "\n".join(str(list(model._default_manager.values())) for model in apps.get_models())
    assert world.keys["acme"].row.public_id in dump
    assert not [secret for secret in secrets if secret in dump]


def test_a_listener_that_fails_does_not_fail_the_write(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks
) -> None:
    def broken(version: int) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(notify, "listeners", [broken])
    with django_capture_on_commit_callbacks(execute=True):
        _save(Tenant(slug="initech"))
    assert Tenant.objects.filter(slug="initech").exists()


def test_an_absent_redis_is_one_log_line(settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.QUARTERMASTER_REDIS_URL = "redis://127.0.0.1:1/0"
    bell = notify.RedisNotifier()
    bell(1)
    bell(2)
    assert len(caplog.records) == 1
    assert "processes notice by polling" in caplog.text


def test_epoch_floors_never_fall() -> None:
    floor = BookedEpochs()
    assert floor.read("llama") == 0
    floor.raise_to("llama", 7)
    floor.raise_to("llama", 3)
    assert floor.read("llama") == 7


PASSWORDS = {"admin": "correct horse 1", "operator": "correct horse 2", "member": "correct horse 3"}
ENGINES = [("sim-1", "http://127.0.0.1:9001", 50, 100_000), ("sim-2", "http://127.0.0.1:9002", 50, 100_000)]


def test_the_demo_serves_every_shipped_tier() -> None:
    made = demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    catalog = specs.load_catalog()
    for tier, text in made.as_dict().items():
        credential = keys.parse(text)
        spec = catalog.keys[credential.public_id]
        entitlement = catalog.entitlements[spec.entitlement]
        assert spec.digest == bytes.fromhex(credential.digest)
        assert (entitlement.tier.name, entitlement.state) == (tier, core.EntitlementState.BOUND)
    sizes = {e.tier.name: e.concurrency for e in catalog.entitlements.values()}
    assert sizes == {"premium": 40, "standard": 40, "batch": 100}
    assert get_user_model().objects.get(username="admin").check_password(PASSWORDS["admin"])


@pytest.mark.parametrize(("caches", "routing"), [(True, "prefix_affinity"), (False, "least_work")])
def test_a_pool_of_engines_with_prefix_caches_places_prompts_by_them(caches: bool, routing: str) -> None:
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS, caches=caches)
    assert Pool.objects.get().routing == routing


def test_a_second_start_keeps_keys_follows_engines_and_leaves_what_people_did() -> None:
    first = demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    globex = Entitlement.objects.get(tenant__slug="globex")
    globex.concurrency = 7
    _save(globex)
    admin = get_user_model().objects.get(username="admin")
    admin.set_password("a person chose this")
    admin.save()
    moved = [("sim-1", "http://127.0.0.1:9002", 20, 100_000)]
    second = demo.ensure_demo("llama-8b", "llama", moved, passwords=PASSWORDS, remembered=first.as_dict())
    assert second == first
    assert [(b.slug, b.url) for b in Backend.objects.all()] == [("sim-1", "http://127.0.0.1:9002")]
    assert Entitlement.objects.get(tenant__slug="globex").concurrency == 7
    assert Entitlement.objects.get(tenant__slug="acme").concurrency == 8
    admin.refresh_from_db()
    assert admin.check_password("a person chose this")
    assert ApiKey.objects.count() == 3


def test_the_demos_engines_have_the_key_they_were_given_and_else_keep_what_a_person_gave() -> None:
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS, api_key="given")
    assert {backend.api_key for backend in Backend.objects.all()} == {"given"}
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    assert {backend.api_key for backend in Backend.objects.all()} == {"given"}


def test_the_demos_pool_has_the_kind_of_engine_it_was_given_and_else_keeps_what_a_person_chose() -> None:
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    assert Pool.objects.get().engine == "vllm"
    assert Pool.objects.get().prefix_cache == "isolated"
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS, engine="sglang")
    assert (Pool.objects.get().engine, Pool.objects.get().prefix_cache) == ("sglang", "unsalted")
    demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    assert Pool.objects.get().engine == "sglang"


def test_the_demo_makes_a_new_key_for_one_that_was_revoked_and_restores_one_that_was_lost() -> None:
    first = demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS)
    services.revoke_key(actor=SYSTEM, key=ApiKey.objects.get(entitlement__tier__slug="premium"))
    services.delete(actor=SYSTEM, instance=ApiKey.objects.get(entitlement__tier__slug="batch"))
    second = demo.ensure_demo("llama-8b", "llama", ENGINES, passwords=PASSWORDS, remembered=first.as_dict())
    assert second.premium != first.premium
    assert (second.standard, second.batch) == (first.standard, first.batch)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("http://gpu-9:8000", "http://GPU-9:8000"),
        ("http://gpu-9", "http://gpu-9:80"),
        ("https://gpu-9.lan:443", "https://gpu-9.lan."),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://localhost:8000"),
        ("http://[fd00:0::9]:8000", "http://[fd00::9]:8000"),
        ("http://gpu-9:8443", "https://gpu-9:8443"),
        ("http://localhost:8000", "http://0.0.0.0:8000"),
        ("http://[::ffff:10.0.0.9]:8000", "http://10.0.0.9:8000"),
        ("http://10.0.0.9:8000", "http://[::ffff:a00:9]:8000"),
        ("http://bücher.lan:8000", "http://BÜCHER.lan:8000"),
    ],
)
def test_one_engine_is_one_backend_however_its_address_is_spelt(world: worlds.World, first: str, second: str) -> None:
    there = _save(Backend(slug="first", pool=world.pool, url=first, slots=32, kv_tokens=1))
    with pytest.raises(ValidationError) as refused:
        _save(Backend(slug="second", pool=world.pool, url=second, slots=32, kv_tokens=1))
    assert refused.value.message_dict["url"] == [
        f"first is at {first}, which is the same address. Another backend has this URL; one engine counts once."
    ]
    there.url = second
    _save(there)  # it may be spelt otherwise itself
    assert Backend.objects.get(slug="first").url == second


def test_a_new_backend_is_not_compared_with_thousands_whose_names_are_other(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Backend.objects.bulk_create(
        Backend(slug=f"b{n}", pool=world.pool, url=f"http://gpu-{n}.lan:8000", slots=1, kv_tokens=1) for n in range(50)
    )
    compared: list[str] = []

    def noted(url: str) -> tuple[str, int]:
        compared.append(url)
        return place_of(url)

    monkeypatch.setattr(backends, "place_of", noted)
    _save(Backend(slug="new", pool=world.pool, url="http://GPU-7.lan:8001", slots=1, kv_tokens=1))
    assert compared == ["http://GPU-7.lan:8001", "http://gpu-7.lan:8000"]


def test_a_backend_whose_address_is_there_twice_already_can_be_drained(world: worlds.World) -> None:
    Backend.objects.bulk_create(
        [Backend(slug=slug, pool=world.pool, url=f"http://{slug}:8000", slots=1, kv_tokens=1) for slug in ("h", "H")]
    )
    h = Backend.objects.get(slug="h")
    h.draining = True
    _save(h)
    assert Backend.objects.get(slug="h").draining


@pytest.mark.parametrize("other", ["http://127.0.0.2:8000", "http://gpu-1:8001", "http://gpu-10:8000"])
def test_other_hosts_and_ports_are_other_engines(other: str) -> None:
    assert place_of("http://127.0.0.1:8000") != place_of(other) != place_of("http://gpu-1:8000")
