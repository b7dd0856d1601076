"""Signing in through a real identity provider, in a browser: coming in, another group, and being removed there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Running, wait_for
from tests.support.identity_provider import IdentityProvider
from tests.support.instance import Up

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EVERY_S = int(os.environ.get("RECHECK_S", "2"))  # how often the instance asks again; 30 by default
PATIENCE_S = 100


@dataclass
class World:
    up: Up
    provider: IdentityProvider
    running: Running

    def api(self) -> httpx.Client:
        """The management API, as the demo's admin."""
        return httpx.Client(base_url=f"{self.up.url}/api/v1", headers=self.up.admin(), timeout=60)


@pytest.fixture(scope="module")
def world(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sign-in")
    provider = IdentityProvider(folder)
    more = {"QUARTERMASTER_OIDC_RECHECK_S": str(EVERY_S), "QUARTERMASTER_OIDC_END_KEYS": "on"}
    up = Up(folder / "home", **provider.settings(), **more)
    try:
        provider.start(up.url)
        up.start().wait_ready()
        world = World(up, provider, Running(up.url, up.demo(), up.home))
        with world.api() as api:
            for rule in (
                {"group": "llm-acme", "role": "member", "tenant": "acme"},
                {"group": "llm-globex", "role": "member", "tenant": "globex"},
                {"group": "llm-operators", "role": "operator"},
            ):
                api.post("/group-rules", json=rule).raise_for_status()
        yield world
    finally:
        up.stop()
        provider.stop()


@pytest.fixture(autouse=True)
def _people(world: World) -> None:
    world.provider.write(
        {
            "ada": {"email": "ada@example.org", "groups": ["llm-acme", "cooks"]},
            "bea": {"email": "bea@example.org", "groups": ["cooks"]},
            "cyd": {"email": "cyd@example.org", "groups": ["llm-operators"]},
        }
    )


def sign_in(page: Page, world: World, who: str, path: str = "/") -> None:
    """Through the login page and the provider's own two pages."""
    page.goto(f"{world.up.url}{path}")
    page.get_by_role("link", name="Sign in with the test provider").click()
    page.locator("input[name=login]").fill(who)
    page.locator("input[name=password]").fill("any")
    page.get_by_role("button", name=re.compile("sign-in", re.I)).click()
    page.get_by_role("button", name=re.compile("continue", re.I)).click()


def me(page: Page, world: World) -> tuple[int, dict[str, Any]]:
    answer = page.request.get(f"{world.up.url}/api/v1/me")
    return answer.status, answer.json()


def tenants(page: Page, world: World) -> list[str]:
    return [tenant["slug"] for tenant in me(page, world)[1].get("tenants", [])]


def test_a_person_of_a_group_comes_in_with_the_role_of_that_group(page: Page, world: World) -> None:
    sign_in(page, world, "ada", "/tenants")
    expect(page).to_have_url(f"{world.up.url}/tenants")
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    status, said = me(page, world)
    assert (status, said["username"], said["role"]) == (200, "ada", "member")
    assert tenants(page, world) == ["acme"]


def test_a_person_whose_groups_have_no_role_is_told_so_and_leaves_no_account(page: Page, world: World) -> None:
    sign_in(page, world, "bea")
    expect(page.get_by_role("heading", name="No role here")).to_be_visible()
    assert me(page, world)[0] == 401
    with world.api() as api:
        refused = api.post("/memberships", json={"user": "bea", "role": "operator"})
    assert "There is no user" in refused.text


def test_another_group_there_is_another_role_here_without_a_new_sign_in(page: Page, world: World) -> None:
    sign_in(page, world, "ada")
    expect(page.get_by_test_id("connection")).to_be_attached()
    assert tenants(page, world) == ["acme"]
    world.provider.write({"ada": {"email": "ada@example.org", "groups": ["llm-globex"]}})
    wait_for(lambda: tenants(page, world) == ["globex"], PATIENCE_S, world.up.output.read_text)


def test_who_is_removed_there_has_no_session_token_or_key_here(page: Page, world: World) -> None:
    sign_in(page, world, "ada")
    expect(page.get_by_test_id("connection")).to_be_attached()
    csrf = {"x-csrftoken": str(page.locator("meta[name=csrf-token]").get_attribute("content")), "referer": page.url}
    token = page.request.post(f"{world.up.url}/api/v1/tokens", headers=csrf, data={"name": "mine"}).json()["token"]
    with world.api() as api:
        right = next(row["slug"] for row in api.get("/entitlements?tenant=acme").json()["results"])
    made = page.request.post(
        f"{world.up.url}/api/v1/keys", headers=csrf, data={"name": "mine", "entitlement": right}
    ).json()
    bearer = {"Authorization": f"Bearer {token}"}
    key = {"Authorization": f"Bearer {made['key']}"}
    with httpx.Client(base_url=world.up.url, timeout=60) as stranger:
        wait_for(lambda: stranger.get("/v1/models", headers=key).status_code == 200, PATIENCE_S, lambda: "no key")
        assert stranger.get("/api/v1/me", headers=bearer).status_code == 200
        world.provider.write({})
        opens = {
            "session": lambda: me(page, world)[0],
            "token": lambda: stranger.get("/api/v1/me", headers=bearer).status_code,
            "key": lambda: stranger.get("/v1/models", headers=key).status_code,
        }
        for what, status in opens.items():
            wait_for(lambda status=status: status() == 401, PATIENCE_S, lambda what=what: f"the {what} still opens")
    with world.api() as api:
        ended = api.get("/audit?action=end").json()["results"][0]
    assert (ended["object"], ended["via"]) == ("ada", "oidc")
    assert ended["after"]["access_tokens"] >= 1
    assert ended["after"]["api_keys"] >= 1
    page.goto(world.up.url)
    expect(page).to_have_url(re.compile("/login"))


def test_who_was_removed_may_come_back_but_old_tokens_stay_dead(page: Page, world: World) -> None:
    sign_in(page, world, "ada")
    expect(page.get_by_test_id("connection")).to_be_attached()
    assert me(page, world)[1]["role"] == "member"
    tokens = page.request.get(f"{world.up.url}/api/v1/tokens").json()["results"]
    assert all(row["status"] == "revoked" for row in tokens)


def test_a_provider_that_does_not_answer_removes_nobody_and_the_local_admin_gets_in(
    browser: Browser, page: Page, world: World
) -> None:
    sign_in(page, world, "cyd")
    expect(page.get_by_test_id("connection")).to_be_attached()
    world.provider.stop()
    try:
        log = world.up.home / "logs" / "web.log"
        wait_for(lambda: "nobody is removed" in log.read_text(), PATIENCE_S, log.read_text)
        assert me(page, world)[1]["role"] == "operator"
        other = browser.new_context().new_page()
        other.goto(f"{world.up.url}/login")
        other.get_by_role("link", name="Sign in with the test provider").click()
        expect(other.get_by_role("heading", name="The identity provider does not answer")).to_be_visible()
        world.running.log_in(other)
        expect(other.get_by_test_id("connection")).to_be_attached()
        assert me(other, world)[1]["role"] == "admin"
        other.context.close()
    finally:
        world.provider.start(world.up.url)
