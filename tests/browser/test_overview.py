"""The live overview, with a server played from memory: what it shows, how it heals, and when it says that it is old."""

from __future__ import annotations

import random
import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pretend import PretendPool
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser


def connection(page: Page, state: str) -> None:
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", state)


def waiting_on_screen(page: Page) -> int:
    tile = page.locator("dl > div", has_text="Queue depth").first.locator("dd").first
    found = re.match(r"\d+", tile.inner_text())
    assert found is not None
    return int(found.group())


def shows(page: Page, pool: PretendPool) -> None:
    """The page's figures are the server's."""
    entitlements = pool.snapshot["entitlements"]
    for name in entitlements:
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))
        cells = row.get_by_role("cell")
        expect(cells.nth(1)).to_have_text(str(entitlements[name]["waiting"]))
        expect(cells.nth(2)).to_contain_text(f"{entitlements[name]['running']} / {entitlements[name]['concurrency']}")
    assert waiting_on_screen(page) == pool.snapshot["queue"]["depth"]


def test_the_overview_shows_the_pools_figures_and_follows_them(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    (pool,) = stage.pools.values()
    shows(page, pool)
    for _ in range(20):
        stage.second()
    shows(page, pool)
    expect(page.locator("[data-backend=llama-2]")).to_contain_text("no token for 15 s")
    expect(page.locator(".uplot canvas")).to_have_count(17)


def apart_s(page: Page, stage: Stage, seconds: int, seed: int = 11) -> int:
    """So many seconds of which three in ten are lost; for how many in a row the page showed something else."""
    (pool,) = stage.pools.values()
    lost, longest, behind = random.Random(seed), 0, 0
    for _ in range(seconds):
        pool.at = time.time() - 1
        stage.second(deliver=lost.random() > 0.3)
        page.wait_for_timeout(1000)
        behind = 0 if on_screen(page) == in_snapshot(pool) else behind + 1
        longest = max(longest, behind)
    return longest


def on_screen(page: Page) -> dict[str, list[str]]:
    """Waiting and running of each entitlement, as the table says."""
    found: dict[str, list[str]] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("[aria-label='Table of entitlements'] tbody tr")].map(
            (row) => [row.querySelector("th span").textContent,
                      [row.cells[2].textContent, row.cells[3].textContent.split(" / ")[0].trim()]]))"""
    )
    return found


def in_snapshot(pool: PretendPool) -> dict[str, list[str]]:
    return {name: [str(e["waiting"]), str(e["running"])] for name, e in pool.snapshot["entitlements"].items()}


def test_a_page_that_loses_a_third_of_the_changes_shows_the_servers_figures_within_five_seconds(
    page: Page, stage: Stage
) -> None:
    stage.open()
    connection(page, "live")
    assert apart_s(page, stage, 14) <= 5
    assert {"type": "resync", "pool": "llama"} in stage.received


def test_a_page_whose_questions_are_not_answered_would_stay_behind_and_says_so(page: Page, stage: Stage) -> None:
    stage.deaf = True
    stage.open()
    connection(page, "live")
    assert apart_s(page, stage, 20) > 5
    connection(page, "stale")


def test_a_cut_socket_is_said_greyed_and_healed(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    (pool,) = stage.pools.values()
    stage.refuse_sockets = True
    stage.cut()
    connection(page, "reconnecting")
    expect(page.get_by_test_id("figures")).to_have_attribute("data-stale", "true")
    expect(page.get_by_test_id("outages")).to_contain_text("live feed (/ws/live) does not open")
    expect(page.get_by_test_id("connection")).to_contain_text("stale for")
    stage.refuse_sockets = False
    pool.at = time.time()
    pool.step()
    page.get_by_role("button", name="Retry now").click()
    connection(page, "live")
    expect(page.get_by_test_id("figures")).to_have_attribute("data-stale", "false")
    shows(page, pool)


def test_silence_of_a_pool_makes_its_figures_stale_and_news_make_them_live_again(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    connection(page, "stale")  # nothing came for five seconds
    expect(page.get_by_test_id("connection")).to_have_text(re.compile(r"Stale for \d+ s"))
    (pool,) = stage.pools.values()
    pool.at = time.time()
    stage.second()
    connection(page, "live")


def test_an_outage_of_the_shared_state_is_named(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    stage.send({"type": "error", "code": "state_unavailable", "message": ""})
    connection(page, "stale")
    expect(page.get_by_test_id("outages")).to_contain_text("Redis has not answered since")


def test_a_proxy_that_passes_no_websockets_on_is_named_as_the_cause(page: Page, stage: Stage) -> None:
    stage.refuse_sockets = True
    stage.open()
    notice = page.get_by_test_id("outages")
    expect(notice).to_contain_text("The server answers, but its live feed (/ws/live) does not open")
    expect(notice).to_contain_text("a proxy that does not pass WebSockets on")
    expect(notice).not_to_contain_text("older figures")
    expect(page.get_by_text("unknown since at least").first).to_be_visible()
    expect(page.get_by_text("the live feed does not open").first).to_be_visible()


def test_an_ended_session_leads_to_the_login(page: Page, stage: Stage) -> None:
    stage.open("/?pool=llama")
    connection(page, "live")
    stage.cut(4401)
    connection(page, "signed_out")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile(r"/login\?next=%2F%3Fpool%3Dllama$"))


def test_pause_holds_the_figures_and_resume_catches_up(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    (pool,) = stage.pools.values()
    page.get_by_role("button", name="Pause").click()
    before = waiting_on_screen(page)
    while pool.snapshot["queue"]["depth"] == before:
        stage.second()
    connection(page, "paused")
    page.wait_for_timeout(200)
    assert waiting_on_screen(page) == before
    page.get_by_role("button", name="Resume").click()
    shows(page, pool)


def test_pools_are_switched_and_the_choice_is_in_the_address(page: Page) -> None:
    stage = Stage(page, [PretendPool("llama", time.time(), seed=1), PretendPool("qwen", time.time(), seed=2)])
    stage.open()
    page.get_by_label("Pool").select_option("qwen")
    expect(page).to_have_url(re.compile(r"\?pool=qwen$"))
    shows(page, stage.pools["qwen"])
    page.reload()
    expect(page.get_by_label("Pool")).to_have_value("qwen")


def test_an_installation_without_pools_leads_admins_and_tells_others_whom_to_ask(page: Page) -> None:
    stage = Stage(page, pools=[])
    stage.rows = []
    stage.open()
    expect(page.get_by_role("heading", name="Welcome to Quartermaster")).to_be_visible()
    expect(page.locator("[aria-current=step]")).to_contain_text("First backend and pool")
    stage.role = "operator"
    page.reload()
    expect(page.get_by_role("heading", name="No pools yet")).to_be_visible()


def test_a_pool_to_which_nothing_was_sent_shows_how_to_send(page: Page) -> None:
    Stage(page, [PretendPool(at=time.time(), idle=True)]).open()
    expect(page.get_by_text("No request has reached this pool")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("/v1/chat/completions")


def test_the_table_sorts_and_groups_by_keyboard(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    header = page.get_by_role("columnheader", name="Waiting")
    header.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    (pool,) = stage.pools.values()
    most = max(pool.snapshot["entitlements"].items(), key=lambda item: item[1]["waiting"])[0]
    table = page.get_by_role("region", name="Table of entitlements")
    expect(table.get_by_role("rowheader").first).to_contain_text(most)
    page.get_by_role("button", name="By tenant").press("Enter")
    expect(page.get_by_role("region", name="Table of tenants").get_by_role("rowheader")).to_have_text(
        list_of_tenants(pool)
    )


def list_of_tenants(pool: PretendPool) -> list[str]:
    rows = pool.snapshot["tenants"].items()
    return [name for name, row in sorted(rows, key=lambda item: (-item[1]["waiting"], item[0]))]


@pytest.mark.parametrize("width", [390, 768, 1440, 2560])
@pytest.mark.parametrize("path", ["/", "/requests"])
def test_no_page_is_wider_than_the_window(page: Page, stage: Stage, width: int, path: str) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    stage.open(path)
    expect(page.get_by_role("table").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_numbers_that_change_do_not_move_the_page(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    expect(page.locator(".uplot canvas")).to_have_count(17)
    page.wait_for_timeout(500)
    page.evaluate(
        """() => { window.moved = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) window.moved += entry.value;
        }).observe({type: "layout-shift"}); }"""
    )
    for _ in range(30):
        stage.second()
        page.wait_for_timeout(40)
    assert page.evaluate("window.moved") < 0.01


def test_colours_are_chosen_and_kept(page: Page, stage: Stage) -> None:
    stage.open()
    page.get_by_role("button", name="Switch to light").click()
    page.get_by_role("button", name="Switch to dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert any(c["name"] == "qm_theme" and c["value"] == "dark" for c in page.context.cookies())


def test_entitlements_that_were_not_sent_are_counted_found_and_ordered_on_the_server(page: Page, stage: Stage) -> None:
    stage.open()
    connection(page, "live")
    (pool,) = stage.pools.values()
    sent = len(pool.snapshot["entitlements"])
    row = next(iter(pool.snapshot["entitlements"].values()))
    other = {**pool.snapshot, "entitlements": {"zeta-standard": row | {"tenant": "zeta", "waiting": 4711}}}
    stage.answers["live"] = {"at": time.time(), "pools": {pool.name: other | {"left_out": {"entitlements": 5000}}}}
    pool.snapshot["left_out"] = {"entitlements": 5000, "tenants": 900}
    stage.send_snapshot(pool)
    table = page.get_by_role("region", name="Table of entitlements")
    expect(page.get_by_role("heading", name=f"Entitlements {sent} of {5000 + sent:,}")).to_be_visible()
    with page.expect_request(lambda request: "order=debt" in request.url and f"pool={pool.name}" in request.url):
        table.get_by_role("button", name="Debt").click()
    expect(table.get_by_role("rowheader", name="zeta-standard")).to_be_visible()
    table.get_by_role("button", name="Tier").click()
    expect(table.get_by_role("rowheader", name="zeta-standard")).to_have_count(0)
    with page.expect_request(lambda request: "search=zeta" in request.url):
        page.get_by_role("searchbox", name="Find among all").fill("zeta")
    expect(table.get_by_role("row").filter(has_text="zeta-standard").get_by_role("cell").nth(1)).to_have_text("4,711")
