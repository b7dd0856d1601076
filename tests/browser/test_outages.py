"""Every page of the console, opened afresh while Redis, the leader, the database or an engine is away: it says what
cannot be seen and since when, says nothing that was not read, and recovers by itself.

One real instance on PostgreSQL for all of it, with its demo load. Processes are stopped (SIGSTOP), so that nothing is
started again in between, or killed while what would start them again is stopped; PostgreSQL is shut down and started.
Everybody looks: the admin at every page, an operator and a tenant's member at some (all of them in `make test-slow`).
SQLite's lock is held on the session's instance.

``make outage-pictures`` keeps a picture of each page in each outage, and of each once it is over, to be looked at.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.browser.conftest import Running, wait_for
from tests.support.instance import Up
from tests.support.postgresql import postgresql

POOLS = 2  # of the demo
OF_EACH_POOL = ("leader", "ledger")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROUTER = Path(__file__).resolve().parents[2] / "frontend" / "src" / "main.tsx"

# What the router has, and the addresses at which it is looked at.
ADDRESSES: dict[str, list[str]] = {
    "": ["/"],
    "requests": ["/requests"],
    "tenants": ["/tenants"],
    "tenants/:tenant/:tab?": ["/tenants/acme", "/tenants/acme/neighbours", "/tenants/acme/batches"],
    "usage": ["/usage"],
    "pools": ["/pools"],
    "pools/:pool": ["/pools/{pool}"],
    "backends": ["/backends"],
    "backends/:backend": ["/backends/engine-1"],
    "keys/:key": ["/keys/{key}"],
    "models/*": ["/models/{model}"],
    "users/:user": ["/users/ada"],
    "me": ["/me"],
    "adapters": ["/adapters"],
    "tiers": ["/tiers"],
    "slos": ["/slos"],
    "prices": ["/prices"],
    "people": ["/people"],
    "roles": ["/roles"],
    "audit": ["/audit"],
    "policies": ["/policies"],
    "lab": ["/lab"],
    "queue": ["/queue"],
    "drift": ["/drift"],
    "alerts": ["/alerts"],
    "alerts/:alert": ["/alerts/{alert}"],
    "moment": ["/moment?pool={pool}&at={at}", "/moment"],
    "events": ["/events"],
    "playground": ["/playground"],
    "welcome": ["/welcome"],
    "*": ["/no-such-page"],
}
PAGES = [address for addresses in ADDRESSES.values() for address in addresses]
TABS = 12  # pages that are open at once
RECOVERED_MS = 90_000
PICTURES = os.environ.get("PYTEST_OUTAGE_PICTURES", "")  # the folder in which they are kept
PAST = ("/requests", "/audit", "/lab")  # what they show as good is over

ALL_IS_WELL = (
    "Everything is set up", "requests are coming in", "A pool is serving", "All clear",
    "no access to a pool", "No pools yet", "No pool yet", "No requests waiting.", "no requests waiting",
    "No requests running", "none in the last minute", "No request has reached this pool",
    "The live feed is up to date", "Predictions are accurate",
    "Asking the scheduler for the order", "2 of 2 ready", "no slots",
)  # fmt: skip
NOT_FOR_MEMBERS = ("No backend yet", "No roles assigned", "Address of your engine")  # they are, out of their sight
WELL_WITHOUT_AN_ENGINE = ("Everything is set up", "A pool is serving", "All clear", "2 of 2 ready")

OTHERS_PAGES = {
    "operator": ["/", "/queue", "/backends", "/alerts"],
    "member": ["/", "/queue", "/tenants/acme", "/usage", "/alerts", "/backends", "/roles", "/welcome"],
}

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
GREEN = """() => [...document.querySelectorAll(":is(main, header) :is(.text-good, .bg-good, .bg-good-bg)")]
  .filter(e => e.getClientRects().length > 0).map(e => e.textContent || e.className)"""


@dataclass(frozen=True)
class Instance:
    up: Up
    running: Running
    cluster: Path  # PostgreSQL's data
    places: dict[str, str]  # what stands for {alert}, {pool} and so on in an address

    def at(self, address: str) -> str:
        return self.up.url + address.format(**self.places)

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

    def killed(self, pids: list[int]) -> Callable[[], None]:
        """Kills processes, and keeps them from being started again; what lets that happen."""
        assert self.up.process is not None
        supervisor = psutil.Process(self.up.process.pid)
        supervisor.suspend()
        for pid in pids:
            psutil.Process(pid).kill()
        return supervisor.resume

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
            yield Instance(up, Running(up.url, up.demo()), folder / "pg", _open_alert(up))
        finally:
            up.stop()


def _open_alert(up: Up) -> dict[str, str]:
    """An alert that holds as long as its rule is there, and a moment at which requests ran."""
    pool = up.demo()["pool"]
    with httpx.Client(base_url=f"{up.url}/api/v1", headers=up.admin(), timeout=60) as api:
        rule = {"name": "engines queue", "kind": "engine_queue", "threshold": -1, "for_s": 0, "pool": pool}
        api.post("/alert-rules", json=rule).raise_for_status()
        found: list[dict[str, Any]] = []

        def opened() -> bool:
            found[:] = api.get("/alerts", params={"state": "open"}).raise_for_status().json()["results"]
            return bool(found)

        wait_for(opened, 120, lambda: "the rule opened no alert")
        key = up.demo()["keys"]["premium"].removeprefix("qm-").partition(".")[0]
        return {
            "alert": str(found[0]["id"]),
            "pool": pool,
            "at": found[0]["at"],
            "key": key,
            "model": up.demo()["model"],
        }


@contextmanager
def browsing(
    browser: Browser, running: Running, phrases: tuple[str, ...], who: str = "admin"
) -> Iterator[BrowserContext]:
    """Somebody who has logged in, in a time zone whose clock the test knows."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(30_000)
    context.add_init_script(RECORDER % list(phrases))
    page = context.new_page()
    running.log_in(page, who)
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


