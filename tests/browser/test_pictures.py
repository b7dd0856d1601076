"""Pages look as they did: pictures of them, with a server played from memory, beside those in ``pictures/``.

Everything that moves is held: data and clock are fixed, animations are off. Pictures depend on fonts and on Chromium's
version; where those are not the ones of the kept pictures, comparing is skipped, and says so. ``make pictures`` takes
them anew.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.compare import BLOCKS, Darkroom, Difference, fingerprint
from tests.browser.conftest import PATIENCE_MS
from tests.browser.pretend import PretendPool
from tests.browser.pretend_books import books
from tests.browser.stage import Stage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

KEPT = Path(__file__).parent / "pictures"
FINGERPRINT = KEPT / "taken-with.json"
ANEW = os.environ.get("PICTURES") == "anew"
NOW_S = 1_790_000_000.0
SIZES = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
THEMES = ("light", "dark")
MOST_BYTES = 1_500_000

# The address, and what says that the page is there.
PAGES: dict[str, tuple[str, Callable[[Page], Any]]] = {
    "overview": ("/", lambda page: page.locator(".uplot canvas").first),
    "overview-redis-away": ("/", lambda page: page.locator("[data-outage=redis]")),
    "pools": ("/pools", lambda page: page.get_by_role("region", name="Pools now").locator("tbody tr").nth(5)),
    "queue": ("/queue", lambda page: page.get_by_role("region", name="Running requests")),
    "queue-redis-away": ("/queue", lambda page: page.locator("main [data-unknown]").first),
    "requests": ("/requests", lambda page: page.get_by_role("region", name="Requests").locator("tbody tr").first),
    "story": ("/requests?id={waited}", lambda page: page.get_by_role("dialog").get_by_text("Kept its SLO")),
    "user": ("/users/ada?range=1", lambda page: page.get_by_test_id("over-time").get_by_role("region").last),
    "tenants": ("/tenants", lambda page: page.locator("main tbody tr").first),
    "backends": ("/backends", lambda page: page.locator("main tbody tr").first),
    "alerts": ("/alerts", lambda page: page.get_by_role("region", name="Alert rules")),
    "events": ("/events", lambda page: page.get_by_text("was taken out").first),
}

# What a change of the style sheet may do by mistake: the page it is seen on, and the rule.
BROKEN = {
    "a column shifts": ("queue", "td:nth-child(3), th:nth-child(3) { padding-left: 36px !important }"),
    "a tile is gone": ("overview", "main dl > div:nth-child(4) { visibility: hidden }"),
    "bad is shown as good": ("alerts", "main .text-bad, main .bg-bad-bg { color: green; background: #dfd !important }"),
    "labels are larger": ("tenants", "main th { font-size: 15px !important }"),
    "the phone's tiles are in one column": ("overview", "main dl { grid-template-columns: 1fr !important }"),
}


def staged(page: Page, name: str, theme: str) -> Stage:
    """The page as it is at one moment for ever."""
    pools = [PretendPool(at=NOW_S)]
    if name == "pools":
        pools = [PretendPool(f"pool-{i}", at=NOW_S, seed=i, idle=i == 2) for i in range(6)]
    stage = Stage(page, pools, theme, clock=lambda: NOW_S)
    stage.answers = books(NOW_S)
    if name == "pools":
        stage.answers["pools"] = {"count": 0, "next": None, "previous": None, "results": []}
    if name.endswith("redis-away"):
        stage.away = [{"source": "redis", "since": NOW_S - 47}]
    return stage


def take(browser: Browser, darkroom: Darkroom, name: str, size: str, theme: str, style: str = "") -> bytes:
    """A picture of a page, once two in a row are the same."""
    context = browser.new_context(
        viewport=SIZES[size], reduced_motion="reduce", color_scheme=theme, timezone_id="UTC", locale="en-GB"
    )
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.clock.set_fixed_time(NOW_S)
        stage = staged(page, name, theme)
        address, there = PAGES[name]
        waited = next(row for row in stage.rows if row["queued_at"])
        stage.open(address.format(waited=waited["request_id"]))
        expect(there(page)).to_be_visible()
        expect(page.locator("main .skeleton")).to_have_count(0)
        if style:  # the policy of the page forbids a style element
            page.evaluate(
                "css => { const s = new CSSStyleSheet(); s.replaceSync(css); document.adoptedStyleSheets = [s]; }",
                style,
            )
        page.evaluate("document.fonts.ready")
        return darkroom.shrink(still(page))
    finally:
        context.close()


def still(page: Page) -> bytes:
    """The page once it does not change any more."""
    end = time.monotonic() + PATIENCE_MS / 1000
    before = b""
    while True:
        page.wait_for_timeout(300)
        now = page.screenshot(animations="disabled", caret="hide")
        if now == before:
            return now
        assert time.monotonic() < end, "the page keeps changing"
        before = now


@pytest.fixture(scope="module")
def darkroom(browser: Browser) -> Iterator[Darkroom]:
    one = Darkroom(browser)
    yield one
    one.close()


@pytest.fixture(scope="module")
def here(browser: Browser) -> dict[str, Any]:
    """What pictures are taken with on this machine."""
    page = browser.new_page()
    Stage(page, clock=lambda: NOW_S).open()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    found = fingerprint(browser, page)
    page.close()
    if ANEW:
        KEPT.mkdir(exist_ok=True)
        FINGERPRINT.write_text(json.dumps(found) + "\n")
    return found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_did(
    name: str, size: str, theme: str, browser: Browser, darkroom: Darkroom, here: dict[str, Any], tmp_path: Path
) -> None:
    if (kept_with := json.loads(FINGERPRINT.read_text())) != here:
        pytest.skip(f"the pictures were taken with {kept_with}, here it is {here}: fonts or Chromium differ")
    kept = KEPT / f"{name}-{size}-{theme}.webp"
    now = take(browser, darkroom, name, size, theme)
    if ANEW:
        if not kept.exists() or darkroom.compare(kept.read_bytes(), now):
            kept.write_bytes(now)
        return
    difference = darkroom.compare(kept.read_bytes(), now)
    seen = tmp_path / kept.name
    seen.write_bytes(now)
    assert not difference, f"{difference}; see {seen} beside {kept}, and run `make pictures` if it should look so"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("broken", BROKEN)
def test_what_a_broken_style_does_is_seen(broken: str, size: str, browser: Browser, darkroom: Darkroom) -> None:
    if broken == "the phone's tiles are in one column" and size == "wide":
        size = "phone"
    name, style = BROKEN[broken]
    well, again = (take(browser, darkroom, name, size, "light") for _ in range(2))
    assert not darkroom.compare(well, again), "the same page twice"
    assert darkroom.compare(well, take(browser, darkroom, name, size, "light", style))


def test_no_picture_is_of_a_page_that_is_not_taken_and_all_are_small() -> None:
    names = {f"{name}-{size}-{theme}.webp" for name in PAGES for size in SIZES for theme in THEMES}
    assert {one.name for one in KEPT.glob("*.webp")} == names
    assert sum(one.stat().st_size for one in KEPT.iterdir()) < MOST_BYTES


def test_a_few_blocks_may_differ_and_a_row_of_letters_may_not() -> None:
    few = [(8 * i, 0, 40) for i in range(BLOCKS)]
    assert not Difference([], few)
    assert Difference([], [*few, (0, 8, 40)])
    assert re.search("x 0 to 48, y 0 to 16", str(Difference([], [*few, (0, 8, 40)])))
    assert Difference([[720, 450], [195, 422]], [])
