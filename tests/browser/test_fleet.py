"""All pools at a glance, and an object's requests over time, with a server played from memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import axe
from tests.browser.pretend import PretendPool
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}


@pytest.fixture
def fleet(page: Page) -> Callable[[int], Stage]:
    """So many pools, every tenth of which nobody asks."""

    def build(count: int, theme: str = "") -> Stage:
        now = time.time()
        pools = [PretendPool(f"pool-{i:03d}", at=now, seed=i, idle=i % 10 == 0) for i in range(count)]
        stage = Stage(page, pools, theme)
        stage.history = 0
        return stage

    return build


def seen(page: Page, stage: Stage, age_s: float = -3600.0) -> None:
    """The page hears of every pool, as it was then; by default what it hears stays fresh for the whole test."""
    expect(page.get_by_role("region", name="Pools now")).to_be_visible()
    for pool in stage.pools.values():
        pool.at = time.time() - age_s
        pool.step()
        stage.send_snapshot(pool)


def test_two_hundred_pools_are_shown_with_what_is_wrong_of_each_first(
    page: Page, fleet: Callable[[int], Stage]
) -> None:
    stage = fleet(200)
    stage.open("/pools")
    seen(page, stage)
    rows = page.get_by_role("region", name="Pools now").locator("tbody tr")
    expect(rows).to_have_count(200)
    first = rows.first
    expect(first.locator("[data-level]")).not_to_have_attribute("data-level", "unknown")
    expect(first).to_contain_text(re.compile(r"slots: llama-\d"))
    expect(first.get_by_role("link")).to_have_attribute("href", re.compile("/pools/pool-"))
    page.get_by_role("searchbox", name="Filter").fill("pool-01")
    expect(rows).to_have_count(10)
    expect(page).to_have_url(re.compile("q=pool-01"))


def test_pools_are_sorted_by_any_column(page: Page, fleet: Callable[[int], Stage]) -> None:
    stage = fleet(12)
    stage.open("/pools")
    seen(page, stage)
    table = page.get_by_role("region", name="Pools now")
    table.get_by_role("button", name="Pool", exact=True).click()
    expect(table.locator("tbody tr").first).to_contain_text("pool-000")
    table.get_by_role("button", name="Pool", exact=True).click()
    expect(table.locator("tbody tr").first).to_contain_text("pool-011")


def test_a_pool_that_sends_nothing_is_unknown_and_has_no_figure_and_nothing_green(
    page: Page, fleet: Callable[[int], Stage]
) -> None:
    stage = fleet(3)
    stage.open("/pools")
    seen(page, stage)
    levels = page.locator("main [data-level]")
    expect(page.locator("main [data-level=unknown]")).to_have_count(0)
    expect(levels).to_have_count(3)
    seen(page, stage, age_s=60.0)
    expect(page.locator("main [data-level=unknown]")).to_have_count(3)
    row = page.get_by_role("region", name="Pools now").locator("tbody tr").first
    expect(row).to_contain_text("unknown since")
    expect(row).not_to_contain_text("%")
    assert page.locator("main .text-good, main .bg-good-bg").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_fleet_is_accessible_and_fits_a_phone(page: Page, fleet: Callable[..., Stage], theme: str) -> None:
    stage = fleet(12, theme)
    stage.open("/pools")
    seen(page, stage)
    expect(page.locator("main [data-level]")).to_have_count(12)
    assert axe.serious(page) == []
    page.set_viewport_size(PHONE)
    expect(page.locator("main [data-level]").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_objects_requests_are_drawn_over_time_and_a_zoom_stays_in_the_address(page: Page, theme: str) -> None:
    stage = Stage(page, theme=theme)
    stage.open("/users/ada?range=1")
    charts = page.get_by_test_id("over-time")
    for name in ("Requests", "Refused and failed", "Tokens", "Waiting for a slot", "Time to first token"):
        expect(charts.get_by_role("region", name=name, exact=True)).to_be_visible()
    attainment = charts.get_by_role("region", name="SLO attainment")
    expect(attainment.get_by_role("img")).to_have_attribute("aria-label", re.compile("in time 90"))
    assert axe.serious(page) == []
    box = attainment.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    expect(page).to_have_url(re.compile("range=1&from=.*&to="))
    expect(page.get_by_role("button", name=re.compile(": reset"))).to_be_visible()
    page.get_by_role("button", name="24 h").click()
    expect(page).to_have_url(re.compile(r"range=24$"))
    page.set_viewport_size(PHONE)
    expect(attainment).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
