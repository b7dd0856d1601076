"""Every page of a real instance, as an operator, as a member of one tenant, and as a stranger.

What a page is for is tested beside it (``test_catalog_pages.py``, ``test_operating.py``, ``test_live_system.py``).
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.browser.conftest import Running
from tests.browser.test_catalog_pages import PAGES as BOOKS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OWN, OTHERS = "acme", ("globex", "initech")  # the demo's member belongs to acme
PAGES = (
    "/", "/?window=60", "/?wall=1", "/queue", "/requests", "/policies", "/lab", "/drift", "/alerts", *BOOKS.values(),
)  # fmt: skip
API = ("live", "live/history?pool=llama", "requests", "usage", "tenants", "entitlements", "keys", "alerts", "audit")


class Heard:
    """Everything a browser was told while it looked at every page: texts, answers of the API, frames of the feed."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.answers: list[str] = []
        self.frames: list[str] = []
        self.failed: list[str] = []

    def listen(self, page: Page) -> None:
        page.on("response", self._answer)
        page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: self.frames.append(str(frame))))

    def _answer(self, response: Response) -> None:
        if "/api/v1/" not in response.url or response.request.resource_type != "fetch":
            return
        self.answers.append(response.text())
        if response.status >= 400:
            self.failed.append(f"{response.status} {response.url} {self.answers[-1][:200]}")

    def names(self, name: str) -> list[str]:
        """Where a name was heard."""
        found = [f"page {path}" for path, text in self.texts.items() if name in text]
        found += [f"answer {text[:200]}" for text in self.answers if name in text]
        return found + [f"frame {text[:200]}" for text in self.frames if name in text]


def tour(browser: Browser, running: Running, who: str) -> Heard:
    """Each page, once it has loaded what it shows."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    heard = Heard()
    running.log_in(page, who)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    heard.listen(page)
    for path in PAGES:
        page.goto(running.url + path)
        expect(page.get_by_role("main").get_by_role("heading").first).to_be_attached()
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        if path.startswith("/?") or path == "/":
            expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
        heard.texts[path] = page.content()
    context.close()
    return heard


@pytest.fixture(scope="module")
def member(browser: Browser, running: Running) -> Heard:
    return tour(browser, running, "member")


@pytest.fixture(scope="module")
def operator(browser: Browser, running: Running) -> Heard:
    return tour(browser, running, "operator")


@pytest.mark.parametrize("other", OTHERS)
def test_a_member_is_told_nothing_of_another_tenant_on_any_page(other: str, member: Heard) -> None:
    assert member.names(other) == []
    assert len(member.answers) > 30
    assert any('"snapshot"' in frame for frame in member.frames)
    assert any(OWN in frame for frame in member.frames)


@pytest.mark.parametrize("other", OTHERS)
def test_an_operator_on_the_same_way_is_told_of_it_in_texts_answers_and_frames(other: str, operator: Heard) -> None:
    found = operator.names(other)
    assert {place.partition(" ")[0] for place in found} == {"page", "answer", "frame"}


def test_no_page_asks_for_what_its_reader_may_not_have(member: Heard, operator: Heard) -> None:
    expected = re.compile(r"/api/v1/tenants/globex")  # nobody but this test asks a member's browser for it
    assert [line for line in member.failed if not expected.search(line)] == []
    assert operator.failed == []


def test_a_stranger_gets_neither_pages_nor_answers_nor_the_feed(page: Page, running: Running) -> None:
    for path in PAGES:
        answer = page.request.get(running.url + path, max_redirects=0)
        assert answer.status == 302, path
        assert answer.headers["location"].startswith("/login?next="), path
    for path in API:
        answer = page.request.get(f"{running.url}/api/v1/{path}")
        assert answer.status in (401, 403), path
        assert not any(name in answer.text() for name in (OWN, *OTHERS))
    page.goto(running.url)
    opened = page.evaluate(
        """() => new Promise((done) => {
            const socket = new WebSocket(new URL("/ws/live", location.href.replace(/^http/, "ws")));
            socket.onopen = () => done(true);
            socket.onclose = () => done(false);
        })"""
    )
    assert opened is False
