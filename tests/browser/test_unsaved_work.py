"""What was typed outlives an ended session, a login in another tab, and what somebody else did meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import PATIENCE_MS, Running

pytestmark = pytest.mark.browser


@pytest.fixture
def api(running: Running) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {running.demo['admin']['token']}"}
    with httpx.Client(base_url=running.at("/api/v1"), headers=headers, timeout=PATIENCE_MS / 1000) as client:
        yield client


@pytest.fixture
def tier(api: httpx.Client) -> Iterator[str]:
    body = {"slug": "shared-form", "service_class": "elastic", "rank": 7, "weight": 10, "slo": "relaxed"}
    api.post("/tiers", json=body).raise_for_status()
    yield "shared-form"
    api.delete("/tiers/shared-form")


def end_session(page: Page, running: Running) -> Page:
    """Logs out in another tab, which is returned."""
    other = page.context.new_page()
    other.set_default_timeout(PATIENCE_MS)
    other.goto(running.at("/me"))
    other.get_by_role("button", name="Log out").click()
    expect(other).to_have_url(re.compile("/login"))
    return other


def changing(page: Page, running: Running, tier: str) -> Locator:
    """The form of a tier, opened by the admin."""
    running.log_in(page)
    page.goto(running.at(f"/tiers?what=tier&edit={tier}"))
    return page.get_by_role("dialog", name=f"Change {tier}")


def log_in(page: Page, running: Running, who: str) -> None:
    page.get_by_label("User name").fill(who)
    page.get_by_label("Password").fill(running.demo["passwords"][who])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_a_form_outlives_its_session_and_is_saved_after_the_next_login(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    form = changing(page, running, tier)
    form.get_by_label("Description").fill("typed before the session ended")
    other = end_session(page, running)
    # Or the page has found out before, by what it asks by itself.
    form.get_by_role("button", name="Save").dispatch_event("click")
    notice = page.get_by_role("dialog", name="Your session has ended")
    expect(notice).to_contain_text("What you typed on this page is still here")
    with page.expect_popup() as opened:
        notice.get_by_role("link", name="Log in in a new tab").click()
    opened.value.set_default_timeout(PATIENCE_MS)
    log_in(opened.value, running, "admin")
    other.close()
    expect(notice).to_be_hidden()
    expect(form.get_by_label("Description")).to_have_value("typed before the session ended")
    form.get_by_role("button", name="Save").click()
    expect(form).to_be_hidden()
    assert api.get(f"/tiers/{tier}").json()["description"] == "typed before the session ended"
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")


def test_nothing_is_saved_in_the_name_of_a_user_who_logged_in_meanwhile(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    form = changing(page, running, tier)
    form.get_by_label("Description").fill("of the first one")
    log_in(end_session(page, running), running, "operator")
    # Whether the page has found out between the two, or finds out now.
    form.get_by_role("button", name="Save").dispatch_event("click")
    expect(
        page.get_by_text(re.compile("operator is logged in now, and this page was opened by admin")).first
    ).to_be_visible()
    expect(form.get_by_label("Description")).to_have_value("of the first one")
    assert api.get(f"/tiers/{tier}").json()["description"] == ""


def test_what_somebody_else_saved_meanwhile_is_named_before_it_is_replaced(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    form = changing(page, running, tier)
    form.get_by_label("Weight").fill("20")
    form.get_by_label("Description").fill("mine")
    api.patch(f"/tiers/{tier}", json={"weight": 90, "queue_limit": 77}).raise_for_status()
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("Another user changed this from “10” to “90” meanwhile. Save again to replace that.")
    expect(form.get_by_label("Weight")).to_have_value("20")
    assert api.get(f"/tiers/{tier}").json()["weight"] == 90
    form.get_by_role("button", name="Save").click()
    expect(form).to_be_hidden()
    saved = api.get(f"/tiers/{tier}").json()
    assert (saved["weight"], saved["description"], saved["queue_limit"]) == (20, "mine", 77)


def test_a_form_stays_when_its_row_was_deleted_meanwhile(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    form = changing(page, running, tier)
    form.get_by_label("Description").fill("a long text")
    api.delete(f"/tiers/{tier}").raise_for_status()
    with page.expect_response(lambda answer: "/api/v1/tiers" in answer.url and answer.request.method == "GET"):
        # Who comes back to a tab has its lists read again, unless that was done just now.
        page.evaluate("setInterval(() => dispatchEvent(new Event('visibilitychange')), 500)")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("This was deleted meanwhile")
    expect(form.get_by_label("Description")).to_have_value("a long text")


def test_an_alert_rule_stays_open_when_it_was_deleted_meanwhile(
    page: Page, running: Running, api: httpx.Client
) -> None:
    body = {"name": "Doomed rule", "kind": "queue_age", "threshold": 5000, "for_s": 60, "severity": "warning"}
    rule = api.post("/alert-rules", json=body).raise_for_status().json()["id"]
    running.log_in(page)
    page.goto(running.at(f"/alerts?rule={rule}"))
    form = page.get_by_role("dialog", name="Doomed rule")
    form.get_by_label("Name", exact=True).fill("a long name")
    api.delete(f"/alert-rules/{rule}").raise_for_status()
    expect(page.locator("[aria-label='Delete Doomed rule']")).to_have_count(0)  # the list is read again
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("This was deleted meanwhile")
    expect(form.get_by_label("Name", exact=True)).to_have_value("a long name")


def test_a_key_stays_open_when_it_was_revoked_meanwhile(page: Page, running: Running, api: httpx.Client) -> None:
    entitlement = api.get("/entitlements", params={"limit": 1}).json()["results"][0]
    body = {"name": "doomed-key", "entitlement": entitlement["slug"]}
    key = api.post("/keys", json=body).raise_for_status().json()["id"]
    running.log_in(page)
    page.goto(running.at(f"/tenants/{entitlement['tenant']}/keys"))
    page.get_by_role("button", name="Edit doomed-key").click()
    form = page.get_by_role("dialog", name="Change doomed-key")
    form.get_by_label("Name", exact=True).fill("a long name")
    api.post(f"/keys/{key}/revoke").raise_for_status()
    page.evaluate("setInterval(() => dispatchEvent(new Event('visibilitychange')), 500)")
    expect(page.locator("[aria-label='Edit doomed-key']")).to_have_count(0)  # the list is read again
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("revoked")
    expect(form.get_by_label("Name", exact=True)).to_have_value("a long name")


@pytest.mark.parametrize(
    ("link", "button", "field", "text"),
    [
        ("Policies", "Change…", "Reason", "a long reason"),
        ("Policies", "New trial…", "Reason", "a long reason"),
        ("Lab", "What if…", "Name", "a long name"),
    ],
)
def test_a_draft_is_not_lost_by_escape_a_click_beside_it_or_back(
    link: str, button: str, field: str, text: str, page: Page, running: Running
) -> None:
    running.log_in(page)
    page.goto(running.at("/tiers"))
    page.get_by_role("link", name=link, exact=True).click()
    page.get_by_role("button", name=button).click()
    form = page.get_by_role("dialog").first
    page.keyboard.press("Escape")
    expect(form).to_be_hidden()  # nothing was typed
    page.get_by_role("button", name=button).click()
    form.get_by_label(field, exact=True).fill(text)
    question = page.get_by_role("dialog", name="Discard your changes?")
    for leave in (lambda: page.keyboard.press("Escape"), lambda: page.mouse.click(20, 500), lambda: page.go_back()):
        leave()
        expect(question).to_be_visible()
        question.get_by_role("button", name="Keep editing").click()
        expect(form.get_by_label(field, exact=True)).to_have_value(text)
    form.get_by_role("button", name="Cancel").click()
    question.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def typed_in_the_back_office(page: Page, running: Running, api: httpx.Client, tier: str) -> Locator:
    running.log_in(page)
    page.goto(running.at("/admin/tenants/tier/"))
    page.get_by_role("link", name=tier, exact=True).click()
    page.locator("[name=description]").fill("typed in the back office")
    return page.locator("form#tier_form").get_by_role("alert")


def test_a_form_of_the_back_office_outlives_its_session_and_a_login_in_another_tab(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    notice = typed_in_the_back_office(page, running, api, tier)
    other = end_session(page, running)
    save = page.get_by_role("button", name="Save", exact=True)
    save.click()
    expect(notice).to_contain_text("Your session has ended. Nothing was saved")
    log_in(other, running, "operator")
    save.click()
    expect(notice).to_contain_text("operator is logged in now, and this page was opened by admin")
    log_in(end_session(other, running), running, "admin")
    expect(page.locator("[name=description]")).to_have_value("typed in the back office")
    save.click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    assert api.get(f"/tiers/{tier}").json()["description"] == "typed in the back office"


def test_a_form_of_the_back_office_stays_when_its_row_was_deleted_meanwhile(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    notice = typed_in_the_back_office(page, running, api, tier)
    api.delete(f"/tiers/{tier}").raise_for_status()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(notice).to_contain_text("This was deleted meanwhile, so it cannot be changed. Nothing was saved")
    expect(page.locator("[name=description]")).to_have_value("typed in the back office")


def test_save_pressed_twice_in_the_back_office_is_sent_once(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    typed_in_the_back_office(page, running, api, tier)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    page.get_by_role("button", name="Save", exact=True).dblclick()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    assert len([url for url in sent if "/admin/" in url]) == 1


def test_a_form_of_the_back_office_that_was_stopped_on_its_way_can_be_sent_again(
    page: Page, running: Running, api: httpx.Client, tier: str
) -> None:
    page.clock.install()
    typed_in_the_back_office(page, running, api, tier)
    stopped = "form => form.addEventListener('submit', event => event.preventDefault(), { once: true })"
    page.locator("form#tier_form").evaluate(stopped)  # as one that its user stops before the server has answered
    save = page.get_by_role("button", name="Save", exact=True)
    with page.expect_response("**/api/v1/me"):
        save.click()
    page.clock.fast_forward(11_000)
    save.click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    assert api.get(f"/tiers/{tier}").json()["description"] == "typed in the back office"


def test_a_policy_that_somebody_else_changed_meanwhile_is_named_before_it_is_replaced(
    page: Page, running: Running, api: httpx.Client
) -> None:
    pool = running.demo["pool"]
    running.log_in(page)
    page.goto(running.at(f"/policies?pool={pool}"))
    page.get_by_role("button", name="Change…").click()
    form = page.get_by_role("dialog").first
    expect(form.get_by_label("Order", exact=True)).to_be_focused()  # not its cross
    form.get_by_label("Order", exact=True).select_option("fifo")
    api.patch(f"/pools/{pool}", json={"policy": "edf"}).raise_for_status()
    try:
        form.get_by_role("button", name="Apply policy").click()
        expect(form.get_by_role("alert")).to_contain_text("changed the policy meanwhile: edf@")
        expect(form.get_by_label("Order", exact=True)).to_have_value("fifo")
        assert api.get(f"/pools/{pool}").json()["policy"] == "edf"
        form.get_by_role("button", name="Apply policy").click()
        expect(form).to_be_hidden()
        assert api.get(f"/pools/{pool}").json()["policy"] == "fifo"
    finally:
        api.patch(f"/pools/{pool}", json={"policy": "unified"}).raise_for_status()


def test_what_somebody_else_deleted_meanwhile_is_gone_when_it_is_deleted_again(
    page: Page, running: Running, api: httpx.Client
) -> None:
    api.post("/tenants", json={"slug": "doomed", "description": "long " * 40}).raise_for_status()
    running.log_in(page)
    page.goto(running.at("/tenants"))
    expect(page.get_by_title("long " * 39)).to_be_visible()  # what is cut off can be read
    page.goto(running.at("/tenants/doomed"))
    page.get_by_role("button", name="Delete", exact=True).first.click()
    form = page.get_by_role("dialog", name="Delete the tenant doomed?")
    expect(form).to_contain_text("No pool is affected")
    api.delete("/tenants/doomed").raise_for_status()
    form.get_by_role("button", name="Delete").click()
    expect(form).to_be_hidden()
    expect(page).to_have_url(re.compile("/tenants$"))