def named(page: Page, outage: str, address: str = "") -> Locator:
    """The notice of an outage: one, that names all pools where each has its own."""
    notice = page.locator(f"[data-outage={outage}]")
    if outage in OF_EACH_POOL:
        expect(notice, address).to_contain_text(f"{POOLS} pools")
    return notice


def keep_picture(page: Page, outage: str, address: str) -> None:
    """What the page shows, where pictures are wanted."""
    if PICTURES:
        name = re.sub(r"[^a-z0-9]+", "-", address).strip("-") or "overview"
        page.screenshot(path=Path(PICTURES) / f"{outage}-{name}.png")


def faults_of(pages: dict[str, Page], outage: str, told_s: float) -> list[str]:
    """What pages that were opened in an outage say wrong, or do not say."""
    faults = []
    for address, page in pages.items():
        notice = named(page, outage, address)
        said_above = "at risk|failing|unknown" if outage == "engine" else "unknown"
        expect(page.get_by_test_id("verdict"), address).to_have_attribute("data-level", re.compile(said_above))
        if abs(since_s(notice.inner_text()) - told_s) > 1:
            faults.append(f"{address} says another time: {notice.inner_text()}")
        settled(page)
        keep_picture(page, outage, address)
        if said := page.evaluate("[...window.__said]"):
            faults.append(f"{address} says {said}")
        green = outage in ("redis", "leader") and not address.startswith(PAST) and page.evaluate(GREEN)
        if green:
            faults.append(f"{address} shows as good: {green}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append(f"{address} scrolls sideways")
    return faults


def opened(context: BrowserContext, at: Callable[[str], str], addresses: list[str]) -> dict[str, Page]:
    tabs = {address: context.new_page() for address in addresses}
    for address, page in tabs.items():
        page.goto(at(address), wait_until="commit")
    return tabs


@pytest.mark.parametrize("every_page", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("outage", ["redis", "leader", pytest.param("engine", marks=pytest.mark.slow)])
def test_an_operator_and_a_member_are_told_as_much_by_the_pages_they_open_in_an_outage(
    outage: str, every_page: bool, browser: Browser, instance: Instance
) -> None:
    phrases = (WELL_WITHOUT_AN_ENGINE if outage == "engine" else ALL_IS_WELL) + NOT_FOR_MEMBERS
    names = {"redis": ["redis"], "leader": ["worker", "standby"], "engine": ["engine-1"]}[outage]
    with ExitStack() as ends:
        contexts = {
            who: ends.enter_context(
                browsing(
                    browser, instance.running, phrases if who == "member" else phrases[: -len(NOT_FOR_MEMBERS)], who
                )
            )
            for who in OTHERS_PAGES
        }
        began_s = time.time()
        ends.callback(once := _Once(instance.killed([instance.up.pid(name) for name in names])))
        first = contexts["operator"].new_page()
        first.goto(instance.up.url + "/queue")
        notice = named(first, outage)
        expect(notice).to_contain_text(" since ")  # a replica that fails is ejected before it is unseen
        told_s = since_s(notice.inner_text())
        assert began_s - 10 < told_s < began_s + 10, "the moment it was last seen"
        first.close()
        faults, everywhere = [], {}
        for who, context in contexts.items():
            tabs = opened(context, instance.at, PAGES if every_page else OTHERS_PAGES[who])
            faults += [f"{who}: {fault}" for fault in faults_of(tabs, outage, told_s)]
            everywhere |= {f"{who} {address}": page for address, page in tabs.items()}
        assert not faults, "\n".join(faults)
        once()
        for name, page in everywhere.items():
            expect(page.get_by_test_id("outages"), name).to_have_count(0, timeout=90_000)
            expect(page.locator("[data-unknown]"), name).to_have_count(0)


def test_while_sqlite_is_locked_pages_say_what_is_not_stored_and_that_the_rest_goes_on(
    browser: Browser, running: Running
) -> None:
    """Its lock is held for longer than a leader may be silent: it is still one, and publishes what it does."""
    assert running.home is not None
    with ExitStack() as ends:
        tabs = {}
        contexts = {who: ends.enter_context(browsing(browser, running, (), who)) for who in ("admin", "member")}
        watching = contexts["admin"].new_page()
        watching.goto(running.url + "/queue")
        database = ends.enter_context(closing(sqlite3.connect(running.home / "db.sqlite3", isolation_level=None)))
        database.execute("PRAGMA busy_timeout = 30000")
        watching.evaluate(
            """() => { window.__outages = new Set(); setInterval(() => {
                 for (const e of document.querySelectorAll("[data-outage]")) window.__outages.add(e.dataset.outage);
               }, 200); }"""
        )
        database.execute("BEGIN EXCLUSIVE")
        began_s = time.time()
        for who, context in contexts.items():
            tabs |= {
                f"{who} {a}": page
                for a, page in opened(context, running.at, ["/", "/requests", "/usage", "/alerts"]).items()
            }
        for name, page in tabs.items():
            notice = named(page, "ledger", name)
            expect(notice, name).to_be_visible()
            assert began_s - 15 < since_s(notice.inner_text()) < began_s + 10, name
            settled(page)
        assert "is not all included yet" in tabs["member /usage"].inner_text("main")
        while time.time() < began_s + 12:
            time.sleep(0.5)
        assert watching.evaluate("[...window.__outages]") == ["ledger"], "the leader leads, and rules are evaluated"
        expect(tabs["admin /"].get_by_test_id("connection")).to_have_attribute("data-state", "live")
        database.execute("ROLLBACK")
        for name, page in tabs.items():
            expect(page.get_by_test_id("outages"), name).to_have_count(0)


def few() -> Iterator[list[str]]:
    """The pages, some at a time: thirty that all ask again at once when it is over are a load of their own."""
    for first in range(0, len(PAGES), TABS):
        yield PAGES[first : first + TABS]


@pytest.mark.parametrize("outage", ["redis", "leader", "engine"])
def test_a_page_opened_in_an_outage_says_what_cannot_be_seen_and_recovers_by_itself(
    outage: str, browser: Browser, instance: Instance
) -> None:
    phrases = WELL_WITHOUT_AN_ENGINE if outage == "engine" else ALL_IS_WELL
    names = {"redis": ["redis"], "leader": ["worker", "standby"], "engine": ["engine-0"]}[outage]
    with browsing(browser, instance.running, phrases) as context, ExitStack() as ends:
        before = context.new_page()  # open when it begins
        before.goto(instance.up.url + "/queue")
        for addresses in few():
            settled(before)
            expect(before.get_by_test_id("outages")).to_have_count(0)
            began_s = time.time()
            ends.callback(resume := _Once(instance.stopped([instance.up.pid(name) for name in names])))
            notice = named(before, outage)
            told_s = since_s(notice.inner_text())
            assert began_s - 10 < told_s < began_s + 10, "the moment it was last seen"
            tabs, faults = {}, []
            for address in addresses:
                tabs[address] = page = context.new_page()
                page.goto(instance.at(address))
                faults += faults_of({address: page}, outage, told_s)
            assert not faults, "\n".join(faults)
            resume()
            for address, page in [("/queue, open before", before), *tabs.items()]:
                expect(page.get_by_test_id("outages"), address).to_have_count(0, timeout=RECOVERED_MS)
                expect(page.locator("[data-unknown]"), address).to_have_count(0, timeout=RECOVERED_MS)
            _well(tabs)
            for address, page in tabs.items():
                keep_picture(page, f"after-{outage}", address)
                page.close()


def _well(tabs: dict[str, Page]) -> None:
    """What pages say again once it is over."""
    if "/" in tabs:
        connection = tabs["/"].get_by_test_id("connection")
        expect(connection).to_have_attribute("data-state", "live", timeout=RECOVERED_MS)
    if "/alerts" in tabs:
        expect(tabs["/alerts"].get_by_text("cannot be evaluated")).to_have_count(0, timeout=RECOVERED_MS)
    if "/welcome" in tabs:
        expect(tabs["/welcome"].get_by_role("heading", name="Everything is set up")).to_be_visible(timeout=RECOVERED_MS)
    if "/queue" in tabs:
        expect(tabs["/queue"].get_by_role("region", name="Running requests")).to_be_visible(timeout=RECOVERED_MS)


def test_without_the_database_every_page_says_so_since_when_and_comes_back_by_itself(
    browser: Browser, instance: Instance
) -> None:
    with browsing(browser, instance.running, ALL_IS_WELL) as context, ExitStack() as ends:
        before = context.new_page()
        before.goto(instance.up.url + "/alerts")
        for addresses in few():
            settled(before)
            expect(before.get_by_test_id("outages")).to_have_count(0, timeout=RECOVERED_MS)
            began_s = time.time()
            start = _Once(instance.without_database())
            ends.callback(start)
            notice = before.locator("[data-outage=database]")
            expect(notice).to_be_visible()
            told_s = since_s(notice.inner_text())
            assert began_s - 15 < told_s < began_s + 15
            before.evaluate("window.__said.clear()")
            tabs, faults = {}, []
            for address in [*addresses, "/login"]:
                tabs[address] = page = context.new_page()
                answer = page.goto(instance.at(address))
                assert answer is not None
                text = page.inner_text("body")
                if answer.status != 503 or "database does not answer" not in text or "Inference continues" not in text:
                    faults.append(f"{address}: {answer.status} {text[:200]}")
                elif abs(since_s(text) - told_s) > 15:
                    faults.append(f"{address} says another time: {text}")
                keep_picture(page, "database", address)
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
                    expect(page.locator("header"), address).to_be_visible(timeout=RECOVERED_MS)
            expect(before.get_by_test_id("outages")).to_have_count(0, timeout=RECOVERED_MS)
            expect(before.get_by_text("cannot be evaluated")).to_have_count(0, timeout=RECOVERED_MS)
            expect(before.get_by_role("region", name="Alert rules")).to_be_visible()
            for page in tabs.values():
                page.close()


class _Once:
    """Whatever happens in between, it is called, and once."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
