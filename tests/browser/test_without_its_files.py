"""A page of the console whose own files do not come, as in the middle of an update or behind a filter, says so."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WHAT = "Reload the page in a minute."


def gone(route: Route) -> None:
    route.fulfill(status=404, body="Not Found")


def test_a_page_without_its_scripts_does_not_say_loading_for_ever(page: Page, running: Running) -> None:
    running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    expect(page.get_by_text(WHAT)).to_have_count(0)
    page.route("**/*.js", gone)
    page.goto(running.at("/tenants"))
    expect(page.get_by_text("Loading", exact=True)).to_be_visible()
    expect(page.get_by_text(WHAT)).to_be_visible()


def test_nor_does_one_without_its_style_sheet(page: Page, running: Running) -> None:
    running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    page.route("**/*.js", gone)
    page.route("**/*.css", gone)
    page.goto(running.at("/tenants"))
    expect(page.get_by_text(WHAT)).to_be_visible()


def test_who_has_switched_scripts_off_is_not_told_to_reload(page: Page, browser: Browser, running: Running) -> None:
    running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    without = browser.new_context(java_script_enabled=False, storage_state=page.context.storage_state())
    bare = without.new_page()
    bare.goto(running.at("/tenants"))
    expect(bare.get_by_text("Loading", exact=True)).to_be_visible()
    bare.wait_for_timeout(9_000)
    expect(bare.get_by_text(WHAT)).to_be_hidden()
    without.close()
