"""Every page of the console, opened afresh while Redis, the leader, the database or an engine is away: it says what
cannot be seen and since when, says nothing that was not read, and recovers by itself.

One real instance on PostgreSQL for all of it, with its demo load. Processes are stopped (SIGSTOP), so that nothing is
started again in between; PostgreSQL is shut down and started.
"""

from __future__ import annotations

import re
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import Running, wait_for
from tests.support.instance import Up
from tests.support.postgresql import postgresql

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ROUTER = Path(__file__).resolve().parents[2] / "frontend" / "src" / "main.tsx"

# What the router has, and the addresses at which it is looked at.
ADDRESSES: dict[str, list[str]] = {
    "": ["/"],
    "requests": ["/requests"],
    "tenants": ["/tenants"],
    "tenants/:tenant/:tab?": ["/tenants/acme", "/tenants/acme/neighbours"],
    "usage": ["/usage"],
    "pools": ["/pools"],
    "backends": ["/backends"],
    "tiers": ["/tiers"],
    "slos": ["/slos"],
    "prices": ["/prices"],
    "roles": ["/roles"],
    "audit": ["/audit"],
    "policies": ["/policies"],
    "lab": ["/lab"],
    "queue": ["/queue"],
    "drift": ["/drift"],
    "alerts": ["/alerts"],
    "playground": ["/playground"],
    "welcome": ["/welcome"],
    "*": ["/no-such-page"],
}
PAGES = [address for addresses in ADDRESSES.values() for address in addresses]
PAST = ("/requests", "/audit", "/lab")  # what they show as good is over

ALL_IS_WELL = (
    "Everything is set up", "requests are coming in", "A pool is serving", "All clear",
    "no access to a pool", "No pools yet", "No pool yet", "No requests waiting.", "no requests waiting",
    "No requests running", "none in the last minute", "Nothing has been sent to this pool",
    "The live feed is up to date", "Predictions are accurate",
    "Asking the scheduler for the order", "2 of 2 ready", "no slots",
)  # fmt: skip
WELL_WITHOUT_AN_ENGINE = ("Everything is set up", "A pool is serving", "All clear", "2 of 2 ready")

# Notes every such phrase that is on the page at any moment, also one that is replaced at once.
RECORDER = """
(phrases => {
  window.__said = new Set();
  const look = () => {
    const text = document.body ? document.body.innerText : "";
    for (const phrase of phrases) if (text.includes(phrase)) window.__said.add(phrase);
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
})(%s);
"""
GREEN = """() => [...document.querySelectorAll("main .text-good, main .bg-good, main .bg-good-bg")]
  .filter(e => e.getClientRects().length > 0).map(e => e.textContent || e.className)"""


@dataclass(frozen=True)
class Instance:
    up: Up
    running: Running
    cluster: Path  # PostgreSQL's data

    def stopped(self, pids: list[int]) -> Callable[[], None]:
        """Stops processes; what lets them go on."""
        processes = [psutil.Process(pid) for pid in pids]
        processes += [child for process in processes for child in process.children(recursive=True)]
        for process in processes:
            process.suspend()

        def resume() -> None:
            for process in processes:
                process.resume()

        return resume

    def without_database(self) -> Callable[[], None]:
        pid = int((self.cluster / "postmaster.pid").read_text().splitlines()[0])
        command = shlex.split((self.cluster / "postmaster.opts").read_text())
        psutil.Process(pid).send_signal(signal.SIGINT)  # fast: sessions are ended
        wait_for(lambda: not (self.cluster / "postmaster.pid").exists(), 60, lambda: "PostgreSQL did not stop")
        owner = self.cluster.owner()

        def start() -> None:
            log = (self.cluster.parent / "restarted.log").open("ab")
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, user=owner)

        return start


