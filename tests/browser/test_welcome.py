"""An empty installation leads by the hand to its first request."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import axe
from tests.browser.conftest import Running, wait_for
from tests.support.instance import Up

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


class Emptied:
    """An instance whose catalog was emptied; its engines still run."""

    def __init__(self, up: Up) -> None:
        self.up, self.demo = up, up.demo()
        self.headers = up.admin() | {"Content-Type": "application/json"}
        self.engines = [row["url"] for row in self.ask("GET", "backends")["results"]]
        for kind in ("entitlements", "tenants", "backends", "pools"):
            for row in self.ask("GET", kind)["results"]:
                self.ask("DELETE", f"{kind}/{row['slug']}")
        # What a pool showed goes with it within seconds; an installation that never had one shows nothing.
        wait_for(lambda: self.ask("GET", "live")["pools"] == {}, 60, lambda: "a deleted pool is still shown")

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"{self.up.url}/api/v1/{path}", headers=self.headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture
def emptied(browser: Browser, tmp_path: Path) -> Iterator[Emptied]:
    up = Up(tmp_path / "home").start()
    try:
        up.wait_ready()
        yield Emptied(up)
    finally:
        up.stop()


def test_an_empty_installation_tells_others_whom_to_ask_and_leads_an_admin_to_the_first_answer(
    page: Page, emptied: Emptied
) -> None:
    running = Running(emptied.up.url, emptied.demo)
    running.log_in(page, "operator")
    expect(page.get_by_role("heading", name="No pools yet")).to_be_visible()
    expect(page.get_by_text("An administrator can add the first one")).to_be_visible()
    page.context.clear_cookies()
    running.log_in(page)
    step = page.locator("[aria-current=step]")
    expect(page.get_by_role("heading", name="Welcome to Quartermaster")).to_be_visible()
    expect(step).to_have_attribute("data-step", "engine")

    page.get_by_label("Address of your engine").fill("http://127.0.0.1:1")
    page.keyboard.press("Enter")
    expect(step).to_contain_text("No engine of this kind was found there")
    page.get_by_label("Address of your engine").fill(emptied.engines[0])
    page.keyboard.press("Enter")
    expect(step).to_contain_text(f"It serves {emptied.demo['model']}; one token in")
    expect(page.get_by_label("Pool")).to_have_value(re.compile("llama"))
    assert axe.serious(page) == []
    page.get_by_role("button", name="Create pool and backend").click()

    expect(step).to_have_attribute("data-step", "tenant")
    expect(page.locator("[data-step=engine]")).to_contain_text("1 backend in 1 pool.")
    page.get_by_label("Tenant", exact=True).fill("umbrella")
    expect(page.get_by_test_id("effects")).to_contain_text("It takes effect at once")
    page.get_by_role("button", name="Create tenant and key").click()

    expect(step).to_have_attribute("data-step", "request")
    expect(page.get_by_test_id("secret")).to_have_text(re.compile(r"^qm-\w{12}\."))
    expect(page.get_by_label("First request with curl")).to_contain_text(page.get_by_test_id("secret").inner_text())
    assert axe.serious(page) == []
    page.get_by_role("link", name="Send it from the playground").click()
    page.get_by_label("Prompt", exact=True).fill("Hello?")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("answer")).to_have_text(re.compile(r"\w+"))
    page.goto(f"{emptied.up.url}/welcome")
    expect(page.get_by_role("heading", name="Everything is set up")).to_be_visible()
