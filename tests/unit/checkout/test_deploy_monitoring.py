"""The shipped Prometheus rules and the Grafana dashboard ask for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scheduling.core.ledger.slo import falls_short
from scheduling.core.outcomes import Outcome, Reason
from telemetry.metrics import PREFIX, TABLE
from telemetry.models import RuleKind

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
BOARD = DEPLOY / "grafana" / "quartermaster.json"

LABELS: dict[str, set[str]] = {}
for _metric in TABLE:
    _endings = ("_bucket", "_sum", "_count") if _metric.kind == "histogram" else ("",)
    for _ending in _endings:
        LABELS[PREFIX + _metric.name + _ending] = {*_metric.labels, *(("le",) if _ending == "_bucket" else ())}
ADDED = {"instance", "job"}  # by Prometheus itself


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def board_expressions() -> Iterator[str]:
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (v["definition"] for v in board["templating"]["list"] if "definition" in v)


EXPRESSIONS = [*(rule["expr"] for rule in rules()), *board_expressions()]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_every_metric_and_label_is_one_of_the_table(text: str) -> None:
    named = re.findall(rf"{PREFIX}\w+", text)
    assert named
    assert set(named) <= set(LABELS)
    known = set.union(*(LABELS[name] for name in named)) | ADDED
    for name, matchers in re.findall(rf"({PREFIX}\w+)\{{([^}}]*)\}}", text):
        for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', matchers):
            assert label in LABELS[name], f"{name} has no {label}"
            if label in ("outcome", "reason"):
                assert value in {o.value for o in (Outcome if label == "outcome" else Reason)}
    for listed in re.findall(r"\bby \(([^)]*)\)", text):
        assert {label.strip() for label in listed.split(",")} <= known
    assert text.count("(") == text.count(")")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_how_bad_it_is_and_names_only_labels_that_are_left(rule: dict) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    kept = {label.strip() for found in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in found.split(",")}
    assert told <= kept | ADDED


@pytest.mark.parametrize(
    ("name", "low"), [("QuartermasterSloAttainmentLow", 0.9), ("QuartermasterSloAttainmentCollapsed", 0.5)]
)
def test_few_requests_open_an_alert_where_they_open_one_of_the_console(name: str, low: float) -> None:
    [text] = [rule["expr"] for rule in rules() if rule["alert"] == name]
    for function in ("rate", "increase"):
        for metric in ("asked", "kept"):
            text = text.replace(f"sum by (pool, tier) ({function}({PREFIX}slo_{metric}_total[5m]))", f"{metric} ")
    text = text.replace("(kept  or asked  * 0)", "kept").replace(">= bool", ">=")
    assert PREFIX not in text
    for asked in range(1, 40):
        for kept in range(asked + 1):
            seen = {"asked": asked * 1.05, "kept": kept * 1.05}  # as Prometheus extrapolates to the ends of its window
            opens = eval(f"({text})", {}, seen)  # our own file
            assert bool(opens) == falls_short(kept / asked, asked, low), (asked, kept)


def test_a_page_of_its_own_for_each_kind_of_rule_of_the_console() -> None:
    asked = " ".join(rule["expr"] for rule in rules())
    for metric in ("slo_asked_total", "queue_oldest_seconds", "entitlement_debt", "backend_up", "quota_exceeded"):
        assert metric in asked


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    assert len({panel["id"] for panel in panels}) == len(panels)


GUIDE = (DEPLOY.parent / "docs" / "guide" / "operations.md").read_text()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_the_guide_says_of_every_alert_what_to_do(rule: dict) -> None:
    _, found, section = GUIDE.partition(f"### {rule['alert']}\n")
    assert found, f"docs/guide/operations.md has no section {rule['alert']}"
    assert len(section.partition("\n#")[0].split()) > 15


def test_the_guide_has_every_kind_of_rule_of_the_console() -> None:
    for kind in RuleKind.values:
        assert f"| `{kind}` |" in GUIDE
