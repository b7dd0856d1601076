"""What the console takes from Python is what Python says now (``make generated`` writes it anew)."""

from __future__ import annotations

import re

import pytest
from rest_framework import serializers

from controlplane import console_types
from scheduling.core.outcomes import Outcome, Reason
from tenants.api.serializers import TierSerializer
from tenants.models.contracts import ServiceClass

AGAIN = "run `make generated` and commit what it wrote"


def test_the_console_s_forms_and_reasons_are_those_of_the_serializers_and_outcomes():
    assert console_types.DATA.read_text(encoding="utf-8") == console_types.data(), AGAIN


def test_the_console_s_types_are_made_from_the_present_schema_and_by_nobody_s_hand():
    text = console_types.TYPES.read_text(encoding="utf-8")
    match = console_types.STAMP.search(text)
    assert match is not None, AGAIN
    assert match[1] == console_types.digest(console_types.as_json(console_types.answers())), AGAIN
    assert match[2] == console_types.digest(text[match.end() + 1 :]), f"changed by hand; {AGAIN}"


def test_a_form_s_bounds_default_unit_and_choices_are_the_model_s():
    fields = console_types.fields(TierSerializer())
    assert fields["max_wait_s"] == {
        "kind": "number", "required": True, "initial": "30", "unit": "seconds", "min": 0.1, "max": 86_400,
        "help": "A request that waited this long is refused. All requests end after QUARTERMASTER_REQUEST_TIMEOUT_S "
        "(600 unless set), waiting included.",
    }  # fmt: skip
    assert [o["value"] for o in fields["service_class"]["options"]] == ServiceClass.values


SAID_BY_THEIR_LABEL = {"pool", "tenant", "tier"}  # relations without a help text of their own


@pytest.mark.parametrize("route", sorted(console_types.resources()))
def test_every_field_of_a_form_has_its_help_from_the_api(route: str):
    fields = console_types.fields(console_types.resources()[route])
    bare = {name for name, field in fields.items() if not field.get("help")}
    assert bare <= SAID_BY_THEIR_LABEL
    assert all(fields[name]["kind"] == "choice" and "options" not in fields[name] for name in bare)


def test_no_form_has_a_help_text_of_its_own():
    forms = [path for path in (console_types.API.parent / "pages").rglob("*.ts*") if "fieldsOf(" in path.read_text()]
    assert {path.name for path in forms} >= {"specs.ts", "rules.ts", "Welcome.tsx"}
    assert [path.name for path in forms if re.search(r"\bhelp:", path.read_text())] == []


@pytest.mark.parametrize("change", ["bound", "field"])
def test_a_field_that_changes_is_noticed(change: str, monkeypatch: pytest.MonkeyPatch):
    class Changed(TierSerializer):
        if change == "field":
            region = serializers.CharField(source="description")
        else:
            rank = serializers.IntegerField(max_value=7)

        class Meta(TierSerializer.Meta):
            fields = [*TierSerializer.Meta.fields, *(["region"] if change == "field" else [])]

    resources = console_types.resources() | {"tiers": Changed()}
    monkeypatch.setattr(console_types, "resources", lambda: resources)
    assert console_types.data() != console_types.DATA.read_text(encoding="utf-8")


def test_every_reason_of_the_ledger_can_be_filtered_by_and_no_other():
    listed = re.findall(r'"(\w+)"', console_types.data().partition("REASONS")[2].partition("};")[0])
    assert listed == [r.value for o in Outcome for r in Reason if r.ending.outcome is o and r.ending.recorded]
