"""A second factor in the browser: set up on one's own page, asked for at the next login, reset by an admin."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
PASSWORD = "correct horse battery staple"


def code_of(secret: str, steps: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps))


def log_in(page: Page, running: Running, name: str) -> None:
    page.goto(running.at("/people"))
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_a_second_factor_is_set_up_asked_for_and_reset(browser: Browser, page: Page, running: Running) -> None:
    headers = {"Authorization": f"Bearer {running.demo['admin']['token']}"}
    with httpx.Client(base_url=running.at("/api/v1"), headers=headers, timeout=60) as api:
        invited = api.post("/invitations", json={"name": "two steps", "role": "operator"}).json()
    page.goto(invited["link"])
    page.get_by_label("User name").fill("tess")
    page.locator("input[name=password1]").fill(PASSWORD)
    page.locator("input[name=password2]").fill(PASSWORD)
    page.get_by_role("button").click()
    expect(page.get_by_test_id("connection")).to_be_attached()

    page.goto(running.at("/people"))
    page.get_by_role("button", name="Set up an app").click()
    page.get_by_role("dialog").get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_alt_text("QR code for an authenticator app")).to_be_visible()
    secret = str(page.get_by_test_id("secret").text_content())
    page.get_by_role("dialog").get_by_label("Code").fill(code_of(secret, -1))
    page.get_by_role("button", name="Enable").click()
    codes = page.get_by_test_id("codes").locator("li")
    expect(codes).to_have_count(10)
    spare = str(codes.first.text_content())
    page.get_by_role("button", name="I have saved them").click()
    expect(page.get_by_test_id("second-factor")).to_contain_text("10 recovery codes left")

    other = browser.new_context().new_page()
    log_in(other, running, "tess")
    expect(other).to_have_url(running.at("/login/code"))
    other.get_by_label("Code").fill("not a code")
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_role("alert")).to_contain_text("does not fit")
    other.get_by_label("Code").fill(spare)
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_test_id("second-factor")).to_contain_text("9 recovery codes left")

    admin = browser.new_context().new_page()
    running.log_in(admin)
    expect(admin.get_by_test_id("connection")).to_be_attached()
    admin.goto(running.at("/people"))
    admin.get_by_role("button", name="Reset second factor tess").click()
    admin.get_by_role("dialog").get_by_role("button", name="Reset second factor").click()
    expect(admin.get_by_role("button", name="Reset second factor tess")).to_have_count(0)
    other.goto(running.at("/people"))
    expect(other).to_have_url(re.compile("/login"))
    log_in(other, running, "tess")
    expect(other.get_by_test_id("second-factor")).to_contain_text("Off: your password alone")
    for one in (other, admin):
        one.context.close()
