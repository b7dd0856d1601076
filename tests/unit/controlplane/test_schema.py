"""A database of a newer release is refused before anything is written to it."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from controlplane import schema
from controlplane.embedded import prepare
from controlplane.embedded.home import CannotStart
from controlplane.embedded.plan import Plan

pytestmark = pytest.mark.django_db


@pytest.fixture
def of_a_newer_release() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('telemetry', '9999_later', CURRENT_TIMESTAMP)"
        )


def test_this_release_finds_nothing_newer_in_its_own_database() -> None:
    assert schema.newer() == []
    assert schema.shipped() <= schema.applied()


@pytest.mark.usefixtures("of_a_newer_release")
def test_migrate_refuses_a_newer_database_and_says_what_to_do() -> None:
    with pytest.raises(CommandError, match=r"newer release: telemetry 9999_later\.") as refused:
        call_command("migrate", interactive=False, verbosity=0)
    last = max(name for app, name in schema.shipped() if app == "telemetry")
    assert str(refused.value).endswith(f":\n  .venv/bin/python manage.py migrate telemetry {last}")


def test_the_way_back_names_each_part_once_and_goes_to_zero_where_this_release_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = {("tenants", "0001_books"), ("tenants", "0010_tenant_pause"), ("telemetry", "0011_ledger_lists")}
    monkeypatch.setattr(schema, "shipped", lambda: older)
    newer = ["batches 0001_w_batches", "tenants 0011_token_made_with", "tenants 0012_tier_grammar_bytes"]
    assert schema.way_back(newer).split("\n") == [
        "  .venv/bin/python manage.py migrate batches zero",
        "  .venv/bin/python manage.py migrate tenants 0010_tenant_pause",
    ]


@pytest.mark.usefixtures("of_a_newer_release")
def test_going_to_a_named_migration_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("migrate", "telemetry", "0001", plan=True)
    assert "Planned operations" in capsys.readouterr().out


@pytest.mark.usefixtures("of_a_newer_release")
def test_make_up_does_not_start_on_a_newer_database() -> None:
    with pytest.raises(CannotStart, match="telemetry 9999_later"):
        prepare.main("http://127.0.0.1:1", Plan(engines=[], model="m"))


def test_migrations_of_others_apps_do_not_count() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('auth', '0001_squashed', CURRENT_TIMESTAMP)"
        )
    assert schema.newer() == []
