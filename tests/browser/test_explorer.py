"""Exploring requests and the command palette, with a server played from memory."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser import axe
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser


def test_a_part_of_the_heat_map_asks_for_its_time_and_durations(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    box = page.get_by_test_id("heat").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, middle + 1, steps=3)
    expect(page.get_by_test_id("heat-part")).to_contain_text("100 ms to 1.00 s")
    page.mouse.up()
    expect(page).to_have_url(re.compile("from=.*&to=.*ttft_over=0.1&ttft_under=1"))
    expect(page.get_by_label("Query")).to_have_value(re.compile("ttft:>0.1s ttft:<1s at:"))


def test_the_largest_come_first_by_a_click_and_columns_are_chosen(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    table = page.get_by_role("region", name="Ended requests")
    table.get_by_role("button", name="Waited").click()
    expect(page).to_have_url(re.compile("order=waited"))
    expect(page.get_by_text("largest by Waited")).to_be_visible()
    assert any(asked.get("order") == ["waited"] for asked in stage.queries)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="Key").check()
    expect(table.get_by_role("columnheader", name="Key")).to_be_visible()
    expect(page).to_have_url(re.compile("columns="))


def test_columns_ticked_one_after_the_other_are_on_screen_before_the_browser_paints(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    page.get_by_text("Columns", exact=True).click()
    expect(page.get_by_role("checkbox", name="Key")).to_be_visible()
    ticked = page.evaluate(
        """async () => {
            const labels = [...document.querySelectorAll('label')];
            const box = (name) => labels.find((label) => label.textContent === name).querySelector('input');
            const seen = [];
            for (const name of ['Key', 'Pool']) {
              box(name).click();
              for (let turn = 0; turn < 100; turn += 1) await null; // promises, but no timer and no frame
              seen.push(box(name).checked);
            }
            return [...seen, box('Key').checked];
        }"""
    )
    assert ticked == [True, True, True]
    expect(page).to_have_url(re.compile("columns=.*key%2Cpool"))


def test_requests_are_followed_as_they_end_and_only_what_is_new_is_asked_for(page: Page, stage: Stage) -> None:
    stage.open("/requests?tenant=acme&order=waited")
    page.get_by_role("button", name="Follow").click()
    expect(page).to_have_url(re.compile(r"tenant=acme&follow=1&summary=0$"))
    table = page.get_by_role("region", name="Ended requests")
    expect(table.get_by_role("columnheader", name="Ended")).to_be_visible()
    first = table.get_by_role("row").nth(1)
    stage.stored += stage.rows[2:1:-1]
    expect(first).to_contain_text(stage.rows[2]["request_id"][-8:])
    expect(table.locator("tbody tr")).to_have_count(len(stage.stored))
    assert stage.tails[-1]["tenant"] == ["acme"]
    assert int(stage.tails[-1]["place"][0]) >= len(stage.rows) - 3
    listed = len(stage.queries)
    page.get_by_role("button", name="Pause").click()
    asked = len(stage.tails)
    stage.stored += stage.rows[1::-1]
    stage.tail_whole = False  # more ended meanwhile than are sent
    page.wait_for_timeout(2500)
    assert len(stage.tails) <= asked + 1, "one may have been under way"
    page.get_by_role("button", name="Resume").click()
    expect(first).to_contain_text(stage.rows[0]["request_id"][-8:])
    expect(table.get_by_role("row").nth(3)).to_contain_text("More requests ended here than can be followed.")
    assert len(stage.queries) == listed, "the list that is not followed is not read"


def test_a_view_is_saved_under_a_name_and_opened_again(page: Page, stage: Stage) -> None:
    stage.open("/requests?tenant=acme&order=waited")
    page.get_by_role("button", name="Save view").click()
    page.get_by_role("textbox", name="Name").fill("slow ones")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("combobox", name="Saved views")).to_contain_text("slow ones")
    assert stage.views[0]["query"] == "tenant=acme&order=waited"
    stage.open("/requests")
    page.get_by_role("combobox", name="Saved views").select_option(label="slow ones")
    expect(page).to_have_url(re.compile(r"tenant=acme&order=waited$"))


def test_a_leaked_key_is_found_by_typing_and_its_secret_is_never_sent(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    expect(page.get_by_label("Query")).to_be_visible()
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name="Page, object, key id or action")
    box.fill("qm-k2iTIrq3.thesecret")
    expect(page.get_by_role("option", name=re.compile("ci .qm-k2iTIrq3"))).to_be_visible()
    assert stage.asked
    assert not [text for text in stage.asked if "thesecret" in text]
    page.get_by_role("option", name=re.compile("Requests of key")).click()
    expect(page).to_have_url(re.compile("key_id=k2iTIrq3"))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_palette_is_used_by_keyboard_alone(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    expect(page.get_by_label("Query")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Page, object, key id or action")).to_be_focused()
    expect(page.get_by_role("option", name=re.compile("Overview"))).to_be_visible()
    assert axe.serious(page) == [], "its list scrolls, and is reached from the field"
    page.keyboard.type("queu")
    expect(page.get_by_role("option", name=re.compile("Queue"))).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/queue"))


def test_shortcuts_are_listed_and_lead_from_page_to_page_but_not_while_typing(page: Page, stage: Stage) -> None:
    stage.open("/requests")
    search = page.get_by_label("Query")
    expect(search).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("gq")
    expect(page).to_have_url(re.compile("/requests"))
    search.blur()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_url(re.compile("/queue"))


def test_a_fixed_time_goes_along_to_the_next_page_until_it_is_left(page: Page, stage: Stage) -> None:
    stage.open("/requests?from=2026-11-23T08:40:00.000Z&to=2026-11-23T08:55:00.000Z")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Overview").click()
    expect(page).to_have_url(re.compile(r"at=1795424100&window=15"))
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Requests").click()
    expect(page).to_have_url(re.compile("from=2026-11-23T08%3A40"))
    page.get_by_title(re.compile("kept from page to page")).click()
    expect(page).not_to_have_url(re.compile("from="))
