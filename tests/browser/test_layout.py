"""Where things stand on a page, and how often they are said: at a desk and on a phone, played from memory."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.axe import serious
from tests.browser.pretend import queue_of
from tests.browser.pretend_books import books
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser

NOW_S = 1_790_000_000.0
PHONE: ViewportSize = {"width": 390, "height": 844}


def listed(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"count": len(rows), "next": None, "previous": None, "results": list(rows)}


@pytest.fixture
def told(page: Page, stage: Stage) -> Stage:
    """A stage that has something to say of every page of here."""
    page.clock.set_fixed_time(NOW_S)
    stage.clock = lambda: NOW_S
    stage.answers = books(NOW_S) | {
        "people": listed(),
        "invitations": listed(),
        "group-rules": listed(),
        "sessions": listed(),
        "tokens": listed(),
        "second-factor": {"available": True, "enabled": False, "mandatory": False, "app": False, "passkeys": []},
        "usage": {"columns": ["tenant"], "rows": []},
        "spending": {"budgets": []},
        "keys": listed(),
    }
    return stage


def test_one_action_of_the_page_of_people_is_its_primary_one(page: Page, told: Stage) -> None:
    told.open("/people")
    for name in ("New service account", "New group rule", "Set up an app", "New token"):
        expect(page.get_by_role("button", name=name)).to_be_visible()
    expect(page.locator("main .button-primary")).to_have_text(["New invitation"])


def test_every_range_of_usage_can_be_seen_on_a_phone(page: Page, told: Stage) -> None:
    page.set_viewport_size(PHONE)
    told.open("/usage")
    ranges = page.get_by_role("group", name="Time").get_by_role("button")
    expect(ranges).to_have_count(7)
    for one in ranges.all():
        expect(one).to_be_in_viewport(ratio=1)


def test_a_budget_of_a_long_name_fits_on_a_phone_and_says_of_how_many_requests_it_lacks_the_answers(
    page: Page, told: Stage
) -> None:
    page.set_viewport_size(PHONE)
    budget = {
        "id": 1, "tenant": "x" * 63, "scope": "tenant", "name": "", "currency": "USD", "spent": "1.5", "forecast": None,
        "soft_amount": None, "hard_amount": "25", "tokens_unknown": 2, "complete": True,
    }  # fmt: skip
    told.answers["spending"] = {"month": "2026-11", "budgets": [budget]}
    told.open("/usage")
    shown = page.get_by_role("list", name="Budgets of this month")
    expect(shown).to_contain_text("The answers of 2 requests that were lost with their gateway are not in it.")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_usage_is_printed_whole_with_its_period_and_without_the_header(page: Page, told: Stage) -> None:
    row = {
        "tenant": "acme", "requests": 14_800, "completed": 13_500, "refused": 1219, "failed": 3, "cancelled": 78,
        "input_tokens": 19_200_000, "output_tokens": 965_000, "cached_tokens": 0, "slo_met": 12_000,
        "slo_total": 13_500, "slo_asked": 14_000, "attainment": 0.901, "attainment_served": 0.982, "slo_retries": 120,
        "attainment_first": 0.9, "tokens_unknown": 12, "slot_s": 74_400.0, "cost": 2.3084, "currency": "USD",
    }  # fmt: skip
    rows = [row | {"tenant": f"tenant-{i}"} for i in range(60)]
    told.answers["usage"] = {"columns": ["tenant"], "rows": rows}
    told.open("/usage?range=30d")
    expect(page.get_by_role("row")).to_have_count(61)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1032, "height": 700})  # A4 across, less its margins
    expect(page.get_by_role("banner")).to_have_count(0)
    expect(page.get_by_role("navigation")).to_have_count(0)
    expect(page.get_by_text(re.compile(r"^From \d\d \w+ \d{4}, .* to \d\d \w+ \d{4}, "))).to_be_visible()
    room = page.get_by_role("region", name="Usage", exact=True).last
    assert room.evaluate("e => [getComputedStyle(e).overflow, e.scrollHeight - e.clientHeight]") == ["visible", 0]


def test_a_members_page_says_what_budgets_have_left(page: Page, told: Stage) -> None:
    budget = {
        "id": 1, "tenant": "acme", "scope": "tenant", "name": "", "currency": "USD", "spent": "20", "forecast": None,
        "soft_amount": None, "hard_amount": "25", "tokens_unknown": 0, "complete": True,
    }  # fmt: skip
    told.answers |= {
        "memberships": listed({"id": 1, "user": "admin", "role": "member", "tenant": "acme"}), "quotas": listed(),
        "spending": {"month": "2026-11", "budgets": [budget]},
    }  # fmt: skip
    told.open("/me")
    expect(page.get_by_role("list", name="Budgets of this month")).to_contain_text("20.00 USD of 25.00 USD (hard)")
    expect(page.get_by_text("No quota")).to_have_count(0)


def test_usage_says_that_clients_give_up_and_leads_to_how_much_that_was(page: Page, told: Stage) -> None:
    page.set_viewport_size(PHONE)
    row = {
        "tenant": "acme", "requests": 2086, "completed": 297, "refused": 0, "failed": 0, "cancelled": 1789,
        "input_tokens": 161_012, "output_tokens": 65_641, "cached_tokens": 0, "slo_met": 297, "slo_total": 569,
        "slo_asked": 569, "attainment": 0.522, "attainment_served": 0.522, "slo_retries": 311,
        "attainment_first": 0.8062, "tokens_unknown": 0, "slot_s": 1246.0, "cost": 0.0, "currency": "",
    }  # fmt: skip
    told.answers["usage"] = {"columns": ["tenant"], "rows": [row]}
    told.open("/usage")
    expect(page.get_by_text("1,789 requests of 2,086 were cancelled")).to_be_visible()
    expect(page.get_by_role("table")).to_contain_text("1,789 cancelled")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="How much that was").click()
    expect(page.get_by_role("button", name="outcome", exact=True)).to_have_attribute("aria-pressed", "true")
    assert serious(page) == []


def test_what_a_tenant_costs_is_in_sight_on_a_laptop_without_scrolling_its_table(page: Page, told: Stage) -> None:
    row = {
        "tenant": "acme-research", "requests": 14_800, "completed": 13_500, "refused": 1219, "failed": 3,
        "cancelled": 78, "input_tokens": 19_200_000, "output_tokens": 965_000, "cached_tokens": 0, "slo_met": 12_000,
        "slo_total": 13_500, "slo_asked": 14_000, "attainment": 0.901, "attainment_served": 0.982, "slo_retries": 120,
        "attainment_first": 0.9, "tokens_unknown": 12, "slot_s": 74_400.0, "cost": 2.3084, "currency": "USD",
    }  # fmt: skip
    long = row | {"tenant": "a-tenant-with-a-very-long-name-of-the-department-of-linguistics"}
    told.answers["usage"] = {"columns": ["tenant"], "rows": [row, long]}
    told.open("/usage")
    table = page.get_by_role("region", name="Usage", exact=True).get_by_role("table")
    expect(table.get_by_role("row").nth(1)).to_contain_text("2.31 USD")
    room = page.get_by_role("region", name="Usage", exact=True).last
    assert room.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    heads = [" ".join(text.split()) for text in table.get_by_role("columnheader").all_inner_texts()]
    assert len(heads) == len(set(heads)) == 12
    expect(table).to_contain_text("14.0k judged")
    expect(table).to_contain_text("120 retries left out")
    name = table.get_by_text(long["tenant"])
    beside = table.get_by_role("row").nth(2).get_by_role("cell").first
    ends, begins = name.bounding_box(), beside.bounding_box()
    assert ends
    assert begins
    assert ends["x"] + ends["width"] <= begins["x"]


def test_the_zone_of_requests_is_named_once_in_the_head_of_their_column(page: Page, told: Stage) -> None:
    told.open("/requests")
    table = page.get_by_role("region", name="Ended requests")
    head = table.get_by_role("columnheader", name="Received")
    expect(head).to_have_text(re.compile(r"^Received \S+$"))
    zone = head.inner_text().split()[1]
    assert zone not in table.locator("tbody").inner_text()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_pool_is_chosen_beside_the_title_on_every_page(width: int, page: Page, told: Stage) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in ("/queue", "/policies", "/drift"):
        told.open(path)
        expect(page.get_by_role("combobox", name="Pool", exact=True)).to_be_visible()
        title = page.get_by_role("heading", level=1).bounding_box()
        choice = page.get_by_text("Pool", exact=True).bounding_box()
        assert title is not None
        assert choice is not None
        assert 0 < choice["x"] - title["x"] - title["width"] < 32, path
        assert abs(choice["y"] + choice["height"] / 2 - title["y"] - title["height"] / 2) < 8, path


POOL = "pools/llama/"
VERSION: dict[str, Any] = {
    "number": 3, "policy": "unified", "policy_params": {}, "modifiers": {}, "routing": "least_work",
    "routing_params": {}, "serving": True, "at": "2026-03-01T12:00:00Z", "author": "adam", "author_kind": "user",
    "reason": "", "restores": None, "changes": {},
}  # fmt: skip
TRUST: dict[str, Any] = {
    "requests": 400, "figures": {"ttft p50": [0.2, 0.25]}, "worst": 0.204, "points": 2.1, "trusted": False,
    "attainment": {"premium": [96.0, 98.1]},
}  # fmt: skip


@pytest.mark.parametrize("measured", [None, TRUST | {"worst": 0.31, "points": 4.0, "at": "2026-03-01T12:00:00Z"}])
def test_how_far_simulated_figures_are_from_live_ones_is_said_in_one_place(
    measured: dict[str, Any] | None, page: Page, told: Stage
) -> None:
    tuning = {"mode": "automatic", "settings": {}, "effective": {}, "waits": "", "study": None, "trust": measured}
    told.answers |= {
        "policies": [],
        POOL + "versions": listed(VERSION),
        POOL + "tuning": tuning,
        POOL + "trials": listed(),
        POOL + "lengths": {"edges": [16, 64, 256], "recent": [3, 1], "sample": [0, 0], "queues": []},
        POOL + "trust": {"minutes": 10, "trust": TRUST, "calibrations": []},
    }
    told.open("/policies")
    panel = page.get_by_role("region", name="Simulated against live")
    expect(panel.get_by_text("off by 20.4 % and 2.1 points")).to_be_visible()
    at_calibration = panel.get_by_test_id("calibrated-trust")
    if measured:
        expect(at_calibration).to_contain_text("off by at most 31.0 % and 4.0 points, on 400 requests")
    else:
        expect(at_calibration).to_contain_text("how far those of trials are off is unknown")
    expect(page.get_by_text("No trials in this pool yet.")).to_be_visible()
    expect(page.get_by_test_id("trust")).to_have_count(0)
    expect(page.get_by_text("error unknown")).to_have_count(0)
    expect(page.get_by_role("img", name="Prompt lengths of pool llama")).to_be_visible()
    expect(page.get_by_text("% of requests per bar")).to_be_visible()
    assert serious(page) == []


def test_events_take_two_lines_each_on_a_phone_and_open_for_the_rest(page: Page, told: Stage) -> None:
    line = "Replica llama-2 of pool llama was taken out: no token for 15 s while 12 requests ran and 31 waited."
    event = {"kind": "backend", "subject": "llama-2", "actor": "adam", "tenant": "", "pool": "llama"}
    found = [event | {"at": f"2026-03-01T12:00:{i:02}Z", "line": line, "severity": "info"} for i in range(50)]
    told.answers["events"] = {"whole": True, "events": found}
    page.set_viewport_size(PHONE)
    told.open("/events")
    rows = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(rows).to_have_count(50)
    assert page.evaluate("document.documentElement.scrollHeight") < 60 * 50
    expect(rows.first.get_by_role("link", name="charts")).to_be_hidden()
    rows.first.locator("summary").press("Enter")
    expect(rows.first.get_by_text("adam")).to_be_visible()
    expect(rows.first.get_by_role("link", name="charts")).to_be_visible()
    assert serious(page) == []
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(page.get_by_role("region", name="Events").get_by_role("row")).to_have_count(51)


def test_a_long_table_shows_a_dozen_cards_on_a_phone_and_all_of_them_when_asked(page: Page, told: Stage) -> None:
    page.set_viewport_size(PHONE)
    (pool,) = told.pools.values()
    answer = queue_of(pool)
    first = answer["preview"]["requests"][0]
    answer["preview"]["requests"] = [first | {"id": f"{i:032x}", "place": i + 1} for i in range(200)]
    page.route("**/api/v1/pools/*/queue*", lambda route: route.fulfill(json=answer))
    told.open("/queue")
    rows = page.get_by_role("region", name="Waiting requests").get_by_role("rowheader")
    expect(rows).to_have_count(12)
    page.get_by_role("button", name="Show all 200").click()
    expect(rows).to_have_count(200)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.reload()
    expect(rows).to_have_count(200)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_state_of_everything_takes_two_lines_on_a_phone_and_opens_for_the_rest(
    theme: str, page: Page, told: Stage
) -> None:
    page.set_viewport_size(PHONE)
    told.theme = theme
    told.history = 0
    (pool,) = told.pools.values()
    told.open("/events")
    verdict = page.get_by_test_id("verdict")
    more = verdict.get_by_role("button", name="Show the whole state")

    def hear(**changes: Any) -> float:
        pool.at = NOW_S
        pool.step()
        pool.snapshot |= changes
        told.send_snapshot(pool)
        expect(verdict).to_have_attribute("data-level", "failing")
        box = verdict.bounding_box()
        assert box is not None
        return box["height"]

    tiers = {f"tier-{i}": {"ttft_s": 1.0, "asked": 9, "latency": {"ttft_ms": {"p95": 9600.0 + i}}} for i in range(4)}
    slo = {"attainment": 0.36, "asked": 1000, "total": 1000, "by_tier": tiers}
    high = hear(
        slo=slo, backends={f"a-replica-with-a-long-name-{i}": {"state": "ejected", "slots": 8} for i in range(9)}
    )
    expect(more).to_be_visible()
    assert high < 44, "two lines"
    sentence = verdict.get_by_text("llama: ")
    assert sentence.evaluate("e => e.scrollHeight > e.clientHeight")
    assert serious(page) == []
    more.click()
    assert not sentence.evaluate("e => e.scrollHeight > e.clientHeight")
    expect(sentence).to_contain_text("tier-3 TTFT p95 9.60 s, SLO 1.00 s")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    parts = [
        part.bounding_box()
        for part in (verdict.get_by_text("failing", exact=True), sentence, verdict.get_by_role("link"))
    ]
    for left, right in pairwise(parts):
        assert left is not None
        assert right is not None
        assert left["x"] + left["width"] <= right["x"], "nothing covers another"
    assert serious(page) == []
    verdict.get_by_role("button", name="Show less of the state").click()
    expect(more).to_have_attribute("aria-expanded", "false")
    page.set_viewport_size({"width": 1440, "height": 900})
    box = verdict.bounding_box()
    assert box is not None
    assert box["height"] < 28, "one line where there is room"


def test_a_page_whose_code_fails_says_so_below_the_navigation_and_others_go_on(page: Page, told: Stage) -> None:
    told.answers["events"] = {"whole": True, "events": None}  # nothing the server answers, so the page's code fails
    told.open("/events")
    failed = page.get_by_role("alert").filter(has_text="This page cannot be shown")
    expect(failed).to_contain_text("Requests continue, and nothing was changed")
    assert ".js" not in failed.inner_text(), "no stack"
    expect(failed.get_by_role("button", name="Reload")).to_be_visible()
    assert serious(page) == []
    page.get_by_role("link", name="Queue").first.click()
    expect(page.get_by_role("region", name="Waiting requests")).to_be_visible()
