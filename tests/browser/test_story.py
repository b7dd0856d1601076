"""What went first while a request waited, and what the strategic loop does, played from memory."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Stage

pytestmark = pytest.mark.browser


def test_a_request_that_waited_tells_who_went_first_and_by_which_terms(page: Page, stage: Stage) -> None:
    waited = next(r for r in stage.rows if r["outcome"] == "completed" and r["queued_at"])
    stage.open(f"/requests?id={waited['request_id']}")
    ahead = page.get_by_test_id("ahead")
    expect(ahead).to_contain_text("4 requests were granted before it, 1 of which arrived later: dune 3, birch 1")
    expect(ahead.get_by_role("img", name="Requests still before it: 4 at first")).to_be_visible()
    expect(ahead.get_by_role("row", name="terms")).to_contain_text("due 2.0 s after arrival")
    expect(ahead.get_by_role("row", name="terms").get_by_role("cell")).to_have_count(2)


def test_the_verdict_goes_on_with_what_another_tier_would_have_waited(page: Page, stage: Stage) -> None:
    waited = next(r for r in stage.rows if (r["queue_ms"] or 0) > 100)
    stage.open(f"/requests?id={waited['request_id']}")
    verdict = page.get_by_role("dialog").get_by_test_id("verdict")
    expect(verdict).to_contain_text("(1.00 s at most). With tier gold: a wait of about 20 ms instead of")
    expect(page.get_by_test_id("instead")).not_to_contain_text("With tier gold")
    direct = next(r for r in stage.rows if r["queue_ms"] == 0)
    stage.open(f"/requests?id={direct['request_id']}")
    expect(verdict).to_contain_text("at most")
    expect(verdict).not_to_contain_text("gold")
    expect(page.get_by_test_id("instead")).to_contain_text("no tier would have waited less")


def test_a_request_that_did_not_wait_has_nobody_before_it(page: Page, stage: Stage) -> None:
    direct = next(r for r in stage.rows if r["outcome"] == "completed" and not r["queued_at"])
    stage.open(f"/requests?id={direct['request_id']}")
    expect(page.get_by_role("dialog")).to_contain_text("Cost")
    expect(page.get_by_test_id("ahead")).to_have_count(0)


def test_the_overview_says_what_the_strategic_loop_does_and_members_are_not_shown_it(page: Page, stage: Stage) -> None:
    stage.open("/")
    loop = page.get_by_test_id("strategy")
    expect(loop).to_contain_text("unified@3")
    expect(loop).to_contain_text("by adam: after the outage")
    expect(loop).to_contain_text("rolled back")
    expect(loop).to_contain_text("p95 wait of standard doubled")
    expect(loop).to_contain_text("2 running, 3 wanted: demand of 70 slots")
    stage.role = "member"
    stage.open("/")
    expect(page.get_by_role("region", name="Table of entitlements")).to_be_visible()
    expect(loop).to_have_count(0)


def test_the_wall_shows_all_charts_of_the_overview(page: Page, stage: Stage) -> None:
    stage.open("/")
    charts = page.locator("section[aria-label]:has(.uplot)")
    expect(charts.filter(has_text="Queue depth by queue")).to_be_visible()
    expect(charts.filter(has_text="spot band")).to_have_count(1)
    count = charts.count()
    page.set_viewport_size({"width": 1920, "height": 1080})
    stage.open("/?wall=1")
    expect(charts).to_have_count(count)
    lowest = max(box["y"] + box["height"] for chart in charts.all() if (box := chart.bounding_box()))
    assert lowest <= 1080


def test_a_request_that_is_opened_while_its_id_is_still_being_looked_up_stays_open(page: Page, stage: Stage) -> None:
    row = stage.rows[3]
    stage.open("/requests")
    page.get_by_label("Request id").fill(row["request_id"])
    page.get_by_role("button", name=f"…{row['request_id'][-8:]}").click()  # before the filter is in the address
    expect(page).to_have_url(re.compile(f"request_id={row['request_id']}"))
    expect(page).to_have_url(re.compile(f"request={row['request_id']}"))
    expect(page.get_by_role("dialog")).to_be_visible()
