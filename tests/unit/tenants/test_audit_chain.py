"""The audit log as a chain: what is edited, deleted, put in or moved is found, and retention is no break."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import audit_chain, services
from tenants.audit import REFUSALS_A_MINUTE, SYSTEM
from tenants.csv_cells import plain
from tenants.models import AuditEntry, AuditHead, Slo, Tenant
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def log(*, many: int = 6) -> list[int]:
    """Numbers of some changes, one after the other, with numbers and texts of every kind in them."""
    for n in range(many):
        services.save(
            actor=SYSTEM,
            instance=Slo(slug=f"s-{n}", ttft_s=0.1 * (n + 1), tbt_s=0.0012345678, description='ä"\\ € \u2028'),
        )
    return list(AuditEntry.objects.order_by("-number").values_list("number", flat=True)[:many])[::-1]


def faults() -> list[str]:
    return audit_chain.verify().faults


def test_a_log_that_nobody_touched_is_whole(world: worlds.World) -> None:
    log()
    report = audit_chain.verify()
    assert report.faults == []
    assert report.entries == AuditEntry.objects.count() > 10


@pytest.mark.parametrize(
    "edit",
    [
        {"actor": "somebody else"},
        {"action": "delete"},
        {"via": "cli"},
        {"kind": "tier"},
        {"object_id": "another"},
        {"before": {"a": 1}},
        {"after": {"slug": "s-2"}},
        {"after": None},
        {"address": "10.0.0.1"},
        {"outcome": "refused"},
        {"tenant_name": "acme"},
        {"request_id": "x"},
        {"at": timezone.now() - timedelta(days=1)},
        {"digest": "0" * 64},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_edited_entry_is_found(world: worlds.World, edit: dict[str, object]) -> None:
    number = log()[2]
    AuditEntry.objects.filter(number=number).update(**edit)
    assert any(f"entry {number} " in fault for fault in faults())


def test_a_deleted_entry_is_found(world: worlds.World) -> None:
    numbers = log()
    AuditEntry.objects.filter(number=numbers[2])._raw_delete("default")
    assert faults() == [f"Missing: entry {numbers[2]}."]
    AuditEntry.objects.filter(number=numbers[3])._raw_delete("default")
    assert faults() == [f"Missing: entry {numbers[2]} to {numbers[3]}."]


def test_a_log_whose_end_or_beginning_was_cut_off_is_found(world: worlds.World) -> None:
    numbers = log()
    AuditEntry.objects.filter(number=numbers[-1])._raw_delete("default")
    assert faults() == [f"Missing: the end of the log. It ends at entry {numbers[-2]}, and {numbers[-1]} were written."]
    AuditEntry.objects.filter(number__lte=numbers[2])._raw_delete("default")
    assert f"Missing: entry 1 to {numbers[2]}." in faults()


def test_entries_that_changed_places_are_found(world: worlds.World) -> None:
    one, other = log()[1:3]
    for old, new in ((one, 10**9), (other, one), (10**9, other)):
        AuditEntry.objects.filter(number=old).update(number=new)
    said = " ".join(faults())
    assert f"entry {one} " in said
    assert f"entry {other} " in said


def test_a_row_that_was_put_in_beside_the_chain_is_found(world: worlds.World) -> None:
    log()
    AuditEntry.objects.bulk_create([AuditEntry(actor="eve", via="api", action="create", kind="tenant", object_id="x")])
    assert [fault.partition(":")[0] for fault in faults()] == ["Put in"]


def test_a_row_that_was_put_in_behind_the_end_is_found(world: worlds.World) -> None:
    end = log()[-1]
    row = AuditEntry(actor="eve", via="api", action="create", kind="tenant", object_id="x", number=end + 1, digest="0")
    AuditEntry.objects.bulk_create([row])
    assert [fault.partition(":")[0] for fault in faults()] == ["Put in"]


def test_what_is_written_while_the_chain_is_read_is_no_fault(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log()
    read = audit_chain._check_beginning

    def meanwhile(report: audit_chain.Report, head: AuditHead) -> None:
        services.save(actor=SYSTEM, instance=Slo(slug="meanwhile", ttft_s=1.0, tbt_s=0.1))
        read(report, head)

    monkeypatch.setattr(audit_chain, "_check_beginning", meanwhile)
    assert faults() == []


def test_a_chain_that_was_computed_anew_does_not_hold_an_earlier_end(world: worlds.World) -> None:
    numbers = log()
    anchor = audit_chain.verify().end
    assert audit_chain.verify(anchor).faults == []
    AuditEntry.objects.filter(number=numbers[2]).update(actor="eve")
    before = AuditEntry.objects.get(number=numbers[2] - 1).digest
    for row in AuditEntry.objects.filter(number__gte=numbers[2]).order_by("number"):
        before = audit_chain.digest_of(row, before)
        AuditEntry.objects.filter(pk=row.pk).update(digest=before)
    AuditHead.objects.update(digest=before)
    assert audit_chain.verify().faults == []
    assert [fault.partition(":")[0] for fault in audit_chain.verify(anchor).faults] == ["Written anew"]


def test_a_tenant_that_is_deleted_breaks_nothing(world: worlds.World) -> None:
    gone = services.save(actor=SYSTEM, instance=Tenant(slug="gone"))
    services.delete(actor=SYSTEM, instance=gone)
    assert AuditEntry.objects.filter(object_id="gone", action="create").get().tenant_name == "gone"
    assert faults() == []


def test_retention_deletes_the_oldest_and_the_rest_can_still_be_verified(world: worlds.World) -> None:
    log()
    kept = AuditEntry.objects.order_by("-number")[2]
    anchor = audit_chain.verify().end
    gone = audit_chain.retain(kept.at)
    assert gone > 0
    assert AuditEntry.objects.order_by("number").first() == kept
    assert audit_chain.verify(anchor).faults == []
    assert AuditEntry.objects.get(action="retain").after["entries"] == gone
    assert audit_chain.retain(kept.at) == 0
    AuditEntry.objects.filter(pk=kept.pk)._raw_delete("default")
    assert faults() == [f"Missing: entry {kept.number}."]


def test_a_beginning_that_was_moved_without_retention_is_found(world: worlds.World) -> None:
    second = log()[1]
    row = AuditEntry.objects.get(number=second)
    AuditEntry.objects.filter(number__lte=second)._raw_delete("default")
    AuditHead.objects.update(base_number=second, base_digest=row.digest)
    assert faults() == [f"Missing: the log begins after entry {second}, and no retention says why."]


def test_the_command_verifies_and_exits_with_an_error_where_the_log_is_broken(world: worlds.World) -> None:
    number, out = log()[0], io.StringIO()
    call_command("audit", "verify", stdout=out)
    assert "Nothing was changed" in out.getvalue()
    AuditEntry.objects.filter(number=number).update(actor="eve")
    with pytest.raises(CommandError, match=f"entry {number} "):
        call_command("audit", "verify", stdout=out)


def test_the_log_is_exported_as_lines_of_json_and_as_csv_without_formulas(world: worlds.World) -> None:
    services.save(actor=SYSTEM, instance=Slo(slug="s", ttft_s=1, tbt_s=1, description="=1+1"))
    out = io.StringIO()
    call_command("audit", "export", stdout=out)
    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["object"], last["after"]["description"], len(last["digest"])) == ("s", "=1+1", 64)
    AuditEntry(actor="=cmd()", via="api", action="x", kind="y", object_id="z").save()
    out = io.StringIO()
    call_command("audit", "export", "--format", "csv", stdout=out)
    assert list(csv.DictReader(io.StringIO(out.getvalue())))[-1]["actor"] == "'=cmd()"


def test_a_refused_attempt_is_written_with_who_what_and_from_where_and_at_most_some_a_minute(
    world: worlds.World,
) -> None:
    api = APIClient()
    api.force_login(world.users["alice"])
    for _ in range(REFUSALS_A_MINUTE + 3):
        assert api.post("/api/v1/tenants", {"slug": "x"}, format="json", REMOTE_ADDR="10.0.0.9").status_code == 403
    rows = AuditEntry.objects.filter(outcome="refused")
    assert rows.count() == REFUSALS_A_MINUTE
    row = rows.first()
    assert row is not None
    assert (row.actor, row.object_id, row.address) == ("alice", "POST /api/v1/tenants", "10.0.0.9")


def test_logins_and_wrong_passwords_are_written_without_the_password(world: worlds.World) -> None:
    User.objects.create_user("ada", password="correct horse battery")
    browser = Client()
    browser.post("/login", {"username": "ada", "password": "wrong horse"})
    browser.post("/login", {"username": "ada", "password": "correct horse battery"})
    rows = AuditEntry.objects.filter(action="log in", actor="ada").order_by("number")
    assert list(rows.values_list("outcome", flat=True)) == ["refused", "done"]
    assert "horse" not in str(list(rows.values()))
    assert faults() == []


@pytest.mark.parametrize(
    "text", ["=1", "+1", "-1", "@a", "\tx=1", "\rx=1", "\nx=1", "\uff1dHYPERLINK(1)", "\uff0b1", "\uff20a"]
)
def test_no_value_of_a_file_is_run_as_a_formula(text: str) -> None:
    assert plain(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("x;=1", "x;'=1"),
        ("x;+1;-1", "x;'+1;'-1"),
        ("x\t@a", "x\t'@a"),
        ("x\r\n=1", "x\r\n'=1"),
        (";\uff1d1", ";'\uff1d1"),
        ("\t=1", "'\t'=1"),
        ('x;"=1;', "x;'\"=1;"),
        ('x;"";"=1;', 'x;"";\'"=1;'),
        ('{"name": "x;=1"}', '{"name": "x;\'=1"}'),
    ],
)
def test_what_is_a_cell_of_its_own_where_semicolons_end_cells_is_no_formula_either(text: str, written: str) -> None:
    assert plain(text) == written
    file = io.StringIO()
    csv.writer(file).writerow(["a", written, "b"])
    cells = [cell for row in csv.reader(file.getvalue().splitlines(), delimiter=";") for cell in row]
    assert not [cell for cell in cells if cell[:1] in set("=+-@\uff1d")]


@pytest.mark.parametrize("value", ["", "a=1", "ada", "a; b", "a;b-c", 7, -7, None, "\u00e9"])
def test_other_values_of_a_file_are_as_they_are(value: object) -> None:
    assert plain(value) is value


@pytest.mark.parametrize("anchor", ["12", "12:9f2c", "foo", "12:" + "g" * 64])
def test_an_anchor_that_is_none_is_no_broken_log(world: worlds.World, anchor: str) -> None:
    with pytest.raises(CommandError, match="NUMBER:DIGEST"):
        call_command("audit", "verify", "--anchor", anchor)
    call_command("audit", "verify", "--anchor", audit_chain.verify().end + "\n")
