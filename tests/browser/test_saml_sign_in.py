"""Signing in through a provider that speaks SAML, in a browser: there, back, another group, and who has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.instance import Up
from tests.support.saml_provider import SamlProvider

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@dataclass
class World:
    up: Up
    provider: SamlProvider


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("saml")
    provider = SamlProvider()
    server = provider.serve()
    (folder / "idp.xml").write_text(provider.metadata())
    up = Up(
        folder / "home",
        QUARTERMASTER_SAML_METADATA_FILE=str(folder / "idp.xml"),
        QUARTERMASTER_SAML_NAME="the SAML provider",
    )
    try:
        up.start().wait_ready()
        with httpx.Client(base_url=f"{up.url}/api/v1", headers=up.admin(), timeout=60) as api:
            for group, tenant in (("llm-acme", "acme"), ("llm-globex", "globex")):
                rule = {"group": group, "role": "member", "tenant": tenant}
                api.post("/group-rules", json=rule).raise_for_status()
        yield World(up, provider)
    finally:
        up.stop()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _people(world: World) -> None:
    world.provider.people = {"ada": {"groups": ["llm-acme"]}, "bea": {"groups": ["cooks"]}}


def sign_in(page: Page, world: World, who: str) -> None:
    page.goto(f"{world.up.url}/tenants")
    page.get_by_role("link", name="Sign in with the SAML provider").click()
    page.get_by_role("button", name=f"I am {who}").click()


def tenants(page: Page, world: World) -> list[str]:
    told = page.request.get(f"{world.up.url}/api/v1/me").json()
    return [tenant["slug"] for tenant in told.get("tenants", [])]


def test_a_person_comes_in_by_group_and_another_group_is_another_role(page: Page, world: World) -> None:
    sign_in(page, world, "ada")
    expect(page).to_have_url(f"{world.up.url}/tenants")
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    assert tenants(page, world) == ["acme"]
    world.provider.people["ada"]["groups"] = ["llm-globex"]
    page.context.clear_cookies()
    sign_in(page, world, "ada")
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    assert tenants(page, world) == ["globex"]


def test_who_has_no_group_with_a_role_is_told_so(page: Page, world: World) -> None:
    sign_in(page, world, "bea")
    expect(page.get_by_role("heading", name="No role here")).to_be_visible()
    assert page.request.get(f"{world.up.url}/api/v1/me").status == 401
