"""A passkey in Chromium, by its virtual authenticator: added, asked for at the next login, renamed, reset, removed."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.browser.axe import serious
from tests.browser.conftest import Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
PASSWORD = "correct horse battery staple"
DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def at(running: Running, path: str) -> str:
    """Passkeys need a name: browsers take none for an address of numbers."""
    return running.at(path).replace("127.0.0.1", "localhost")


def device_of(page: Page) -> tuple[CDPSession, str]:
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    return devtools, devtools.send("WebAuthn.addVirtualAuthenticator", {"options": DEVICE})["authenticatorId"]


def joined(page: Page, running: Running, name: str) -> None:
    headers = {"Authorization": f"Bearer {running.demo['admin']['token']}"}
    with httpx.Client(base_url=running.at("/api/v1"), headers=headers, timeout=60) as api:
        invited = api.post("/invitations", json={"name": name, "role": "operator"}).json()
    page.goto(at(running, urlsplit(invited["link"]).path))
    page.get_by_label("User name").fill(name)
    page.locator("input[name=password1]").fill(PASSWORD)
    page.locator("input[name=password2]").fill(PASSWORD)
    page.get_by_role("button").click()
    expect(page.get_by_test_id("connection")).to_be_attached()
    page.goto(at(running, "/people"))


def add(page: Page, name: str) -> None:
    page.get_by_role("button", name="Add a passkey").click()
    page.get_by_role("dialog").get_by_label("Name").fill(name)
    page.get_by_role("dialog").get_by_label("Password").fill(PASSWORD)
    page.get_by_role("dialog").get_by_role("button", name="Continue").click()
    expect(page.get_by_test_id("codes").locator("li")).to_have_count(10)
    page.get_by_role("button", name="I have saved them").click()


def type_password(page: Page, running: Running, name: str) -> None:
    page.context.clear_cookies()
    page.goto(at(running, "/people"))
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_a_passkey_is_added_asked_for_renamed_and_removed(page: Page, running: Running) -> None:
    device_of(page)
    joined(page, running, "pia")
    add(page, "work laptop")
    passkeys = page.get_by_role("list", name="Passkeys")
    expect(passkeys).to_contain_text("work laptop")
    expect(page.get_by_test_id("second-factor")).to_contain_text("10 recovery codes left")

    type_password(page, running, "pia")
    expect(page).to_have_url(at(running, "/login/code"))
    assert serious(page) == []
    page.get_by_role("button", name="Use a passkey").click()
    expect(passkeys).not_to_contain_text("last used never")

    page.get_by_role("button", name="Rename passkey work laptop").click()
    page.get_by_role("dialog").get_by_label("Name").fill("old laptop")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Remove passkey old laptop").click()
    assert serious(page) == []
    page.get_by_role("button", name="Use a passkey instead").click()
    expect(page.get_by_text("A passkey has answered.")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_test_id("second-factor")).to_contain_text("Off: your password alone")
    expect(passkeys).to_have_count(0)


def test_a_device_without_the_passkey_gets_nowhere_and_an_admin_resets_it(
    browser: Browser, page: Page, running: Running
) -> None:
    devtools, device = device_of(page)
    joined(page, running, "quin")
    add(page, "phone")
    devtools.send("WebAuthn.clearCredentials", {"authenticatorId": device})
    type_password(page, running, "quin")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("alert")).to_contain_text("No passkey answered")
    expect(page).to_have_url(at(running, "/login/code"))

    admin = browser.new_context().new_page()
    running.log_in(admin)
    expect(admin.get_by_test_id("connection")).to_be_attached()
    admin.goto(running.at("/people"))
    admin.get_by_role("button", name="Reset second factor quin").click()
    admin.get_by_role("dialog").get_by_role("button", name="Reset second factor").click()
    expect(admin.get_by_role("button", name="Reset second factor quin")).to_have_count(0)
    admin.context.close()
    type_password(page, running, "quin")
    expect(page).to_have_url(re.compile("/people$"))
    expect(page.get_by_test_id("second-factor")).to_contain_text("Off: your password alone")
