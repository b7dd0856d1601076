"""The catalog in the console, on a real instance: what admins do, what operators and members see, and strangers not."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.error
import urllib.request
import uuid
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import axe
from tests.browser.conftest import Running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAGES = {
    "tenants": "/tenants",
    "new tenant": "/tenants?new=tenant",
    "entitlements": "/tenants/acme",
    "entitlement form": "/tenants/acme?new=entitlement",
    "keys": "/tenants/acme/keys",
    "batches": "/tenants/acme/batches",
    "members": "/tenants/acme/members",
    "quotas": "/tenants/acme/quotas",
    "usage of a tenant": "/tenants/acme/usage?by=key,hour",
    "audit of a tenant": "/tenants/acme/audit",
    "usage": "/usage",
    "pools": "/pools",
    "pool form": "/pools?new=pool",
    "backends": "/backends",
    "adapters": "/adapters",
    "adapter form": "/adapters?new=adapter",
    "tiers": "/tiers",
    "tier form": "/tiers?what=tier&edit=premium",
    "slos": "/slos",
    "prices": "/prices",
    "roles": "/roles",
    "audit": "/audit",
    "playground": "/playground",
    "welcome": "/welcome",
}


def fresh() -> str:
    """A tenant's name that no other test has."""
    return f"t-{uuid.uuid4().hex[:8]}"


def status_of(url: str, key: str) -> int:
    """What /v1 answers to a key."""
    return answered(urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}))


