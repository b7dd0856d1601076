"""The list of ended requests, with a server played from memory."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.stage import Stage

pytestmark = pytest.mark.browser


def rows(page: Page):
    return page.get_by_role("region", name="Ended requests").get_by_role("rowheader")


def test_requests_are_filtered_by_outcome_and_the_filter_is_in_the_address(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    expect(rows(page)).to_have_count(50)
    page.get_by_test_id("facets").get_by_role("button", name="refused").click()
    refused = sum(row["outcome"] == "refused" for row in stage.rows)
    expect(rows(page)).to_have_count(refused)
    expect(page).to_have_url(re.compile("outcome=refused"))
    expect(page.get_by_label("Query")).to_have_value("outcome:refused")
    page.get_by_role("button", name="Clear").click()
    expect(rows(page)).to_have_count(50)
    page.get_by_label("Query").fill("outcome:refused colour:red")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="colour: is not a term.")).to_be_visible()
    expect(rows(page)).to_have_count(50)


def test_older_requests_are_loaded_on_demand(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    page.get_by_role("button", name="Load older requests").click()
    expect(rows(page)).to_have_count(100)


def test_a_search_that_has_not_reached_the_end_says_how_far_it_got_and_goes_on(page: Page, stage: Stage) -> None:
    stage.reach = 40
    stage.rows = [row | {"tenant": "acme"} for row in stage.rows]
    stage.rows[70]["tenant"] = "rare"
    stage.open("/requests?tenant=rare")
    expect(page.get_by_role("status").filter(has_text="Older ones have not been searched yet.")).to_be_visible()
    expect(page.get_by_text("No request matches these filters.")).to_have_count(0)
    page.get_by_role("button", name="Search older requests").click()
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_role("status").filter(has_text="Searched back to")).to_be_visible()
    page.get_by_role("button", name="Search older requests").click()
    expect(page.get_by_text("Searched back to")).to_have_count(0)
    expect(page.get_by_role("button", name="Search older requests")).to_have_count(0)
    expect(rows(page)).to_have_count(1)


def test_a_request_tells_its_story_and_has_an_address(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    waited = next(row for row in stage.rows if row["queued_at"])
    page.get_by_title(waited["request_id"]).press("Enter")
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text(waited["why"])
    expect(drawer).to_contain_text("waiting for a slot")
    expect(drawer).to_contain_text(waited["request_id"])
    page.reload()
    expect(page.get_by_role("dialog")).to_contain_text(waited["why"])


def test_a_request_that_has_just_ended_is_shown_as_soon_as_the_ledger_has_it(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    ended, asked = stage.rows[-1], []

    def written_late(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) <= 2:
            route.fulfill(status=404, json={"detail": "Not found."})
        else:
            route.fallback()

    page.route(re.compile(f"/api/v1/requests/{ended['request_id']}"), written_late)
    stage.open(f"/requests?request={ended['request_id']}")
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text("It is not in the ledger yet.")
    expect(drawer).to_contain_text(ended["tenant"])
    expect(drawer).not_to_contain_text("It is not in the ledger yet.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("request="))


def test_a_request_that_does_not_exist_is_said_so(page: Page, stage: Stage) -> None:
    stage.open("/requests?request=req_nothing")
    expect(page.get_by_role("dialog")).to_contain_text("There is no request with this id in the ledger")


def test_an_empty_ledger_is_said_so(page: Page, stage: Stage) -> None:
    stage.rows = []
    stage.open("/requests")
    expect(page.get_by_text("No requests yet.")).to_be_visible()
