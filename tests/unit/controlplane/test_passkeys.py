"""Passkeys as the second step: taken up, asked for, named, removed, required, and not to be copied or walked around."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.test import Client
from fido2.utils import websafe_decode
from rest_framework.test import APIClient

from controlplane.signin import challenges, second_factor
from tenants import passkeys, second_factors
from tenants.models import AuditEntry
from tests.support import worlds
from tests.support.authenticator import Device
from tests.unit.controlplane.test_second_factor import PASSWORD, code_of, is_in, password_of, with_factor
from tests.unit.controlplane.test_second_factor import clock as clock
from tests.unit.controlplane.test_second_factor import world as world

pytestmark = pytest.mark.django_db
API = "/api/v1/second-factor/"


def browser_of(user: User) -> APIClient:
    client = APIClient(SERVER_NAME="localhost")
    client.force_login(user)
    session = client.session
    session[second_factors.HOW] = "code"
    session.save()
    return client


def stranger() -> Client:
    return Client(SERVER_NAME="localhost")


def post(client: APIClient, path: str, body: Any = None, expected: int = 200) -> Any:
    answer = client.post(API + path, body or {}, format="json")
    assert answer.status_code == expected, answer.content
    return answer.json() if answer.content else None


def added(user: User, device: Device, name: str = "laptop") -> tuple[APIClient, list[str]]:
    """A passkey of this user, as the console adds the first one. The browser, and the recovery codes."""
    client = browser_of(user)
    options = post(client, "passkeys/offer", {"password": PASSWORD})["options"]
    answer = post(client, "passkeys", {"name": name, "credential": device.make(options)}, 201)
    return client, answer["recovery_codes"]


def options_on(page: str) -> dict[str, Any]:
    found = re.search(r'data-options="([^"]+)"', page)
    assert found
    options: dict[str, Any] = json.loads(html.unescape(found[1]))
    return options


def second_step(user: str, device: Device, change: Callable[[dict[str, Any]], Any] = lambda answer: answer) -> Client:
    browser = stranger()
    password_of(user, browser)
    options = options_on(browser.get(second_factor.CODE).content.decode())
    browser.post(second_factor.CODE, {"passkey": json.dumps(change(device.use(options)))})
    return browser


def test_a_passkey_is_added_and_asked_for_after_the_password(world: worlds.World) -> None:
    device = Device()
    elsewhere = browser_of(world.users["alice"])
    here, codes = added(world.users["alice"], device)
    assert len(codes) == second_factors.CODES
    assert (is_in(here), is_in(elsewhere)) == (True, False)
    browser = stranger()
    assert password_of("alice", browser, next="/requests").headers["Location"] == second_factor.CODE
    assert not is_in(browser)
    page = browser.get(second_factor.CODE).content.decode()
    answer = browser.post(second_factor.CODE, {"passkey": json.dumps(device.use(options_on(page)))})
    assert (answer.headers["Location"], is_in(browser)) == ("/requests", True)
    assert browser.session[second_factors.HOW] == "passkey"
    told = browser.get("/api/v1/second-factor").json()
    assert (told["enabled"], told["app"], [row["name"] for row in told["passkeys"]]) == (True, False, ["laptop"])
    assert told["passkeys"][0]["used_at"] is not None


@pytest.mark.parametrize(
    "what", ["another device", "another site", "another origin", "signature", "challenge", "nothing", "no JSON", "huge"]
)
def test_what_this_users_passkey_did_not_sign_for_this_site_opens_nothing(world: worlds.World, what: str) -> None:
    device = Device()
    added(world.users["alice"], device)
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "nothing": lambda answer: {},
        "signature": lambda answer: answer | {"response": answer["response"] | {"signature": "AAAA"}},
        "huge": lambda answer: answer | {"more": "x" * passkeys.ANSWER_LETTERS},
        "no JSON": lambda answer: "[" * 50,
    }
    if what == "another device":
        device = Device(name=device.name)
    elif what == "another site":
        device.host = "evil.example"
    elif what == "another origin":
        device.origin = "http://localhost.evil.example"
    if what == "challenge":
        old = Device.use
        browser = second_step("alice", device, lambda _: old(device, {"challenge": "AAAA" * 11}))
    else:
        browser = second_step("alice", device, changes.get(what, lambda answer: answer))
    assert not is_in(browser)


def test_an_answer_works_once_and_in_the_session_it_was_asked_in(world: worlds.World) -> None:
    device = Device()
    added(world.users["alice"], device)
    first, second = stranger(), stranger()
    for browser in (first, second):
        password_of("alice", browser)
    answer = json.dumps(device.use(options_on(first.get(second_factor.CODE).content.decode())))
    second.get(second_factor.CODE)
    second.post(second_factor.CODE, {"passkey": answer})
    assert not is_in(second)
    first.post(second_factor.CODE, {"passkey": answer})
    assert is_in(first)
    again = stranger()
    password_of("alice", again)
    again.post(second_factor.CODE, {"passkey": answer})
    assert not is_in(again)


def test_an_answer_that_comes_too_late_opens_nothing(
    world: worlds.World, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    added(world.users["alice"], device)
    browser = stranger()
    password_of("alice", browser)
    options = options_on(browser.get(second_factor.CODE).content.decode())
    clock(challenges.WAITED_S + 1)
    page = browser.post(second_factor.CODE, {"passkey": json.dumps(device.use(options))}).content.decode()
    assert "came too late" in page
    assert not is_in(browser)


def test_a_copied_device_is_found_by_its_counter_and_written_down(world: worlds.World) -> None:
    device = Device(count=7)
    added(world.users["alice"], device)
    device.count = 9
    assert is_in(second_step("alice", device))
    device.count = 8  # the copy
    assert not is_in(second_step("alice", device))
    assert AuditEntry.objects.get(action="refuse copied passkey").after == {"name": "laptop"}
    device.count = 10
    assert is_in(second_step("alice", device))


def test_a_passkey_of_another_account_does_not_fit(world: worlds.World) -> None:
    alices, olgas = Device(), Device()
    added(world.users["alice"], alices)
    added(world.users["olga"], olgas)
    assert not is_in(second_step("alice", olgas))
    assert is_in(second_step("olga", olgas))


def test_a_recovery_code_opens_an_account_that_has_passkeys_alone(world: worlds.World) -> None:
    _, codes = added(world.users["alice"], Device())
    browser = stranger()
    password_of("alice", browser)
    browser.post(second_factor.CODE, {"code": codes[0]})
    assert is_in(browser)


def test_wrong_passkeys_are_counted_like_wrong_codes(world: worlds.World) -> None:
    added(world.users["alice"], Device())
    for _ in range(second_factor.WRONG_CODES):
        second_step("alice", Device())
    assert second_factors.enabled(world.users["alice"])
    assert second_factor.wait_for_codes(world.users["alice"]) > 0


def test_app_and_passkeys_stand_side_by_side_and_another_app_leaves_the_passkeys(
    world: worlds.World, clock: Any
) -> None:
    alice = world.users["alice"]
    secret, _ = with_factor(alice)
    client, device = browser_of(alice), Device()
    options = post(client, "passkeys/offer", {"code": code_of(secret)})["options"]
    assert post(client, "passkeys", {"name": "key", "credential": device.make(options)}, 201)["recovery_codes"] == []
    challenge = post(client, "challenge")["options"]
    offer = post(client, "offer", {"passkey": device.use(challenge)})
    post(client, "enable", {"code": code_of(offer["secret"])}, 201)
    assert second_factors.state(alice).app
    assert [row.name for row in passkeys.listed(alice)] == ["key"]
    assert is_in(second_step("alice", device))


def test_passkeys_are_named_renamed_and_removed_by_a_proof(world: worlds.World) -> None:
    alice, first, second = world.users["alice"], Device(), Device()
    client, codes = added(alice, first)
    client = browser_of(alice)
    options = post(client, "passkeys/offer", {"code": codes[0]})["options"]
    refused = post(client, "passkeys", {"name": "laptop", "credential": second.make(options)}, 400)
    assert "has this name" in refused["name"][0]
    options = post(client, "passkeys/offer", {"code": codes[1]})["options"]
    post(client, "passkeys", {"name": "phone", "credential": second.make(options)}, 201)
    ids = {row.name: row.id for row in passkeys.listed(alice)}
    assert client.patch(f"{API}passkeys/{ids['phone']}", {"name": "laptop"}, format="json").status_code == 400
    assert client.patch(f"{API}passkeys/{ids['phone']}", {"name": "my phone"}, format="json").status_code == 200
    assert post(client, f"passkeys/{ids['phone']}/remove", {"code": "000000"}, 400)
    challenge = post(client, "challenge")["options"]
    post(client, f"passkeys/{ids['phone']}/remove", {"passkey": first.use(challenge)}, 204)
    assert [row.name for row in passkeys.listed(alice)] == ["laptop"]
    post(client, f"passkeys/{ids['laptop']}/remove", {"code": codes[2]}, 204)
    assert not Authenticator.objects.filter(user=alice).exists(), "recovery codes go with the last factor"
    actions = [entry.action for entry in AuditEntry.objects.filter(action__contains="passkey").order_by("pk")]
    assert actions == ["add passkey", "add passkey", "rename passkey", "remove passkey", "remove passkey"]


def test_nobody_names_or_removes_the_passkey_of_somebody_else(world: worlds.World) -> None:
    added(world.users["alice"], Device())
    (theirs,) = passkeys.listed(world.users["alice"])
    client = browser_of(world.users["olga"])
    assert client.patch(f"{API}passkeys/{theirs.id}", {"name": "mine"}, format="json").status_code == 404
    post(client, f"passkeys/{theirs.id}/remove", {"password": PASSWORD}, 404)
    assert [row.name for row in passkeys.listed(world.users["alice"])] == ["laptop"]


def test_a_passkey_is_not_added_without_the_password_or_a_proof(world: worlds.World) -> None:
    client, device = browser_of(world.users["alice"]), Device()
    post(client, "passkeys/offer", {"password": "wrong"}, 400)
    post(client, "passkeys", {"name": "x", "credential": device.make({"challenge": "AAAA" * 11})}, 400)
    assert not passkeys.listed(world.users["alice"])
    token = APIClient()
    token.credentials(HTTP_AUTHORIZATION=f"Bearer {world.tokens['alice'].credential.text}")
    post(token, "passkeys/offer", {"password": PASSWORD}, 403)


def test_a_passkey_of_ten_is_the_last(world: worlds.World) -> None:
    alice = world.users["alice"]
    client, codes = added(alice, Device(), "0")
    client = browser_of(alice)
    proof: dict[str, Any] = {"code": codes[0]}
    for number in range(1, passkeys.MOST_PASSKEYS):
        device = Device()
        options = post(client, "passkeys/offer", proof)["options"]
        post(client, "passkeys", {"name": str(number), "credential": device.make(options)}, 201)
        proof = {"passkey": device.use(post(client, "challenge")["options"])}
    refused = post(client, "passkeys/offer", proof, 400)
    assert "10 passkeys, the most" in str(refused)


def test_where_one_is_required_a_passkey_satisfies_it_and_the_last_stays(world: worlds.World, settings: Any) -> None:
    settings.QUARTERMASTER_SECOND_FACTOR = "all"
    browser, device = stranger(), Device()
    assert password_of("alice", browser).headers["Location"] == second_factor.SET_UP
    page = browser.get(second_factor.SET_UP).content.decode()
    done = browser.post(second_factor.SET_UP, {"passkey": json.dumps(device.make(options_on(page)))}).content.decode()
    assert done.count("<li>") == second_factors.CODES
    assert is_in(browser)
    code = re.findall(r"<li>([^<]+)</li>", done)[0]
    (row,) = passkeys.listed(world.users["alice"])
    client = browser_of(world.users["alice"])
    refused = post(client, f"passkeys/{row.id}/remove", {"code": code}, 400)
    assert "required here" in str(refused)
    assert is_in(second_step("alice", device))


def test_an_admin_resets_passkeys_too(world: worlds.World) -> None:
    alice, device = world.users["alice"], Device()
    added(alice, device)
    admin = browser_of(world.users["adam"])
    assert admin.get(f"/api/v1/people/{alice.pk}").json()["second_factor"] is True
    assert admin.post(f"/api/v1/people/{alice.pk}/reset-second-factor").json()["second_factor"] is False
    assert not passkeys.listed(alice)
    assert password_of("alice", stranger()).headers["Location"] == "/"


def test_http_basic_is_no_way_around_a_passkey(world: worlds.World, settings: Any) -> None:
    settings.QUARTERMASTER_BASIC_AUTH = True
    added(world.users["alice"], Device())
    assert not second_factors.password_is_enough(world.users["alice"])


def test_only_the_public_key_is_stored(world: worlds.World) -> None:
    device = Device()
    added(world.users["alice"], device)
    row = Authenticator.objects.get(type="webauthn")
    assert set(row.data) == {"name", "credential", "count"}
    secret = device.key.private_numbers().private_value.to_bytes(32, "big")
    assert secret not in websafe_decode(row.data["credential"])
