"""Where things stand on a page, and how often they are said: at a desk and on a phone, played from memory."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pretend_books import books
from tests.browser.stage import Stage

pytestmark = pytest.mark.browser

NOW_S = 1_790_000_000.0


def listed(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"count": len(rows), "next": None, "previous": None, "results": list(rows)}


@pytest.fixture
def told(page: Page, stage: Stage) -> Stage:
    """A stage that has something to say of every page of here."""
    page.clock.set_fixed_time(NOW_S)
    stage.clock = lambda: NOW_S
    stage.answers = books(NOW_S) | {
        "people": listed(),
        "invitations": listed(),
        "group-rules": listed(),
        "sessions": listed(),
        "tokens": listed(),
        "second-factor": {"available": True, "enabled": False, "mandatory": False, "app": False, "passkeys": []},
        "usage": {"columns": ["tenant"], "rows": []},
        "spending": {"budgets": []},
        "keys": listed(),
    }
    return stage


def test_one_action_of_the_page_of_people_is_its_primary_one(page: Page, told: Stage) -> None:
    told.open("/people")
    for name in ("New service account", "New group rule", "Set up an app", "New token"):
        expect(page.get_by_role("button", name=name)).to_be_visible()
    expect(page.locator("main .button-primary")).to_have_text(["New invitation"])
