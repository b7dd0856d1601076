"""The catalog as YAML: export and apply are inverse, the difference shows first, faults have a line."""

from __future__ import annotations

import errno
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
import yaml
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.test.utils import CaptureQueriesContext

from tenants import manifest, services
from tenants.audit import SYSTEM
from tenants.manifest.kinds import KINDS
from tenants.models import (
    Adapter,
    ApiKey,
    AuditEntry,
    Backend,
    Budget,
    CatalogVersion,
    Entitlement,
    GroupRule,
    Membership,
    Pool,
    Price,
    Project,
    Quota,
    Tenant,
    Tier,
)
from tests.support import worlds

pytestmark = pytest.mark.django_db

TENANT_A = "- {kind: Tenant, metadata: {name: a}, spec: {}}\n"
GOLD = "- kind: Tier\n  metadata: {name: gold}\n  spec:\n    slo: interactive\n"
EXAMPLE = Path(__file__).parents[2] / "docs" / "guide" / "manifest.md"


@pytest.fixture
def world() -> worlds.World:
    world = worlds.build()
    world.backend.api_key = "canary-engine-key"
    services.save(actor=SYSTEM, instance=world.backend)
    entitlement = world.entitlements["globex"]
    entitlement.valid_until = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
    entitlement.tokens_per_s, entitlement.burst_tokens = 1500.5, 15_000
    services.save(actor=SYSTEM, instance=entitlement)
    return world


def _apply(tmp_path: Path, text: str, *options: str) -> str:
    file = tmp_path / "catalog.yaml"
    file.write_text(text)
    out = StringIO()
    call_command("apply", "-f", str(file), *options, stdout=out, no_color=True)
    return out.getvalue()


def _refused(tmp_path: Path, text: str, *options: str) -> str:
    version = CatalogVersion.objects.get_or_create(pk=1)[0].version
    with pytest.raises(CommandError) as refused:
        _apply(tmp_path, text, "--yes", *options)
    assert CatalogVersion.objects.get().version == version
    return str(refused.value)


def _list(*items: str) -> str:
    return "apiVersion: quartermaster/v1\nkind: List\nitems:\n" + "".join(items)


def test_applying_an_export_changes_nothing(world: worlds.World, tmp_path: Path) -> None:
    version = CatalogVersion.objects.get().version
    assert _apply(tmp_path, manifest.export(), "--yes", "--prune") == "No change.\n"
    assert CatalogVersion.objects.get().version == version


def test_an_export_makes_the_same_catalog_elsewhere_except_for_keys(world: worlds.World, tmp_path: Path) -> None:
    ApiKey.objects.all().delete()
    exported = manifest.export()
    for model in (Entitlement, Membership, Tenant, Backend, Pool, Tier, get_user_model()):
        model._default_manager.all().delete()
    _apply(tmp_path, exported, "--yes")
    assert manifest.export() == exported
    assert not get_user_model().objects.get(username="alice").has_usable_password()


def _one_of_each_kind(world: worlds.World) -> None:
    """What a world has not: with as little said as may be, and with all of it."""
    acme, pool = world.tenants["acme"], world.pool
    law = Adapter(slug="law", pool=pool, model="llama-law")
    rows: list[models.Model] = [
        law, Project(slug="chat", tenant=acme),
        Project(slug="code", tenant=acme, aliases={"gpt-4o": "meta/llama"}, default_model="gpt-4o", user_concurrency=3),
        Entitlement(slug="acme-law", tenant=acme, pool=pool, adapter=law, tier=worlds.tier("batch"), concurrency=1),
        Quota(tenant=acme, period="day", hard_tokens=10), Quota(tenant=acme, period="month", soft_tokens=20),
        Price(pool=pool, valid_from=datetime(2026, 1, 1, tzinfo=UTC), per_million_output=Decimal("0.4")),
        Price(pool=pool, valid_from=datetime(2026, 3, 1, tzinfo=UTC), per_million_output=Decimal("0.5")),
        Price(
            pool=pool, model="llama-law", valid_from=datetime(2030, 1, 1, tzinfo=UTC), currency="EUR",
            per_million_cached=Decimal("0.000001"), per_million_input=Decimal("12345678.123456"),
        ),
        Budget(tenant=acme, scope="tenant", currency="USD", hard_amount=Decimal("9.99"), alert_at=[50, 80]),
        Budget(tenant=acme, scope="user", name="ada", currency="USD", soft_amount=Decimal("0.1")),
        Budget(tenant=acme, scope="key", name=world.keys["acme"].row.public_id, currency="USD", hard_amount=Decimal(5)),
        GroupRule(group="staff", role="operator"), GroupRule(group="acme", role="member", tenant=acme),
    ]  # fmt: skip
    for row in rows:
        services.save(actor=SYSTEM, instance=row)


