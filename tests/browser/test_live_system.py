"""A real instance with its demo load: login, numbers that move, a socket that is cut, what members see."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.browser.axe import serious
from tests.browser.conftest import Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def connection(page: Page, state: str) -> None:
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", state)


def test_anonymous_visitors_are_asked_to_log_in_and_wrong_passwords_are_told(page: Page, running: Running) -> None:
    page.goto(f"{running.url}/requests")
    expect(page).to_have_url(re.compile(r"/login\?next=/requests$"))
    page.get_by_label("User name").fill("nobody")
    page.get_by_label("Password").fill("not this")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password")


def test_login_shows_the_dashboard_with_moving_numbers(page: Page, running: Running) -> None:
    running.log_in(page)
    connection(page, "live")
    expect(page.get_by_label("Pool")).to_have_value(running.demo["pool"])
    expect(page.locator("[data-backend]")).to_have_count(2)
    figures = page.get_by_test_id("figures")
    seen = {figures.inner_text()}
    for _ in range(200):
        page.wait_for_timeout(250)
        seen.add(figures.inner_text())
        if len(seen) >= 4:
            break
    assert len(seen) >= 4, "the demo load runs, so the figures have to move"
    connection(page, "live")


def test_a_cut_socket_is_said_and_heals_by_itself(page: Page, running: Running) -> None:
    wires: list[WebSocketRoute] = []
    broken = False

    def wire(route: WebSocketRoute) -> None:
        if broken:
            route.close(code=1011)
            return
        route.connect_to_server()
        wires.append(route)

    page.route_web_socket("**/ws/live", wire)
    running.log_in(page)
    connection(page, "live")
    broken = True
    wires.pop().close(code=1011)
    connection(page, "reconnecting")
    expect(page.get_by_test_id("figures")).to_have_attribute("data-stale", "true")
    broken = False
    connection(page, "live")
    expect(page.get_by_test_id("figures")).to_have_attribute("data-stale", "false")


def test_a_request_of_the_demo_load_is_found_and_explained(page: Page, running: Running) -> None:
    running.log_in(page)
    page.get_by_role("link", name="Requests").click()
    page.get_by_role("region", name="Ended requests").locator("tbody").get_by_role("button").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Where the time went")


def test_a_member_sees_only_its_own_tenant(page: Page, running: Running) -> None:
    running.log_in(page, "member")
    connection(page, "live")
    page.get_by_role("button", name="By tenant").click()
    expect(page.get_by_role("rowheader")).to_have_count(1)
    expect(page.get_by_role("link", name="Back office")).to_have_count(0)


def test_the_queue_shows_what_runs_and_a_member_never_sees_others(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/queue")
    table = page.get_by_role("region", name="Running requests")
    expect(table.get_by_role("rowheader").first).to_be_visible()
    expect(page.get_by_text("Asking the scheduler for the order")).to_have_count(0)
    tenants = {row["slug"] for row in page.request.get(f"{running.url}/api/v1/tenants").json()["results"]}
    page.get_by_role("button", name="Log out").click()
    running.log_in(page, "member")
    own = {row["slug"] for row in page.request.get(f"{running.url}/api/v1/tenants").json()["results"]}
    assert len(own) == 1 < len(tenants)
    entitled = {row["slug"] for row in page.request.get(f"{running.url}/api/v1/entitlements").json()["results"]}
    shown: set[str] = set()
    for turn in range(300):
        if turn >= 10 and shown:  # its past begins with the first ten seconds in which it had something
            break
        seen = page.request.get(f"{running.url}/api/v1/pools/{running.demo['pool']}/queue").json()
        rows = seen["running"] + (seen["preview"] or {"requests": []})["requests"]
        assert {row["tenant"] for row in rows} <= own
        past = page.request.get(f"{running.url}/api/v1/live/history?pool={running.demo['pool']}&minutes=60").json()
        assert {name for frame in past["frames"] for name in frame["tenants"]} <= own
        shown |= {name for frame in past["frames"] for name in frame["entitlements"]}
        page.wait_for_timeout(200)
    assert shown
    assert shown <= entitled


def test_a_request_that_an_operator_cancels_ends_so(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/queue")
    cancelled = page.get_by_role("region", name="Running requests").get_by_role("button", name="Cancel …").last
    for _ in range(20):  # the demo's requests are short: one may end while it is asked about
        cancelled.click()
        page.get_by_role("button", name="Cancel the request").click()
        page.wait_for_timeout(400)
        if page.get_by_role("dialog").count():
            page.get_by_role("button", name="Go back").click()
            continue
        page.wait_for_timeout(2500)
        found = page.request.get(f"{running.url}/api/v1/requests?reason=operator").json()["results"]
        if found:
            assert found[0]["outcome"] == "cancelled"
            return
    raise AssertionError("no request ended by an operator's word")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_the_api_keeps_nobody_out(theme: Literal["light", "dark"], page: Page, running: Running) -> None:
    page.emulate_media(color_scheme=theme)
    running.log_in(page, "admin")
    expect(page.get_by_test_id("connection")).to_be_visible()
    page.goto(f"{running.url}/api/v1/docs")
    page.locator(".opblock-summary-control").first.click()
    expect(page.locator(".opblock-body")).to_be_visible()
    assert serious(page) == []
    dark = page.evaluate("document.documentElement.classList.contains('dark-mode')")
    assert dark == (theme == "dark")


def test_the_page_of_the_api_says_what_it_waits_for_and_tries_again(page: Page, running: Running) -> None:
    running.log_in(page, "admin")
    expect(page.get_by_test_id("connection")).to_be_visible()
    held: list[Route] = []
    page.route("**/api/v1/schema", lambda route: held.append(route))
    page.goto(f"{running.url}/api/v1/docs")
    waits = page.get_by_text("Loading the description of the management API")
    expect(waits).to_be_visible()
    expect(page.locator(".swagger-ui .loading")).to_be_hidden()
    while not held:
        page.wait_for_timeout(50)
    page.route("**/api/v1/schema", lambda route: route.fulfill(status=503))  # Swagger asks twice
    held.pop().fulfill(status=503)
    failed = page.get_by_role("alert")
    expect(failed).to_contain_text("could not be loaded. Service Unavailable")
    expect(failed.get_by_role("link", name="Log in again")).to_have_attribute("href", "/login?next=/api/v1/docs")
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        assert serious(page) == []
    page.unroute("**/api/v1/schema")
    failed.get_by_role("button", name="Try again").click()
    expect(page.locator(".opblock-summary-control").first).to_be_visible()
    expect(failed).to_be_hidden()
    expect(waits).to_be_hidden()


def test_logging_out_ends_the_session(page: Page, running: Running) -> None:
    running.log_in(page)
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login"))
    page.goto(running.url)
    expect(page).to_have_url(re.compile("/login"))