def ask(running: Running, key: str) -> int:
    """What a request for one token gets."""
    body = {"model": running.demo["model"], "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = f"{running.url}/v1/chat/completions"
    return answered(urllib.request.Request(url, json.dumps(body).encode(), headers))


def answered(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def field(page: Page, label: str) -> Locator:
    return page.get_by_role("dialog").get_by_label(label, exact=False).first


def settled(page: Page) -> None:
    """Nothing of the page is still being loaded."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("status", name="Loading")).to_have_count(0)


def make_tenant(page: Page, running: Running, name: str) -> str:
    """A tenant with a share and a key; its secret."""
    page.goto(f"{running.url}/tenants?new=tenant")
    field(page, "Tenant").fill(name)
    field(page, "Tenant").press("Enter")
    secret = page.get_by_test_id("secret").inner_text()
    page.get_by_role("button", name="Done").click()
    expect(page).to_have_url(f"{running.url}/tenants/{name}")
    return secret


def test_a_tenant_a_key_and_its_first_request_take_six_clicks_at_most(page: Page, running: Running) -> None:
    running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    page.evaluate("window.clicks = 0; addEventListener('pointerdown', () => window.clicks++, true)")
    name = fresh()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tenants").click()
    page.get_by_role("button", name="New tenant").click()
    expect(field(page, "Tenant")).to_be_focused()
    page.keyboard.type(name)
    expect(page.get_by_test_id("effects")).to_contain_text("It takes effect at once")
    page.get_by_role("button", name="Create tenant and key").click()
    page.get_by_role("link", name="Try it in the playground").click()
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt).to_be_focused()
    page.keyboard.type("Say hello to the new tenant.")
    expect(page.get_by_label("Model")).to_have_value(running.demo["model"])
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_test_id("answer")).to_have_text(re.compile(r"\w+"))
    expect(page.get_by_label("Answer", exact=True)).to_contain_text(re.compile("stop|length"))
    assert page.evaluate("window.clicks") <= 6
    page.get_by_role("link", name="Request details").click()
    expect(page.get_by_role("dialog")).to_contain_text(name)


def test_what_a_share_would_do_is_said_while_it_is_typed_and_nothing_is_lost_by_asking(
    page: Page, running: Running
) -> None:
    running.log_in(page)
    name = fresh()
    make_tenant(page, running, name)
    page.get_by_role("button", name=re.compile("^Edit " + name)).click()
    field(page, "Tier").select_option("premium")
    effects = page.get_by_test_id("effects")
    expect(effects).to_contain_text("reserved")
    field(page, "Concurrency").fill("1000000")
    expect(effects).to_contain_text(re.compile("would be degraded|does not fit"))
    expect(effects).to_contain_text("left to reserve")
    field(page, "Concurrency").fill("many")
    expect(page.locator("[data-error=concurrency]")).to_have_text("Use a number, such as 12 or 0.5.")
    page.keyboard.press("Escape")
    question = page.get_by_role("dialog", name="Discard your changes?")
    question.get_by_role("button", name="Keep editing").click()
    expect(field(page, "Concurrency")).to_have_value("many")
    page.go_back()
    question.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("row", name=name)).to_contain_text("standard")


def test_the_servers_objection_stands_at_its_field_and_what_was_typed_stays(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/tenants?new=tenant")
    field(page, "Tenant").fill("Acme")
    expect(page.locator("[data-error='tenant.slug']")).to_have_text("Use lower-case letters.")
    field(page, "Tenant").fill("acme")
    field(page, "Description").fill("A second one by mistake")
    page.get_by_role("button", name="Create tenant and key").click()
    expect(page.locator("[data-error='tenant.slug']")).to_contain_text("already exists")
    expect(field(page, "Tenant")).to_be_focused()
    expect(field(page, "Description")).to_have_value("A second one by mistake")
    # What the refusal marked was not written by hand: the entitlement is called after the tenant's next name.
    name = fresh()
    field(page, "Tenant").fill(name)
    page.get_by_text("Budget, KV cache and names").click()
    expect(field(page, "Entitlement's name")).to_have_value(re.compile(rf"{name}-llama"))


def test_a_key_is_made_rotated_and_revoked_and_its_secret_is_seen_once(page: Page, running: Running) -> None:
    running.log_in(page)
    name = fresh()
    first = make_tenant(page, running, name)
    assert status_of(running.url, first) == 200
    page.get_by_role("link", name="Keys", exact=True).click()
    assert first.partition(".")[2] not in page.content()
    page.get_by_role("button", name="Rotate first key").click()
    page.get_by_label("Overlap").select_option("3600")
    assert axe.serious(page) == []
    page.get_by_role("button", name="Rotate", exact=True).click()
    second = page.get_by_test_id("secret").inner_text()
    assert axe.serious(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_text("Have you copied the key?")).to_be_visible()
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_role("row", name="first key")).to_have_count(2)
    assert (status_of(running.url, first), status_of(running.url, second)) == (200, 200)
    old = page.locator(f"[data-row='{first.partition('.')[0].removeprefix('qm-')}']")
    old.get_by_role("button", name="Revoke first key").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    expect(page.get_by_role("row", name="first key")).to_have_count(1)
    assert (status_of(running.url, first), status_of(running.url, second)) == (401, 200)


def test_a_key_of_a_single_entitlement_is_made_though_a_project_was_proposed(page: Page, running: Running) -> None:
    running.log_in(page)
    name = fresh()
    make_tenant(page, running, name)
    headers = {"Authorization": f"Bearer {running.demo['admin']['token']}"}
    project = {"tenant": name, "slug": f"{name}-chat"}
    httpx.post(f"{running.url}/api/v1/projects", json=project, headers=headers).raise_for_status()
    page.goto(f"{running.url}/tenants/{name}/keys?new=key")
    field(page, "Name").fill("nightly")
    expect(field(page, "Project")).to_have_value(project["slug"])
    field(page, "Project").select_option(label="none")
    field(page, "Or a single entitlement").select_option(index=1)
    page.get_by_role("button", name="Create key").click()
    secret = page.get_by_test_id("secret").inner_text()
    assert status_of(running.url, secret) == 200
    (key,) = (row for row in keys_of(running, name, headers) if row["name"] == "nightly")
    assert (key["project"], key["entitlement"]) == (None, key["opens"][0])


def keys_of(running: Running, tenant: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    answer = httpx.get(f"{running.url}/api/v1/keys", params={"tenant": tenant}, headers=headers)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["results"]
    return found


def test_a_dialog_with_fields_is_answered_by_keyboard_and_keeps_the_focus_when_it_is_refused(
    page: Page, running: Running
) -> None:
    running.log_in(page)
    page.goto(running.at("/people"))
    page.get_by_role("button", name="New service account").press("Enter")
    dialog = page.get_by_role("dialog", name="New service account")
    name = dialog.get_by_label("User name")
    expect(name).to_be_focused()
    page.keyboard.type("admin")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(name).to_be_focused()
    create = dialog.get_by_role("button", name="Create")
    create.press("Enter")
    expect(create).to_be_enabled()
    expect(create).to_be_focused()
    name.fill("ci-by-keyboard")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="New token ci-by-keyboard")).to_be_visible()


def test_a_token_that_could_not_be_revoked_is_told_and_stays(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/people?new=token")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ci-leaked")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.get_by_test_id("secret")).to_contain_text("qma-")
    dialog.get_by_role("button", name="Done").click()
    away = "The database does not answer. Try again."
    page.route("**/api/v1/tokens/*/revoke", lambda route: route.fulfill(status=503, json={"detail": away}), times=1)
    revoke = page.get_by_role("button", name="Revoke ci-leaked")
    revoke.click()
    expect(page.get_by_role("status").get_by_text(away)).to_be_visible()
    revoke.click()
    expect(page.get_by_text("ci-leaked was revoked.")).to_be_visible()
    expect(revoke).to_be_hidden()


def test_the_page_of_people_is_one_of_the_catalog_and_the_palette_finds_it(page: Page, running: Running) -> None:
    running.log_in(page)
    expect(page.get_by_test_id("connection")).to_have_attribute("data-state", "live")
    page.keyboard.press("Control+k")
    page.keyboard.type("people")
    page.get_by_role("option", name="People").click()
    expect(page).to_have_url(f"{running.url}/people")
    header = page.get_by_role("navigation", name="Pages")
    expect(header.get_by_role("link", name="Tenants")).to_have_attribute("aria-current", "page")


def test_a_paused_tenant_is_refused_until_it_is_resumed(page: Page, running: Running) -> None:
    running.log_in(page)
    name = fresh()
    key = make_tenant(page, running, name)
    assert ask(running, key) == 200
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Reason, for the audit log").fill("too loud")
    assert axe.serious(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text(re.compile("^Paused .*: too loud$"))).to_be_visible()
    wait_for(lambda: ask(running, key) in (403, 429), 20, lambda: "a paused tenant is still served")
    page.get_by_role("link", name="Audit", exact=True).last.click()
    expect(page.get_by_label("Changes")).to_contain_text("too loud")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    wait_for(lambda: ask(running, key) == 200, 20, lambda: "a resumed tenant is still refused")


def test_usage_is_grouped_and_downloaded(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/usage")
    expect(page.get_by_role("row", name="acme")).to_be_visible()
    page.get_by_role("button", name="hour", exact=True).click()
    expect(page).to_have_url(re.compile("by=tenant%2Chour"))
    expect(page.get_by_role("columnheader", name="Hour")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download CSV").click()
    text = waiting.value.path().read_text()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {"tenant", "hour", "input_tokens", "cost"} <= set(lines[0])
    assert "acme" in {line["tenant"] for line in lines}


def test_deleting_says_what_goes_with_it(page: Page, running: Running) -> None:
    running.log_in(page)
    name = fresh()
    make_tenant(page, running, name)
    page.get_by_role("button", name=re.compile("^Delete " + name)).click()
    dialog = page.get_by_role("dialog")
    said = "One key is deleted with it: new requests are refused, and those that wait or run end"
    expect(dialog).to_contain_text(said)
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    assert axe.serious(page) == []
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No entitlement yet")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(f"{running.url}/tenants")
    expect(page.get_by_role("link", name=name)).to_have_count(0)


def test_an_operator_reads_the_catalog_and_only_drains(page: Page, running: Running) -> None:
    running.log_in(page, "operator")
    for path in ("/tenants", "/tenants/acme", "/pools", "/tiers", "/slos", "/roles", "/prices"):
        page.goto(running.url + path)
        settled(page)
        expect(page.get_by_role("button", name=re.compile("^(New|Edit|Delete)"))).to_have_count(0)
    page.goto(f"{running.url}/backends")
    settled(page)
    name = page.get_by_role("rowheader").first.inner_text().split()[0]
    page.get_by_role("button", name=f"Drain {name}").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    row = page.locator(f"[data-row={name}]")
    expect(row).to_contain_text("draining")
    page.get_by_role("button", name=f"Return to service {name}").click()
    page.get_by_role("dialog").get_by_role("button", name="Return to service").click()
    expect(row).to_contain_text("ready")


def test_a_member_manages_its_own_keys_and_finds_no_other_tenant(page: Page, running: Running) -> None:
    running.log_in(page, "member")
    page.goto(f"{running.url}/tenants")
    expect(page.get_by_role("rowheader")).to_have_count(1)
    expect(page.get_by_role("button", name="New tenant")).to_have_count(0)
    page.goto(f"{running.url}/tenants/globex")
    expect(page.get_by_role("heading", name="There is no tenant globex")).to_be_visible()
    page.goto(f"{running.url}/tenants/acme/keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name").fill("made by a member")
    page.keyboard.press("Enter")
    assert status_of(running.url, page.get_by_test_id("secret").inner_text()) == 200


def test_the_playground_streams_cancels_and_tells_refusals(page: Page, running: Running) -> None:
    running.log_in(page)
    page.goto(f"{running.url}/playground")
    page.get_by_label("Key").fill("qm-abc")
    expect(page.get_by_text("This key is incomplete")).to_be_visible()
    page.get_by_label("Key").fill(running.demo["keys"]["standard"])
    page.get_by_text("More", exact=True).click()
    page.get_by_label("max_tokens").fill("2000")
    page.get_by_label("Prompt", exact=True).fill("Write a very long story.")
    page.keyboard.press("Enter")
    answer = page.get_by_label("Answer", exact=True)
    expect(page.get_by_test_id("answer")).to_have_text(re.compile(r"\w+ \w+"))
    page.get_by_role("button", name="Cancel").click()
    expect(answer).to_contain_text("stopped")
    page.get_by_role("link", name="Request details").click()
    expect(page.get_by_role("dialog")).to_contain_text("client left")
    page.go_back()
    page.get_by_label("Key").select_option("")
    page.get_by_label("Paste another key").fill(f"qm-{'0' * 12}.{'x' * 43}")
    expect(page.get_by_role("alert")).to_be_visible()
    assert running.demo["keys"]["standard"] not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_catalog_page_passes_axe(page: Page, running: Running, theme: str) -> None:
    page.context.add_cookies([{"name": "qm_theme", "value": theme, "url": running.url}])
    running.log_in(page)
    found: dict[str, list[str]] = {}
    for name, path in PAGES.items():
        page.goto(running.url + path)
        settled(page)
        found[name] = axe.serious(page, () if theme == "light" else axe.COLOURS)
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_catalog_page_is_wider_than_its_window(page: Page, running: Running) -> None:
    running.log_in(page)
    headers = {"authorization": f"Bearer {running.demo['admin']['token']}"}
    with httpx.Client(base_url=f"{running.url}/api/v1", headers=headers, timeout=60) as api:
        before = api.get("/tenants/initech").raise_for_status().json()["description"]
        for text in ("x" * 175, before):  # an entry of the audit log without a place to break it
            api.patch("/tenants/initech", json={"description": text}).raise_for_status()
    wide = []
    for name, path in PAGES.items():
        page.goto(running.url + path)
        settled(page)
        for width in (2560, 768, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append(f"{name} at {width}")
    assert wide == []


def test_a_long_name_pushes_nothing_out_of_the_window_of_a_phone(page: Page, running: Running) -> None:
    tenant = f"{fresh()}-{'z' * 40}"
    headers = {"authorization": f"Bearer {running.demo['admin']['token']}"}
    with httpx.Client(base_url=f"{running.url}/api/v1", headers=headers, timeout=60) as api:
        share = {"slug": f"{tenant}-e", "tenant": tenant, "pool": "summaries", "tier": "batch"}
        for path, body in (
            ("/tenants", {"slug": tenant, "description": "x" * 80}),
            ("/entitlements", share),
            ("/keys", {"entitlement": share["slug"], "name": "A" * 80}),
        ):
            api.post(path, json=body).raise_for_status()
    running.log_in(page)
    page.goto(running.at("/tenants"))
    link = page.get_by_role("link", name=tenant)
    expect(link).to_be_visible()
    name, beside = link.bounding_box(), page.get_by_role("row", name=tenant).get_by_role("cell").first.bounding_box()
    assert name is not None
    assert beside is not None
    assert name["x"] + name["width"] <= beside["x"]
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(running.at(f"/tenants/{tenant}/keys"))
    state = page.get_by_role("region", name="Keys").get_by_text("active", exact=True)
    expect(state).to_be_visible()
    box = state.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_of_one_object_asks_for_no_list_of_all(page: Page, running: Running) -> None:
    """An installation has thousands of tenants, entitlements and keys: megabytes for a page that shows few of them."""
    running.log_in(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/api/v1/")[2]))

    def of(address: str, *lists: str) -> list[str]:
        asked.clear()
        page.goto(running.at(address))
        settled(page)
        return [url for url in asked if url.partition("?")[0].rstrip("/") in lists]

    pool = running.demo["pool"]
    of_pool = of(f"/pools/{pool}", "entitlements", "backends")
    assert of_pool
    assert all(f"pool={pool}" in url for url in of_pool), of_pool
    of_tenant = of("/tenants/acme", "tenants", "entitlements")
    assert of_tenant
    assert all("acme" in url for url in of_tenant), of_tenant
    assert of("/usage", "keys") == []
    assert of("/usage?by=key", "keys") != []