def test_an_export_has_every_kind_and_makes_the_same_elsewhere(world: worlds.World, tmp_path: Path) -> None:
    _one_of_each_kind(world)
    exported = manifest.export()
    items = yaml.safe_load(exported)["items"]
    assert {item["kind"] for item in items} == {kind.name for kind in KINDS if not kind.inside}
    assert _apply(tmp_path, exported, "--yes", "--prune") == "No change.\n"
    kinds = (ApiKey, Budget, Price, Quota, GroupRule, Entitlement, Project, Adapter, Membership, Tenant, Backend, Pool)
    for model in kinds:
        model._default_manager.all().delete()
    said = _apply(tmp_path, exported, "--yes")
    assert "its key is not here" in said
    elsewhere = yaml.safe_load(manifest.export())["items"]
    with_secrets = [item for item in items if item["kind"] == "ApiKey" or item["spec"].get("scope") == "key"]
    assert elsewhere == [item for item in items if item not in with_secrets]


def test_keys_are_named_and_never_made(world: worlds.World, tmp_path: Path) -> None:
    exported = manifest.export()
    issued = world.keys["acme"]
    assert issued.row.public_id in exported
    assert issued.credential.secret not in exported
    assert issued.row.digest not in exported
    assert "canary" not in exported
    services.delete(actor=SYSTEM, instance=issued.row)
    said = _apply(tmp_path, exported, "--yes")
    assert "a file holds no secret" in said
    assert not ApiKey.objects.filter(public_id=issued.row.public_id).exists()


def test_the_difference_is_shown_and_a_dry_run_changes_nothing(world: worlds.World, tmp_path: Path) -> None:
    text = manifest.export().replace("concurrency: 8", "concurrency: 9").replace("slots: 32", "slots: 48")
    said = _apply(tmp_path, text, "--dry-run")
    assert "~ Backend gpu-1\n    slots: 32 -> 48\n" in said
    assert "~ TokenEntitlement acme-llama\n    resources.concurrency: 8 -> 9\n" in said
    assert Backend.objects.get().slots == 32
    _apply(tmp_path, text, "--yes")
    assert Backend.objects.get().slots == 48
    assert Backend.objects.get().api_key == "canary-engine-key"
    assert AuditEntry.objects.filter(via="cli", kind="backend").get().after == {"slots": 48}


