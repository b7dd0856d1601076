"""What people come for, in clicks from the overview of a real instance; the counts are those of docs/guide/console.md.

Every press of the pointer on the page counts; typing and pasting do not. None may take more than six.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS, ROOT, Running

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MOST = 6
COUNTED = "addEventListener('pointerdown', () => sessionStorage.clicks = Number(sessionStorage.clicks || 0) + 1, true)"


def documented() -> dict[str, int]:
    """The task table of docs/guide/console.md."""
    text = (ROOT / "docs" / "guide" / "console.md").read_text()
    return {task: int(clicks) for task, clicks in re.findall(r"^\| ([^|]+) \| (\d+) \|", text, re.MULTILINE)}


class Task:
    """An operator at the overview, whose clicks are counted."""

    def __init__(self, page: Page, running: Running, who: str = "admin") -> None:
        page.add_init_script(COUNTED)
        running.log_in(page, who)
        expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
        page.evaluate("sessionStorage.clicks = 0")
        self.page = page

    @classmethod
    def again(cls, page: Page, running: Running) -> Task:
        """Back at the overview, signed in already."""
        task = cls.__new__(cls)
        task.page = page
        page.goto(running.url)
        expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
        page.evaluate("sessionStorage.clicks = 0")
        return task

    def visit(self, name: str) -> None:
        self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()

    def took(self, task: str) -> None:
        clicks = int(self.page.evaluate("sessionStorage.clicks"))
        assert 0 < clicks <= MOST
        assert clicks == documented()[task], "docs/guide/console.md says another number"


def call(page: Page, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The management API as whoever is signed in."""
    status, answer = page.evaluate(
        """async ([method, path, body]) => {
            const csrf = document.querySelector("meta[name=csrf-token]").content;
            const headers = {"content-type": "application/json", "x-csrftoken": csrf};
            const answer = await fetch("/api/v1/" + path, {method, headers, body: body && JSON.stringify(body)});
            return [answer.status, answer.status === 204 ? {} : await answer.json()];
        }""",
        [method, path, body],
    )
    assert status < 300, (method, path, answer)
    return answer


@dataclass
class Crowded:
    """A pool of two slots in which a hog runs while somebody else waits."""

    hog: str
    victim: str
    request_id: str = ""  # of the victim's request that waited
    keys: dict[str, str] = field(default_factory=dict)


