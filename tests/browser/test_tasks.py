"""What people come for, in clicks and keys from the overview of a real instance; the counts are those of
docs/results/console.md.

Every press of the pointer on the page counts, and every key; what is pasted does not. None may take more than six
clicks.
"""

from __future__ import annotations

import contextlib
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
from datetime import UTC, datetime
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS, ROOT, Running
from tests.support.instance import Up

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MOST = 6
COUNTED = """
const count = name => () => sessionStorage[name] = Number(sessionStorage[name] || 0) + 1;
addEventListener('pointerdown', count('clicks'), true);
addEventListener('keydown', count('keys'), true);
"""
AT_ZERO = "sessionStorage.clicks = sessionStorage.keys = 0"


def documented() -> dict[str, tuple[int, int]]:
    """The task table of docs/results/console.md: clicks and keys."""
    text = (ROOT / "docs" / "results" / "console.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    return {task: (int(clicks), int(keys)) for task, clicks, keys in rows}


class Task:
    """An operator at the overview, whose clicks are counted."""

    def __init__(self, page: Page, running: Running, who: str = "admin") -> None:
        page.add_init_script(COUNTED)
        running.log_in(page, who)
        expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
        page.evaluate(AT_ZERO)
        self.page = page

    @classmethod
    def again(cls, page: Page, running: Running) -> Task:
        """Back at the overview, signed in already."""
        task = cls.__new__(cls)
        task.page = page
        page.goto(running.url)
        expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
        page.evaluate(AT_ZERO)
        return task

    def visit(self, name: str) -> None:
        self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()

    def took(self, task: str) -> None:
        clicks, keys = self.page.evaluate("[Number(sessionStorage.clicks), Number(sessionStorage.keys)]")
        assert clicks <= MOST
        assert clicks + keys > 0
        assert (clicks, keys) == documented()[task], "docs/results/console.md says other numbers"


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
    refused_id: str = ""  # of one that was refused
    keys: dict[str, str] = field(default_factory=dict)


def ask(running: Running, model: str, key: str, tokens: int, refused: list[str] | None = None) -> str:
    """One request to its end; its x-request-id. One that is refused is an error, or goes to ``refused``."""
    body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "messages": [{"role": "user", "content": "Go"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{running.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return str(answer.headers["x-request-id"])
    except urllib.error.HTTPError as error:
        if refused is None or error.code != 429:
            raise AssertionError(error.read()) from error
        refused.append(str(error.headers["x-request-id"]))
        return ""


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
        refused: list[str] = []
        many = [threading.Thread(target=ask, args=(running, pool, found.keys[victim], 60, refused)) for _ in range(8)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()
        assert refused, "two at a time may be in this entitlement"
        found.refused_id = refused[0]
        for request in (found.request_id, found.refused_id):
            for _ in range(300):  # until the ledger has it
                told = page.request.get(f"{running.url}/api/v1/requests?request_id={request}").json()
                if told["results"]:
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


def query(page: Page, text: str, *asked: str) -> None:
    """Asks by the keyboard alone, on the page of requests; back once what was ``asked`` is summed up above the rows,
    which do not move any more then: a press on a row that moves away is counted, and made again."""
    expect(page.get_by_label("Query")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Query")).to_be_focused()
    with page.expect_response(lambda r: "/requests/explore" in r.url and all(one in r.url for one in asked)):
        page.keyboard.type(text)
        page.keyboard.press("Enter")
    expect(page.get_by_test_id("facets")).to_be_visible()


def test_who_waited_so_long_at_that_time_is_asked_in_one_line(page: Page, running: Running, crowded: Crowded) -> None:
    received = call(Task(page, running, "operator").page, "GET", f"requests?request_id={crowded.request_id}")
    at = datetime.fromisoformat(received["results"][0]["received_at"]).timestamp()
    task = Task.again(page, running)
    hours = page.evaluate(
        "([from, to]) => [from, to].map(at => new Date(at * 1000).toISOString().slice(0, 16) + 'Z').join('..')",
        [at - 60, at + 120],  # with the day: it may be midnight
    )
    task.visit("Requests")
    query(page, f"waited:>0.1s tenant:{crowded.victim} at:{hours}", f"tenant={crowded.victim}", "from=")
    row = page.get_by_role("region", name="Ended requests").get_by_role("button", name=f"…{crowded.request_id[-8:]}")
    row.click()
    expect(page.get_by_role("dialog")).to_contain_text("waiting for a slot")
    task.took("find which request waited 8 s at 08:52, and why")


def test_a_refused_client_is_told_when_to_come_back_and_the_story_says_whether_it_did(
    page: Page, running: Running, crowded: Crowded
) -> None:
    task = Task(page, running, "operator")
    task.visit("Requests")
    query(page, f"outcome:refused tenant:{crowded.victim}", f"tenant={crowded.victim}")
    table = page.get_by_role("region", name="Ended requests")
    table.get_by_role("button", name=f"…{crowded.refused_id[-8:]}").click()
    expect(page.get_by_test_id("retry")).to_contain_text("Retry-After")
    task.took("find why a client was refused, and whether it came back as told")


def test_a_leaked_key_is_pasted_found_and_revoked(page: Page, running: Running, crowded: Crowded) -> None:
    task = Task(page, running)
    key = call(page, "POST", "keys", {"entitlement": f"{crowded.victim}-share", "name": "leaked"})
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Page, object, key id or action")).to_be_focused()
    page.keyboard.insert_text(key["key"])
    page.get_by_role("option", name=re.compile("Rotate or revoke key")).click()
    page.get_by_role("button", name="Revoke leaked").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Revoke leaked")).to_have_count(0)
    task.took("find a leaked key and revoke it")


def test_what_a_tenant_cost_this_month_is_one_line_away(page: Page, running: Running, crowded: Crowded) -> None:
    task = Task(page, running, "operator")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Page, object, key id or action")).to_be_focused()
    page.keyboard.type(crowded.victim)
    page.get_by_role("option", name=f"Cost of {crowded.victim} this month").click()
    expect(page.get_by_role("group", name="Time").get_by_role("button", name="this month")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_role("region", name="Usage").last).to_be_visible()
    task.took("read what a tenant cost this month")


def test_yesterday_is_replayed_with_a_replica_less(page: Page, running: Running) -> None:
    task = Task(page, running, "operator")
    task.visit("Lab")
    page.get_by_role("button", name="What if…").click()
    form = page.get_by_role("dialog")
    form.get_by_role("button", name="A time of a pool").click()
    # Yesterday at 14:00 stands there; this instance is minutes old.
    now = page.evaluate("Date.now() - new Date().getTimezoneOffset() * 60000") / 1000
    for label, at in (("^From", now - 3600), ("^To$", now + 60)):
        form.get_by_role("textbox", name=re.compile(label)).fill(
            datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M")
        )
    form.get_by_role("group", name="Lost replicas").get_by_role("checkbox").last.click()
    form.get_by_role("button", name="Start run").click()
    expect(page.locator("#run")).to_contain_text("done", timeout=120_000)
    expect(page.get_by_role("main")).to_contain_text("without engine-1")
    task.took("replay yesterday 14:00 to 16:00 with a lost replica")


def test_an_alert_is_read_with_what_went_before_and_taken(page: Page, running: Running) -> None:
    task = Task(page, running, "operator")
    with contextlib.ExitStack() as ends:
        admin = ends.enter_context(httpx.Client(base_url=f"{running.url}/api/v1", timeout=60))
        admin.headers["Authorization"] = f"Bearer {running.demo['admin']['token']}"
        rule = {"name": "engines queue", "kind": "engine_queue", "threshold": -1, "for_s": 0}
        number = admin.post("/alert-rules", json=rule | {"pool": running.demo["pool"]}).raise_for_status().json()["id"]
        ends.callback(lambda: admin.delete(f"/alert-rules/{number}").raise_for_status())
        task.visit("Alerts")
        mine = page.locator("[data-alert='engines queue']").first
        expect(mine).to_be_visible(timeout=90_000)
        mine.get_by_role("combobox", name="Assign engines queue").select_option("operator")
        expect(mine.get_by_role("combobox", name="Assign engines queue")).to_have_value("operator")
        mine.get_by_role("link").first.click()
        expect(page.get_by_role("heading", name="What went before")).to_be_visible()
        task.took("take an open alert and read what went before it and whom it hurt")


def test_a_killed_engine_is_named_with_its_time_and_the_tenants_that_it_hurt(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    up = Up(tmp_path_factory.mktemp("killed") / "home", DEMO_LOAD="on").start()
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    try:
        up.wait_ready()
        running = Running(up.url, up.demo())
        page = context.new_page()
        task = Task(page, running, "operator")
        expect(page.locator("[data-backend]")).to_have_count(2)
        expect(page.get_by_test_id("losses")).to_have_count(0)
        assert up.process is not None
        psutil.Process(up.process.pid).suspend()  # what would start it again
        psutil.Process(up.pid("engine-1")).kill()
        losses = page.get_by_test_id("losses").get_by_role("listitem").filter(has_text="engine-1 lost")
        expect(losses).to_contain_text(re.compile(r"engine-1 lost .* ago"))
        expect(losses).to_contain_text("slots missing")
        expect(losses).to_contain_text(re.compile("Requests lost: |No request is known to have failed"))
        losses.get_by_role("link", name="Backend and its events").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("engine-1")
        task.took("a killed engine: whom it hurt, since when, and where to act")
    finally:
        context.close()
        if up.process is not None:
            psutil.Process(up.process.pid).resume()
        up.stop()


def test_a_seventh_click_would_be_noticed(page: Page, running: Running) -> None:
    task = Task(page, running, "operator")
    for _ in range(MOST + 1):
        task.visit("Requests")
    with pytest.raises(AssertionError):
        task.took("find which tenant another one waited for")
