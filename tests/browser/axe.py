"""axe-core (a development package of the front end) on the page under test: what keeps people with other senses out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = Path(__file__).resolve().parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")


COLOURS = ("color-contrast", "link-in-text-block")  # what another theme can change


def serious(page: Page, only: tuple[str, ...] = ()) -> list[str]:
    """Findings that keep people out, one line each with the element. Empty is good.

    Args:
        only: these rules; all where empty. For pages whose structure was looked at in another theme.
    """
    page.evaluate(AXE.read_text())
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if only:
        options["runOnly"] = list(only)
    found: dict[str, Any] = page.evaluate("(options) => axe.run(options)", options)
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in found["violations"]
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]