@pytest.fixture(scope="module")
def instance(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("outages")
    with postgresql(folder) as database:
        up = Up(
            folder / "home",
            QUARTERMASTER_DATABASE_URL=database,
            DEMO_LOAD="on",
            QUARTERMASTER_SECRET_KEY=secrets.token_urlsafe(48),
        ).start()
        try:
            up.wait_ready()
            yield Instance(up, Running(up.url, up.demo()), folder / "pg")
        finally:
            up.stop()


@contextmanager
def browsing(browser: Browser, instance: Instance, phrases: tuple[str, ...]) -> Iterator[BrowserContext]:
    """Somebody who has logged in, in a time zone whose clock the test knows."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(30_000)
    context.add_init_script(RECORDER % list(phrases))
    page = context.new_page()
    instance.running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    page.close()
    try:
        yield context
    finally:
        context.close()


def since_s(text: str) -> float:
    """The moment a notice names, on today's clock."""
    found = re.search(r"since (?:at least )?(?:[\d-]+ |\d+ \w+, )?(\d\d):(\d\d):(\d\d) UTC", text)
    assert found, f"no time is named: {text}"
    now = datetime.now(UTC)
    hour, minute, second = map(int, found.groups())
    return now.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()


def settled(page: Page) -> None:
    """What it asked for has come, or was refused."""
    expect(page.locator("main .skeleton")).to_have_count(0)


def test_no_page_of_the_router_is_left_out() -> None:
    routes = set(re.findall(r'<Route\s+path="([^"]+)"|<Route index', ROUTER.read_text()))  # "" is the index
    assert routes == set(ADDRESSES), "give the new page a row, and look at what it says in an outage"


@pytest.mark.parametrize("outage", ["redis", "leader", "engine"])
def test_a_page_opened_in_an_outage_says_what_cannot_be_seen_and_recovers_by_itself(
    outage: str, browser: Browser, instance: Instance
) -> None:
    phrases = WELL_WITHOUT_AN_ENGINE if outage == "engine" else ALL_IS_WELL
    faults: list[str] = []
    with browsing(browser, instance, phrases) as context, ExitStack() as ends:
        before = context.new_page()  # open when it begins
        before.goto(instance.up.url + "/queue")
        settled(before)
        expect(before.get_by_test_id("outages")).to_have_count(0)
        names = {"redis": ["redis"], "leader": ["worker", "standby"], "engine": ["engine-0"]}[outage]
        began_s = time.time()
        resume = instance.stopped([instance.up.pid(name) for name in names])
        ends.callback(resume)
        notice = before.locator(f"[data-outage={outage}]")
        expect(notice).to_be_visible()
        told_s = since_s(notice.inner_text())
        assert began_s - 10 < told_s < began_s + 10, "the moment it was last seen"
        tabs: dict[str, Page] = {}
        for address in PAGES:
            tabs[address] = page = context.new_page()
            page.goto(instance.up.url + address)
            notice = page.locator(f"[data-outage={outage}]")
            expect(notice).to_be_visible()
            if abs(since_s(notice.inner_text()) - told_s) > 1:
                faults.append(f"{address} says another time: {notice.inner_text()}")
            settled(page)
            if said := page.evaluate("[...window.__said]"):
                faults.append(f"{address} says {said}")
            if outage != "engine" and not address.startswith(PAST) and (green := page.evaluate(GREEN)):
                faults.append(f"{address} shows as good: {green}")
        assert not faults, "\n".join(faults)
        resume()
        for address, page in [("/queue, open before", before), *tabs.items()]:
            expect(page.get_by_test_id("outages"), address).to_have_count(0)
            expect(page.locator("[data-unknown]"), address).to_have_count(0)
        expect(tabs["/"].get_by_test_id("connection")).to_have_attribute("data-state", "live")
        expect(tabs["/alerts"].get_by_text("cannot be evaluated")).to_have_count(0)
        expect(tabs["/welcome"].get_by_role("heading", name="Everything is set up")).to_be_visible()
        expect(tabs["/queue"].get_by_role("region", name="Running requests")).to_be_visible()


def test_without_the_database_every_page_says_so_since_when_and_comes_back_by_itself(
    browser: Browser, instance: Instance
) -> None:
    faults: list[str] = []
    with browsing(browser, instance, ALL_IS_WELL) as context, ExitStack() as ends:
        before = context.new_page()
        before.goto(instance.up.url + "/alerts")
        settled(before)
        began_s = time.time()
        start = ends.enter_context(_once(instance.without_database()))
        notice = before.locator("[data-outage=database]")
        expect(notice).to_be_visible()
        told_s = since_s(notice.inner_text())
        assert began_s - 15 < told_s < began_s + 15
        before.evaluate("window.__said.clear()")
        tabs: dict[str, Page] = {}
        for address in [*PAGES, "/login"]:
            tabs[address] = page = context.new_page()
            answer = page.goto(instance.up.url + address)
            assert answer is not None
            text = page.inner_text("body")
            if answer.status != 503 or "database does not answer" not in text or "Inference continues" not in text:
                faults.append(f"{address}: {answer.status} {text[:200]}")
            elif abs(since_s(text) - told_s) > 15:
                faults.append(f"{address} says another time: {text}")
        asked = context.request.get(f"{instance.up.url}/api/v1/alerts")
        assert (asked.status, asked.json()["code"]) == (503, "database_away")
        assert abs(asked.json()["since"] - told_s) < 15
        with instance.up.client() as client:  # what the page promises
            client.chat.completions.create(
                model=instance.up.demo()["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
            )
        assert not faults, "\n".join(faults)
        assert before.evaluate("[...window.__said]") == []
        start()
        for address, page in tabs.items():
            if address != "/login":
                expect(page.locator("header"), address).to_be_visible(timeout=40_000)
        expect(before.get_by_test_id("outages")).to_have_count(0, timeout=40_000)
        expect(before.get_by_text("cannot be evaluated")).to_have_count(0)
        expect(before.get_by_role("region", name="Alert rules")).to_be_visible()


@contextmanager
def _once(start: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Whatever happens in between, it is started, and once."""
    done = False

    def run() -> None:
        nonlocal done
        if not done:
            done = True
            start()

    try:
        yield run
    finally:
        run()
