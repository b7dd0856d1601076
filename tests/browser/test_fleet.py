"""All pools at a glance, and an object's requests over time, with a server played from memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import axe
from tests.browser.conftest import PATIENCE_MS, wait_for
from tests.browser.pretend import PretendPool
from tests.browser.pretend_books import books
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
    expect(row).to_contain_text(re.compile(r"cannot be seen since .*\d\d:\d\d:\d\d"))
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


def without_alerts(page: Page) -> Stage:
    """One pool, and no alert that has opened."""
    stage = Stage(page)
    stage.history = 0
    stage.answers = books(time.time()) | {
        "alerts": {"next": None, "previous": None, "results": []},
        "alerts/open": {"open": 0, "critical": 0, "unwatched": []},
    }
    return stage


def test_all_is_not_clear_while_a_pool_fails_although_no_rule_has_opened_an_alert_yet(page: Page) -> None:
    stage = without_alerts(page)
    (pool,) = stage.pools.values()
    stage.open("/alerts")
    expect(page.get_by_role("region", name="Alert rules")).to_be_visible()
    pool.at = time.time() + 3600
    pool.step()
    pool.snapshot["backends"] = {"llama-2": pool.snapshot["backends"]["llama-2"]}
    stage.send_snapshot(pool)
    failing = page.get_by_test_id("failing")
    expect(failing).to_contain_text("No alert is open, but not everything is healthy")
    expect(failing).to_contain_text("llama: no replica serves: 0 of 1 ready, 1 ejected")
    expect(page.get_by_text("All clear")).to_have_count(0)


# Notes each change of what is said of the pool, above the page and on it.
LEVELS = """() => {
  window.__levels = [];
  const look = () => {
    const said = [...new Set([...document.querySelectorAll("[data-level]")].map(e => e.dataset.level))].join(" and ");
    if (said !== window.__levels.at(-1)) window.__levels.push(said);
  };
  look();
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
}"""


def test_a_pool_is_not_healthy_while_a_tier_misses_its_slo_that_has_few_of_the_requests(page: Page) -> None:
    stage = without_alerts(page)
    (pool,) = stage.pools.values()
    stage.answers["alert-rules"] = []
    tiers = {
        "batch": {"asked": 267, "total": 267, "violations": 0, "attainment": 1.0},
        "premium": {"asked": 35, "total": 25, "violations": 0, "attainment": 0.714},
    }
    stage.open("/")
    tile = page.locator(".tile", has_text="SLO attainment")
    expect(tile).to_contain_text("%")
    stage.send({"type": "sources", "away": [], "pools": ["llama"]})
    pool.at = time.time() + 3600
    pool.step()
    pool.snapshot["backends"] = {"llama-0": pool.snapshot["backends"]["llama-0"]}
    pool.snapshot["slo"] = {"attainment": 0.957, "asked": 302, "total": 292, "violations": 0, "by_tier": tiers}
    stage.send_snapshot(pool)
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_have_attribute("data-level", "failing")
    expect(verdict).to_contain_text("llama: premium 71.4 % in time of 35 asked, should be 90.0 %")
    expect(tile).to_have_attribute("data-tone", "bad")
    expect(tile).to_contain_text("premium 71.4 % in time of 35 asked")


def test_a_pool_around_its_threshold_fails_on_every_page_until_it_was_in_time_for_ten_seconds(page: Page) -> None:
    stage = without_alerts(page)
    (pool,) = stage.pools.values()
    stage.answers["alert-rules"] = []

    def in_time(attainment: float) -> float:
        pool.at = time.time() + 3600  # what the page hears stays fresh for the whole test
        pool.step()
        pool.snapshot["backends"] = {"llama-0": pool.snapshot["backends"]["llama-0"]}
        pool.snapshot["slo"] = {"attainment": attainment, "asked": 1000, "total": 1000}
        stage.send_snapshot(pool)
        return time.monotonic()

    stage.open("/pools")
    expect(page.get_by_role("region", name="Pools now")).to_be_visible()
    stage.send({"type": "sources", "away": [], "pools": ["llama"]})
    in_time(0.899)
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("llama: 89.9 % in time of 1,000 asked, should be 90.0 %")
    page.evaluate(LEVELS)
    for _ in range(3):
        in_time(0.901)
        expect(verdict).to_contain_text(
            re.compile(r"llama: failing until \d s ago; now: 90.1 % in time of 1,000 asked")
        )
        in_time(0.899)
        expect(verdict).to_contain_text("llama: 89.9 % in time")
    began = in_time(0.95)
    row = page.get_by_role("region", name="Pools now").locator("[data-level]")
    expect(row).to_have_text(re.compile(r"failing\s*until \d s ago, now:\s*95.0 % in time of 1,000 asked"))
    page.get_by_role("link", name="Alerts", exact=True).first.click()
    expect(page.get_by_test_id("failing")).to_contain_text(re.compile(r"llama: failing until \d s ago; now: 95.0 %"))
    page.get_by_role("link", name="Pools", exact=True).first.click()
    expect(row).to_have_attribute("data-level", "healthy")
    assert time.monotonic() - began > 9
    expect(row).to_contain_text("95.0 % in time of 1,000 asked")
    expect(page.get_by_text("until")).to_have_count(0)
    assert page.evaluate("window.__levels") == ["failing", "healthy"]


class Calm(PretendPool):
    """Two replicas, both ready."""

    def _make(self) -> dict[str, Any]:
        second = super()._make()
        ready = second["backends"]["llama-0"]
        slo = {"attainment": 0.95, "asked": 1000, "total": 1000}
        return second | {"backends": {"llama-0": ready, "llama-1": dict(ready)}, "slo": slo}


def test_what_is_wrong_now_is_named_while_the_figures_of_the_overview_are_paused(page: Page) -> None:
    pool = Calm(at=time.time())
    stage = Stage(page, [pool])
    stage.history = 0

    def hear(**replica: Any) -> None:
        pool.at = time.time() - 1
        pool.step()
        pool.snapshot["backends"]["llama-1"] |= replica
        stage.send_snapshot(pool)

    stage.open("/")
    expect(page.get_by_test_id("figures")).to_be_visible()
    stage.send({"type": "sources", "away": [], "pools": ["llama"]})
    hear()
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_have_attribute("data-level", "healthy")
    page.get_by_role("button", name="Pause").click()
    for _ in range(7):  # until the figures that are held are too old to be the present
        hear()
        page.wait_for_timeout(1000)
        expect(verdict).to_have_attribute("data-level", "healthy")
    hear(state="ejected", down_since=time.time())
    expect(verdict).to_contain_text("llama-1 lost")
    expect(page.locator("[data-outage=engine]")).to_contain_text("llama-1")
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "paused")


def test_on_a_phone_a_lost_replica_is_seen_before_its_effects_and_failing_pools_take_no_turns(page: Page) -> None:
    page.set_viewport_size(PHONE)
    pools = {name: Calm(name, at=time.time()) for name in ("llama", "qwen")}
    stage = Stage(page, list(pools.values()))
    stage.history = 0
    stage.answers["alert-rules"] = []

    def hear(name: str, attainment: float, **replica: Any) -> None:
        pool = pools[name]
        pool.at = time.time() + 3600  # what the page hears stays fresh for the whole test
        pool.step()
        pool.snapshot["slo"] = {"attainment": attainment, "asked": 1000, "total": 1000}
        pool.snapshot["backends"]["llama-1"] |= replica
        stage.send_snapshot(pool)

    stage.open("/pools")
    expect(page.get_by_role("region", name="Pools now")).to_be_visible()
    stage.send({"type": "sources", "away": [], "pools": list(pools)})
    verdict = page.get_by_test_id("verdict")
    for _ in range(2):
        hear("qwen", 0.8)
        hear("llama", 0.95)
        expect(verdict).to_contain_text("qwen: 80.0 % in time of 1,000 asked, should be 90.0 %")
        hear("llama", 0.8)
        hear("qwen", 0.95)
        expect(verdict).to_contain_text(re.compile(r"qwen: failing until \d s ago; now: 95.0 % in time"))
    hear("qwen", 0.8, state="ejected", down_since=time.time() + 3570)
    expect(verdict).to_contain_text(re.compile(r"qwen: \d+ of \d+ slots: llama-1 lost \d+ s ago; 80.0 % in time"))


def test_tiles_that_are_unknown_keep_their_names_and_say_nothing_of_slots(page: Page) -> None:
    stage = Stage(page)
    stage.open("/")
    tiles = page.locator("main dl").first.locator("dt")
    expect(page.get_by_text("usable")).to_have_count(0)  # some are missing: it says which
    expect(tiles.last).to_have_text("GPU utilization")
    names = tiles.all_inner_texts()
    stage.send({"type": "sources", "away": [{"source": "redis", "since": time.time() - 47}], "pools": ["llama"]})
    expect(page.locator("main dl[data-unknown] dd", has_text="unknown since")).to_have_count(8)
    assert tiles.all_inner_texts() == names
    expect(page.get_by_text("usable")).to_have_count(0)


def test_of_many_pools_the_one_that_is_looked_at_has_its_past(page: Page, fleet: Callable[[int], Stage]) -> None:
    stage = fleet(3)
    stage.history, stage.histories = 120, False
    stage.open("/?pool=pool-002")
    chart = page.get_by_role("region", name="Queue depth by tenant")
    expect(chart).to_be_visible()
    expect(page.get_by_role("combobox", name="Pool")).to_have_value("pool-002")
    wait_for(lambda: "pool-002" in asked(stage), PATIENCE_MS / 1000, lambda: str(stage.received))
    assert "pool-001" not in asked(stage)
    page.get_by_role("combobox", name="Pool").select_option("pool-001")
    wait_for(lambda: "pool-001" in asked(stage), PATIENCE_MS / 1000, lambda: str(stage.received))


def asked(stage: Stage) -> list[str]:
    """Pools whose history the page asked for."""
    stage.page.evaluate("0")  # what it sent meanwhile is heard
    return [message["pool"] for message in stage.received if message.get("history")]


def test_a_tenant_is_without_entitlements_only_once_all_of_them_were_read(page: Page) -> None:
    stage = Stage(page)
    stage.answers = books(time.time())
    stage.answers["entitlements"] = stage.answers["entitlements"] | {"results": [], "count": 0}
    held: list[Route] = []
    page.route(re.compile("/api/v1/entitlements"), lambda route: held.append(route), times=1)
    stage.open("/tenants")
    cell = page.get_by_role("row", name=re.compile("^acme")).get_by_role("cell").first
    expect(cell).to_have_text("…")
    away = {"detail": "The database does not answer."}
    page.route(re.compile("/api/v1/entitlements"), lambda route: route.fulfill(status=503, json=away), times=2)
    held[0].fulfill(status=503, json=away)
    expect(cell).to_have_text("unknown")
    page.reload()
    expect(cell).to_have_text("none: it cannot send requests")


def test_what_a_tenant_does_over_its_pools_names_those_that_cannot_be_seen(
    page: Page, fleet: Callable[[int], Stage]
) -> None:
    stage = fleet(2)
    stage.answers = books(time.time())
    rows = stage.answers["entitlements"]["results"]
    both = [row | {"pool": pool, "slug": f"{row['slug']}-{pool}"} for row in rows for pool in stage.pools]
    both = [row for row in both if row["tenant"] == "acme" or row["pool"] == "pool-001"]
    stage.answers["entitlements"] |= {"results": both, "count": len(both)}
    stage.open("/pools")
    seen(page, stage)
    page.get_by_role("link", name="Tenants").first.click()
    acme = page.get_by_role("row", name=re.compile("^acme"))
    expect(acme.get_by_role("cell").nth(1)).not_to_contain_text("–")
    expect(page.get_by_text("Figures without")).to_have_count(0)
    lost = stage.pools["pool-000"]
    lost.at = time.time() - 60
    lost.step()
    stage.send_snapshot(lost)
    away = {"source": "leader", "pool": "pool-000", "since": time.time() - 47}
    stage.send({"type": "sources", "away": [away], "pools": list(stage.pools)})
    expect(acme).to_contain_text("Figures without pool pool-000: unknown since")
    expect(page.get_by_text("Figures without")).to_have_count(1)  # the others have no share there
    assert axe.serious(page) == []
    acme.get_by_role("link", name="acme").click()
    expect(page.get_by_role("region", name="Now")).to_contain_text("Figures without pool pool-000: unknown since")
