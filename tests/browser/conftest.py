"""Chromium for the tests of the pages; without one, or without a built console, they are skipped with the reason."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.stage import DIST, Stage

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_MS = 30_000  # other tests may share the machine
expect.set_options(timeout=PATIENCE_MS)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} does not exist; install chromium or name one with CHROMIUM=...")
    if not (DIST / ".vite" / "manifest.json").exists():
        pytest.skip("the console was not built; run make setup")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own; an error in its scripts or a breach of the content security policy fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: faults.append(m.text) if "Content Security Policy" in m.text else None)
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def stage(page: Page) -> Stage:
    return Stage(page)


@dataclass(frozen=True)
class Running:
    """A real instance with its demo load."""

    url: str
    demo: dict[str, Any]
    home: Path | None = None

    def at(self, address: str) -> str:
        return self.url + address

    def log_in(self, page: Page, who: str = "admin") -> None:
        page.goto(self.url)
        page.get_by_label("User name").fill(who)
        page.get_by_label("Password").fill(self.demo["passwords"][who])
        page.get_by_role("button", name="Log in").click()


@pytest.fixture(scope="session")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("instance") / "home"
    log = home.parent / "output"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")}
    environ |= {"QUARTERMASTER_HOME": str(home), "QUARTERMASTER_PORT": str(port)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.embedded"],
            cwd=ROOT,
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: process.poll() is not None or _ready(url), 120, log.read_text)
        assert process.poll() is None, log.read_text()
        demo = json.loads((home / "demo.json").read_text())
        hold_still(url, demo)
        yield Running(url, demo, home)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def hold_still(url: str, demo: dict[str, Any]) -> None:
    """The demo's pool tunes itself, so that one sees it; here only tests change its policy."""
    headers = {"Authorization": f"Bearer {demo['admin']['token']}"}
    with httpx.Client(base_url=f"{url}/api/v1/pools", headers=headers) as api:
        api.put(f"/{demo['pool']}/tuning", json={"mode": "off"}).raise_for_status()
        api.patch(
            f"/{demo['pool']}", json={"policy": "unified", "policy_params": {}, "modifiers": {}}
        ).raise_for_status()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def wait_for(condition: Callable[[], bool], limit_s: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.1)