def ask(running: Running, model: str, key: str, tokens: int) -> str:
    """One request to its end; its x-request-id."""
    body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "messages": [{"role": "user", "content": "Go"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{running.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return str(answer.headers["x-request-id"])
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error


@pytest.fixture(scope="module")
def crowded(running: Running, browser: Browser) -> Iterator[Crowded]:
    tag = uuid.uuid4().hex[:6]
    pool, hog, victim = f"small-{tag}", f"hog-{tag}", f"victim-{tag}"
    command = [sys.executable, "-m", "scheduling.engines.simulated", "--model", pool, "--port", "0", "--slots", "2"]
    engine = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert engine.stdout is not None
    try:
        said = engine.stdout.readline()
        port = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert port is not None, said
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        running.log_in(page)
        expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        url = f"http://127.0.0.1:{port.group(1)}"
        first = {
            "pool": {"slug": pool, "model": pool},
            "backend": {"slug": f"gpu-{tag}", "pool": pool, "url": url, "slots": 2, "kv_tokens": 100_000},
        }
        call(page, "POST", "setup", first)
        found = Crowded(hog, victim)
        for tenant, tier, concurrency in ((victim, "standard", 2), (hog, "batch", 8)):
            share = {"slug": f"{tenant}-share", "pool": pool, "tier": tier, "concurrency": concurrency}
            made = call(
                page, "POST", "setup", {"tenant": {"slug": tenant}, "entitlement": share, "key": {"name": "production"}}
            )
            found.keys[tenant] = made["key"]["key"]
        for _ in range(200):
            if call(page, "GET", f"pools/{pool}/queue")["preview"] is not None:
                break
            page.wait_for_timeout(250)
        crowd = [threading.Thread(target=ask, args=(running, pool, found.keys[hog], 250)) for _ in range(6)]
        for thread in crowd:
            thread.start()
        for _ in range(200):
            if len(call(page, "GET", f"pools/{pool}/queue")["running"]) == 2:
                break
            page.wait_for_timeout(50)
        found.request_id = ask(running, pool, found.keys[victim], 5)
        for thread in crowd:
            thread.join()
        for _ in range(200):  # until the ledger has it
            if "alive" not in call(page, "GET", f"requests/{found.request_id}"):
                break
            page.wait_for_timeout(100)
        yield found
        for path in (
            f"entitlements/{hog}-share",
            f"entitlements/{victim}-share",
            f"tenants/{hog}",
            f"tenants/{victim}",
        ):
            call(page, "DELETE", path)
        call(page, "DELETE", f"backends/gpu-{tag}")
        call(page, "DELETE", f"pools/{pool}")
        page.close()
    finally:
        engine.terminate()
        engine.wait(timeout=30)


def test_a_tenant_with_a_key_sends_its_first_request(page: Page, running: Running) -> None:
    task = Task(page, running)
    task.visit("Tenants")
    page.get_by_role("button", name="New tenant").click()
    expect(page.get_by_role("dialog").get_by_label("Tenant").first).to_be_focused()
    page.keyboard.type(f"t-{uuid.uuid4().hex[:8]}")
    expect(page.get_by_test_id("effects")).to_contain_text("It takes effect at once")
    page.get_by_role("button", name="Create tenant and key").click()
    page.get_by_role("link", name="Try it in the playground").click()
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.keyboard.type("Say hello to the new tenant.")
    expect(page.get_by_label("Model")).to_have_value(running.demo["model"])
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_test_id("answer")).to_have_text(re.compile(r"\w+"))
    task.took("create a tenant with a key and send its first request")


def test_why_a_request_waited_is_found_by_its_id(page: Page, running: Running, crowded: Crowded) -> None:
    task = Task(page, running, "operator")
    task.visit("Requests")
    page.get_by_label("Request id").click()
    page.keyboard.insert_text(crowded.request_id)
    page.get_by_role("button", name=f"…{crowded.request_id[-8:]}").click()
    story = page.get_by_role("dialog")
    expect(story).to_contain_text("waiting for a slot")
    expect(story.get_by_test_id("ahead")).to_be_visible()
    expect(story).to_contain_text("Admission, check by check")
    expect(story).to_contain_text(re.compile(r"place \d+ in the queue"))
    task.took("find why a request waited, given its `x-request-id`")


def test_who_hurts_a_tenant_is_named(page: Page, running: Running, crowded: Crowded) -> None:
    task = Task(page, running, "operator")
    task.visit("Tenants")
    page.get_by_role("main").get_by_role("link", name=crowded.victim, exact=True).click()
    page.get_by_role("link", name="Neighbours").click()
    expect(page.get_by_test_id("blame")).to_contain_text(f"{crowded.hog} held the most slots")
    expect(page.get_by_role("region", name="Slots of pool")).to_contain_text(crowded.hog)
    task.took("find which tenant another one waited for")


def test_a_policy_is_put_on_trial_and_rolled_back(page: Page, running: Running) -> None:
    task = Task(page, running, "operator")
    task.visit("Policies")
    before = page.locator("#serving").inner_text().split()[0]
    page.get_by_role("button", name="New trial…").click()
    form = page.get_by_role("dialog")
    form.locator("input[name=debt_s]").click()
    page.keyboard.type("7")
    form.get_by_role("button", name="Start the trial").click()
    expect(page.get_by_test_id("canary")).to_contain_text("serves as version")
    task.took("try a policy on live traffic")
    task = Task.again(page, running)
    expect(page.get_by_test_id("strategy")).to_contain_text("canary")
    task.visit("Policies")
    page.get_by_role("button", name=f"Roll back to {before}").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back to version").click()
    expect(page.get_by_test_id("canary")).to_have_count(0)
    expect(page.locator("#serving")).to_contain_text(before.partition("@")[0])
    task.took("roll back to the previous version")


def test_a_seventh_click_would_be_noticed(page: Page, running: Running) -> None:
    task = Task(page, running, "operator")
    for _ in range(MOST + 1):
        task.visit("Requests")
    with pytest.raises(AssertionError):
        task.took("find which tenant another one waited for")
