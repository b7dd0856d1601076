"""The queue page and the past of the overview, played from memory: the order, what operators do, what members see."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import serious
from tests.browser.pretend import queue_of
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser


def test_what_waits_is_listed_in_order_with_its_expected_start_and_why(page: Page, stage: Stage) -> None:
    stage.open("/queue")
    waiting = page.get_by_role("region", name="Waiting requests")
    (pool,) = stage.pools.values()
    shown = queue_of(pool)["preview"]["requests"]
    expect(waiting.get_by_role("rowheader")).to_have_count(len(shown))
    ids = [text.split("…")[-1] for text in waiting.get_by_role("rowheader").all_inner_texts()]
    assert ids == [row["id"][-8:] for row in shown]
    expect(waiting.get_by_role("row").nth(1)).to_contain_text("now")
    expect(waiting.get_by_role("row").last).to_contain_text("expires first")
    expect(waiting.get_by_role("row").last).to_contain_text("beyond the preview")
    lengths = page.get_by_role("region", name="Queues of similar prompts")
    expect(lengths).to_contain_text("256 to 1023 tokens")
    expect(lengths).to_contain_text("bubble")


def test_an_operator_cancels_a_request_only_after_confirming(page: Page, stage: Stage) -> None:
    stage.role = "operator"
    stage.open("/queue")
    page.get_by_role("button", name="Cancel …").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its client receives operator")
    assert serious(page) == []
    dialog.get_by_role("button", name="Go back").click()
    assert stage.done == []
    page.get_by_role("button", name="Cancel …").first.click()
    dialog.get_by_role("button", name="Cancel the request").click()
    expect(page.get_by_role("status")).to_contain_text("The gateway was asked")
    assert len(stage.done) == 1
    assert re.fullmatch(r"requests/req_\w+/cancel", stage.done[0])


def test_a_key_that_is_held_down_asks_and_does_not_answer(page: Page, stage: Stage) -> None:
    """Enter repeats itself after half a second: into the field of the reason, where it would send the form."""
    stage.role = "operator"
    stage.open("/queue")
    page.get_by_role("button", name="Pause", exact=True).focus()
    page.keyboard.down("Enter")
    reason = page.get_by_role("dialog").get_by_label("Reason, for the audit log")
    expect(reason).to_be_focused()
    for _ in range(3):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(reason).to_be_focused()
    assert stage.done == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(stage.done) == 1


def test_an_operator_pauses_a_tenant_with_a_reason_and_drains_a_backend(page: Page, stage: Stage) -> None:
    stage.role = "operator"
    stage.open("/queue")
    page.get_by_role("combobox", name="Tenant").select_option("dune")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_label("Reason, for the audit log").fill("a runaway job")
    assert serious(page) == []
    page.get_by_role("button", name="Pause the tenant").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Backend").select_option("llama-1")
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious(page) == []
    page.get_by_role("button", name="Drain the backend").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert stage.done == ["tenants/dune/pause", "backends/llama-1/drain"]
    assert stage.bodies[0] == {"reason": "a runaway job"}


@pytest.mark.parametrize("width", [1440, 390])
def test_a_notice_lies_over_the_header_and_covers_no_row(width: int, page: Page, stage: Stage) -> None:
    stage.role = "operator"
    page.set_viewport_size({"width": width, "height": 844})
    stage.open("/queue")
    page.get_by_label("Backend").select_option("llama-1")
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("button", name="Drain the backend").click()
    notice = page.get_by_role("status").get_by_text("llama-1")
    expect(notice).to_be_visible()
    lies, header = notice.bounding_box(), page.get_by_role("banner").bounding_box()
    assert lies is not None
    assert header is not None
    assert lies["y"] + lies["height"] <= header["y"] + header["height"]
    assert header["y"] == 0  # wherever the page was scrolled to


def test_a_member_is_offered_no_actions(page: Page, stage: Stage) -> None:
    stage.role = "member"
    stage.open("/queue")
    expect(page.get_by_role("region", name="Waiting requests")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel …")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause", exact=True)).to_have_count(0)


def test_a_request_in_the_queue_leads_to_its_story_and_an_id_in_the_address_opens_it(page: Page, stage: Stage) -> None:
    row = next(r for r in stage.rows if r["outcome"] == "refused")
    stage.open(f"/requests?id={row['request_id']}")
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text("48 of 48 in flight before it")
    expect(drawer).to_contain_text("not reached")
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("id="))
    done = next(r for r in stage.rows if r["outcome"] == "completed" and r["queued_at"])
    stage.open(f"/requests?id={done['request_id']}")
    expect(drawer).to_contain_text("class elastic 100 × SLO 0.42 × burst 0.91 × debt 1.84")
    expect(drawer).to_contain_text("place 7 in the queue")
    expect(drawer).to_contain_text("0.0013 EUR")


def test_the_past_is_asked_for_beyond_the_live_minutes_and_a_moment_has_an_address(page: Page, stage: Stage) -> None:
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if "live/history" in r.url else None)
    stage.open("/")
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    assert asked == []
    with page.expect_request(re.compile("live/history.*minutes=1440")):
        page.get_by_role("button", name="24 h").click()
    expect(page).to_have_url(re.compile("window=1440"))
    stage.open(f"/?at={int(time.time()) - 7200}&window=30")
    expect(page.get_by_test_id("moment")).to_contain_text("The charts show the time until")
    page.get_by_role("button", name="Back to now").click()
    expect(page.get_by_test_id("moment")).to_have_count(0)


def test_the_wall_shows_figures_and_charts_alone_and_escape_leaves_it(page: Page, stage: Stage) -> None:
    stage.open("/?wall=1")
    expect(page.get_by_role("button", name="Exit full screen")).to_be_visible()
    expect(page.get_by_role("region", name="Table of entitlements")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Table of entitlements")).to_be_visible()
    expect(page).not_to_have_url(re.compile("wall"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/queue", "story"])
@pytest.mark.parametrize("width", [2560, 1440, 390])
def test_pages_keep_nobody_out_and_nothing_overflows(path: str, theme: str, width: int, page: Page) -> None:
    stage = Stage(page, theme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    done = next(r for r in stage.rows if r["outcome"] == "completed" and r["queued_at"])
    stage.open(f"/requests?id={done['request_id']}" if path == "story" else path)
    if path == "story":
        expect(page.get_by_role("dialog")).to_contain_text("Cost")
    else:
        expect(page.get_by_role("main")).to_be_visible()
    page.wait_for_timeout(500)
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    figures = page.locator("[data-backend] .grid span")
    assert figures.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)") == []


@pytest.mark.parametrize(
    ("role", "said"), [("admin", "There is no pool yet."), ("member", "You have no access to a pool.")]
)
def test_without_a_pool_whoever_sees_all_is_not_told_that_access_is_missing(role: str, said: str, page: Page) -> None:
    empty = Stage(page, pools=[])
    empty.role = role
    empty.open("/queue")
    expect(page.get_by_text(said)).to_be_visible()