def test_all_of_a_file_is_one_version(world: worlds.World, tmp_path: Path) -> None:
    version = CatalogVersion.objects.get().version
    _apply(tmp_path, manifest.export().replace("concurrency: 8", "concurrency: 9"), "--yes")
    assert CatalogVersion.objects.get().version == version + 1


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "slots"), [("y", 48), ("n", 32), ("", 32)])
def test_a_person_at_a_terminal_is_asked(
    world: worlds.World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, slots: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    with suppress(CommandError):
        _apply(tmp_path, manifest.export().replace("slots: 32", "slots: 48"))
    assert Backend.objects.get().slots == slots


def test_a_pipeline_applies_without_being_asked_but_deletes_only_with_yes(
    world: worlds.World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    exported = manifest.export()
    assert "slots: 32 -> 48" in _apply(tmp_path, exported.replace("slots: 32", "slots: 48"))
    assert Backend.objects.get().slots == 48
    services.save(actor=SYSTEM, instance=Tenant(slug="old"))
    with pytest.raises(CommandError, match="use --yes"):
        _apply(tmp_path, exported, "--prune")
    assert Tenant.objects.filter(slug="old").exists()


@pytest.mark.parametrize("text", ["a: \x00b", "[" * 5000, "a: {" * 5000])
def test_what_no_parser_reads_is_a_fault_and_not_a_crash(tmp_path: Path, text: str) -> None:
    assert "catalog.yaml:1" in _refused(tmp_path, text)


def test_an_export_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export", "-f", str(tmp_path))


def test_an_export_that_finds_no_room_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "catalog.yaml", tmp_path / "link.yaml"
    path.write_text("as it was")
    path.chmod(0o640)
    link.symlink_to(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(CommandError, match="cannot be written: No space left"):
            call_command("export", "-f", str(link))
    assert path.read_text() == "as it was"
    call_command("export", "-f", str(link))
    assert path.read_text() == manifest.export()
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["catalog.yaml", "link.yaml"]


def test_what_a_file_does_not_mention_stays_as_it_is(world: worlds.World, tmp_path: Path) -> None:
    text = _list("- {kind: TokenPool, metadata: {name: llama}, spec: {limits: {queueLimit: 5}}}\n")
    assert (
        _apply(tmp_path, text, "--yes") == "~ TokenPool llama\n    limits.queueLimit: 10000 -> 5\nApplied 1 changes.\n"
    )
    assert Pool.objects.get().model == "meta/llama"
    assert Tenant.objects.count() == 2


def test_prune_deletes_what_is_missing_of_the_kinds_in_the_file(world: worlds.World, tmp_path: Path) -> None:
    services.save(actor=SYSTEM, instance=Tenant(slug="old"))
    text = _list(
        "- {kind: Tenant, metadata: {name: acme}, spec: {}}\n- {kind: Tenant, metadata: {name: globex}, spec: {}}\n"
    )
    assert "- Tenant old" in _apply(tmp_path, text, "--yes", "--prune")
    assert sorted(Tenant.objects.values_list("slug", flat=True)) == ["acme", "globex"]
    assert Pool.objects.exists()


def test_prune_refuses_what_is_still_needed(world: worlds.World, tmp_path: Path) -> None:
    text = _list("- {kind: Tenant, metadata: {name: acme}, spec: {}}\n")
    assert "Tenant globex cannot be deleted: needed by entitlement globex-llama" in _refused(tmp_path, text, "--prune")


def test_several_documents_may_stand_in_one_file(tmp_path: Path) -> None:
    one = "apiVersion: quartermaster/v1\nkind: Tenant\nmetadata: {name: %s}\nspec: {}\n"
    _apply(tmp_path, one % "a" + "---\n" + one % "b", "--yes")
    assert Tenant.objects.count() == 2


def test_the_example_of_the_documentation_applies(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().split("```yaml\n")[1].split("```")[0]
    said = _apply(tmp_path, text, "--yes")
    assert "+ TokenPool" in said
    assert "+ TokenEntitlement" in said
    assert _apply(tmp_path, text, "--yes") == "No change.\n"
    assert set(Entitlement.objects.values_list("state", flat=True)) == {"bound"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: there is no object"),
        ("a: [", ":1: "),
        ("a: 1\na: 2\n", ":2: 'a' is given twice"),
        ("a: !!bool maybe\n", ":1: a: 'maybe' cannot be read"),
        ("a: !!int ''\n", ":1: a: '' cannot be read"),
        ('a: "\\ud800"\n', r":1: a: '\ud800' cannot be read"),
        ("- 1\n", ":1: expected an object"),
        ("apiVersion: v2\nkind: Tenant\n", ":1: apiVersion: apiVersion must be quartermaster/v1"),
        ("apiVersion: quartermaster/v1\nkind: List\nitem: []\n", "a List needs items"),
        (_list("- &x {kind: Tenant, metadata: {name: a}, spec: {}}\n- *x\n"), ":5: aliases"),
        (_list("- {kind: Tenan, metadata: {name: a}, spec: {}}\n"), ":4: items[0].kind: kind must be one of Slo, Tier"),
        (_list("- {kind: Tenant, spec: {}}\n"), ":4: items[0]: metadata is missing"),
        (_list("- {kind: Tenant, metadata: {name: 7}, spec: {}}\n"), "put quotes around a number"),
        (_list(TENANT_A, TENANT_A),
         ":5: items[1]: Tenant 'a' already stands at line 4"),
        (_list(GOLD + "    wieght: 3\n"),
         ":8: items[0].spec.wieght: Tier has no field 'wieght'; did you mean 'weight'?"),
        (_list(GOLD + "    weight: heavy\n"),
         ":8: items[0].spec.weight: must be a number, not 'heavy'"),
        (_list(GOLD + "    weight: -1\n"),
         ":8: items[0].spec.weight: Ensure this value is greater"),
        (_list(GOLD.replace("interactive", "fast")), ":7: items[0].spec.slo: there is no SLO 'fast'"),
        (_list("- kind: Tier\n  metadata: {name: gold}\n  spec: {}\n"), "Tier gold: slo is missing"),
        (_list("- kind: TokenPool\n  metadata: {name: p}\n  spec:\n    model: m\n    backends:\n    - {name: b, url: 'http://h/v1'}\n"),
         ":9: items[0].spec.backends[0].url: 'http://h/v1' must not have a path"),
        (_list("- {kind: Backend, metadata: {name: b}, spec: {}}\n"), "kind must be one of"),
        (_list("- {kind: Membership, metadata: {name: x}, spec: {user: a, role: admin}}\n"), "must be 'a@all'"),
        (_list("- {kind: Membership, metadata: {name: a@all}, spec: {user: a, role: member}}\n"), "needs a tenant;"),
        (_list("- {kind: Tenant, metadata: {name: Bad Name}, spec: {}}\n"), "lower-case letters"),
    ],
)  # fmt: skip
def test_a_fault_says_where_and_what(text: str, message: str, tmp_path: Path) -> None:
    assert message in _refused(tmp_path, text)


def test_every_fault_is_reported_not_only_the_first(tmp_path: Path) -> None:
    text = _list(
        "- {kind: Tenant, metadata: {name: a}, spec: {colour: red, size: 3}}\n",
        "- {kind: Nonsense, metadata: {name: a}, spec: {}}\n",
    )
    said = _refused(tmp_path, text)
    assert all(word in said for word in ("colour", "size", "items[1].kind"))


def test_all_that_the_catalog_refuses_is_reported_without_what_follows_from_it(
    world: worlds.World, tmp_path: Path
) -> None:
    def entitlement(name: str, tier: str, concurrency: int, pool: str = "llama-3-8b") -> str:
        return (
            f"- kind: TokenEntitlement\n  metadata: {{name: {name}}}\n  spec:\n    tenantRef: {{name: a}}\n"
            f"    poolRef: {{name: {pool}}}\n    qos: {{tier: {tier}}}\n    resources: {{concurrency: {concurrency}}}\n"
        )

    pool, tier = world.pool.slug, world.entitlements["acme"].tier.slug
    broken = "- {kind: TokenPool, metadata: {name: broken}, spec: {model: 'm', policy: {name: nosuch}}}\n"
    text = _list(
        broken + TENANT_A + entitlement("one", "gold", 1, pool) + entitlement("two", tier, 0, pool)
        + entitlement("three", tier, 1, "broken")
    )  # fmt: skip
    with pytest.raises(CommandError) as told:
        _apply(tmp_path, text, "--dry-run")
    faults = str(told.value).splitlines()[1:]
    assert len(faults) == 3, faults
    assert "nosuch" in faults[0]
    assert "no tier 'gold'" in faults[1]
    assert "concurrency" in faults[2]
    assert not Tenant.objects.filter(slug="a").exists()


def test_a_late_fault_undoes_everything_before_it(world: worlds.World, tmp_path: Path) -> None:
    text = _list(
        "- {kind: Tenant, metadata: {name: new}, spec: {}}\n",
        "- kind: TokenEntitlement\n  metadata: {name: new-llama}\n  spec:\n    tenantRef: {name: new}\n"
        "    poolRef: {name: llama}\n    qos: {tier: premium}\n    resources: {tokensPerSecond: 5}\n",
    )
    assert "needs a burst" in _refused(tmp_path, text)
    assert not Tenant.objects.filter(slug="new").exists()


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(CommandError, match=r"nowhere\.yaml cannot be read"):
        call_command("apply", "-f", "/nowhere.yaml")


def test_export_writes_a_file(world: worlds.World, tmp_path: Path) -> None:
    call_command("export", "-f", str(tmp_path / "out.yaml"))
    assert (tmp_path / "out.yaml").read_text() == manifest.export()


def test_a_token_from_the_command_line_opens_the_api(world: worlds.World) -> None:
    from rest_framework.test import APIClient

    out = StringIO()
    call_command("token", "olga", "--days", "1", stdout=out)
    client = APIClient(HTTP_AUTHORIZATION=f"Bearer {out.getvalue().strip()}")
    assert client.get("/api/v1/me").json()["role"] == "operator"
    with pytest.raises(CommandError, match="no user 'nobody'"):
        call_command("token", "nobody")


def test_an_older_export_applies_and_what_means_nothing_any_more_is_named(tmp_path: Path):
    before = manifest.export()
    older = before.replace("    overLimit: refuse\n", "    safetyFactor: 1.2\n    overLimit: refuse\n")
    line = 1 + older.splitlines().index("    safetyFactor: 1.2")
    told = _apply(tmp_path, older, "--yes")
    assert f"catalog.yaml:{line}" in told
    assert "ignored: tiers have no safety factor any more (it changed nothing); take the line out" in told
    assert "No change." in told
    assert manifest.export() == before


def test_a_tiers_largest_grammar_is_in_the_file(tmp_path: Path):
    _apply(tmp_path, _list(GOLD + "    maxGrammarBytes: 4096\n"), "--yes")
    assert Tier.objects.get(slug="gold").max_grammar_bytes == 4096
    assert "maxGrammarBytes: 4096" in manifest.export()
    told = _refused(tmp_path, _list(GOLD + "    maxGrammarBytes: 999999\n"))
    assert "131072" in told


def _projects(number: int) -> str:
    one = "- {kind: Project, metadata: {name: p-%d}, spec: {tenantRef: {name: acme}}}\n"
    return _list(*(one % i for i in range(number)))


@pytest.mark.parametrize("options", [(), ("--yes",)])
def test_where_nobody_is_asked_each_object_is_written_once(
    world: worlds.World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    with CaptureQueriesContext(connection) as queries:
        assert "Applied 5 changes." in _apply(tmp_path, _projects(5), *options)
    written = [query["sql"] for query in queries if query["sql"].startswith("INSERT")]
    assert sum("tenants_project" in sql for sql in written) == 5


def test_what_many_objects_name_is_read_once(world: worlds.World, tmp_path: Path) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert "Applied 20 changes." in _apply(tmp_path, _projects(20), "--yes")
    by_name = [query["sql"] for query in queries if '"tenants_tenant"."slug" = ' in query["sql"]]
    assert len(by_name) == 1
    heads = [q["sql"] for q in queries if 'FROM "tenants_audithead"' in q["sql"]]
    assert len(heads) <= 21  # of the audit log, one for each entry, and one that makes it


def test_figures_of_a_new_backend_that_a_file_leaves_out_are_named() -> None:
    """The smaller one of these and the engine's is in force: an engine that has more would be left half empty."""
    file = """
apiVersion: quartermaster/v1
kind: TokenPool
metadata: {name: p1}
spec:
  model: m
  backends:
  - {name: g1, url: 'http://gpu-1:8000'}
  - {name: g2, url: 'http://gpu-2:8000', slots: 64}
  - {name: g3, url: 'http://gpu-3:8000', slots: 64, kvTokens: 400000}
"""
    wanted = manifest.plan(manifest.read(file, "f.yaml"))
    first, second = wanted.notes
    assert "g1" in first
    assert first.endswith("slots will be 32 and kvTokens will be 200,000, whatever its engine has: say how many")
    assert "g2" in second
    assert second.endswith(": kvTokens will be 200,000, whatever its engine has: say how many")
    manifest.apply(wanted, actor=SYSTEM)
    assert manifest.plan(manifest.read(file, "f.yaml")).notes == []
