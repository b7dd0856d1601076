"""QUARTERMASTER_SECRET_KEY is changed: what the former one signed and sealed counts while it is a fallback."""

from __future__ import annotations

import time
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, generate_totp_secret, hotp_value
from channels.auth import get_user
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.test import AsyncClient, Client
from django.utils import timezone

from controlplane import env_loading
from controlplane.env import SettingsError
from controlplane.gateway_config import installation_marks, secrets_for
from controlplane.responses import services as responses
from controlplane.signin.adapters import SecondFactorAdapter
from controlplane.signin.sessions import SessionStore
from controlplane.web import debug
from scheduling.gateway.answers.stored import Kept, Owner
from tenants.audit import SYSTEM
from tenants.models import Identity
from tenants.people import Grant, end_all

OLD, NEW = "o" * 40, "n" * 40
ADAPTER = SecondFactorAdapter()


@pytest.fixture
def keys(settings: Any) -> Any:
    def use(key: str, *fallbacks: str) -> None:
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, list(fallbacks)

    use(OLD)
    return use


def test_fallbacks_are_read_and_each_is_long_enough() -> None:
    env = env_loading.load(
        {"QUARTERMASTER_SECRET_KEY": NEW, "QUARTERMASTER_SECRET_KEY_FALLBACKS": f"{OLD}\n{OLD[1:]} "}
    )
    assert env.fallback_keys == [OLD, OLD[1:]]
    with pytest.raises(SettingsError, match=r"SECRET_KEY_FALLBACKS=\(hidden\): each needs at least 32"):
        env_loading.load({"QUARTERMASTER_SECRET_KEY": NEW, "QUARTERMASTER_SECRET_KEY_FALLBACKS": f"{OLD} short"})


def test_none_of_them_is_shown_on_a_page_of_debugging(keys: Any) -> None:
    keys(NEW, OLD)
    assert {NEW, OLD} <= set(debug.secrets())


ME = "/api/v1/me"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    assert client.get(ME).status_code == 200
    return client


@pytest.mark.django_db
def test_sessions_go_on_under_their_name(keys: Any) -> None:
    """Pages asked for at once have the same cookie, and who ends a person's sessions finds them by their name."""
    user = User.objects.create_superuser("olga")
    client, beside = signed_in(user), Client()
    beside.cookies = SimpleCookie(client.cookies.output(header="", sep=";"))
    keys(NEW, OLD)
    assert [one.get(ME).status_code for one in (client, beside, client)] == [200, 200, 200]
    call_command("reseal")
    keys(NEW)
    assert client.get(ME).status_code == 200, "signed with the new key by then"
    end_all(actor=SYSTEM, user=user)
    assert client.get(ME).status_code == 401
    again = signed_in(user)
    keys("x" * 40)
    assert again.get(ME).status_code == 401


@pytest.mark.django_db
def test_a_session_ends_when_it_was_to_end(keys: Any) -> None:
    client = signed_in(User.objects.create_superuser("olga"))
    end = timezone.now() + timedelta(minutes=10)
    Session.objects.update(expire_date=end)
    keys(NEW, OLD)
    answer = client.get(ME)
    assert answer.status_code == 200
    assert not answer.cookies, "the browser is told no later end either"
    call_command("reseal")
    assert Session.objects.get().expire_date == end


@pytest.mark.django_db
def test_sessions_that_no_key_opens_are_told(keys: Any) -> None:
    """As at a shell that does not have the former key: "0 sessions" would read as if there were none."""
    signed_in(User.objects.create_superuser("olga"))
    keys(NEW)
    with pytest.raises(CommandError, match="No key opens: 1 session"):
        call_command("reseal")
    keys(NEW, OLD)
    call_command("reseal")


@pytest.mark.django_db
def test_what_ended_is_not_there_again_after_it(keys: Any) -> None:
    client = signed_in(User.objects.create_superuser("olga"))
    end_all(actor=SYSTEM, user=User.objects.get())
    keys(NEW, OLD)
    call_command("reseal")
    assert not Session.objects.exists()
    assert client.get(ME).status_code == 401


@pytest.mark.django_db
def test_a_sign_in_goes_on_between_password_and_code(keys: Any) -> None:
    """Two processes that are replaced one after another may have one step each."""
    user, secret = User.objects.create_superuser("olga", password="correct horse battery"), generate_totp_secret()
    data = {"secret": ADAPTER.encrypt(secret)}
    Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data=data)
    client = Client()
    typed = {"username": "olga", "password": "correct horse battery"}
    assert client.post("/login", typed).headers["Location"] == "/login/code"
    keys(NEW, OLD)
    assert client.get("/login/code").status_code == 200
    keys(OLD, NEW)
    code = format_hotp_value(hotp_value(secret, int(time.time()) // 30))
    client.post("/login/code", {"code": code})
    keys(NEW, OLD)
    assert client.get(ME).status_code == 200
    client = Client()
    client.post("/login", typed)
    user.set_password("another horse battery")
    user.save()
    assert client.get("/login/code").headers["Location"] == "/login", "another password than the one that was typed"


@pytest.mark.django_db
def test_a_changed_password_ends_sessions_of_the_former_key_too(keys: Any) -> None:
    user = User.objects.create_superuser("olga")
    client = signed_in(user)
    keys(NEW, OLD)
    user.set_password("correct horse battery")
    user.save()
    assert client.get(ME).status_code == 401


@pytest.mark.django_db(transaction=True)
async def test_an_open_console_has_its_session(keys: Any) -> None:
    """Channels knows one key only, and deletes what another one has signed."""
    user = await User.objects.acreate_superuser("olga")
    client = AsyncClient()
    await client.aforce_login(user)
    keys(NEW, OLD)
    session = SessionStore(client.cookies[settings.SESSION_COOKIE_NAME].value)
    assert await get_user({"session": session}) == user
    assert await session.aget(SESSION_KEY) == str(user.pk)


@pytest.mark.django_db
def test_second_factors_and_grants_open_with_the_former_key_and_are_sealed_anew(keys: Any) -> None:
    user, secret = User.objects.create_user("olga"), generate_totp_secret()
    data = {"secret": ADAPTER.encrypt(secret)}
    factor = Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data=data)
    data = {"seed": ADAPTER.encrypt("seed"), "used_mask": 5}
    spare = Authenticator.objects.create(user=user, type=Authenticator.Type.RECOVERY_CODES, data=data)
    grant = Grant("access", "refresh")
    person = Identity.objects.create(
        user=user, issuer="https://id", subject="1", grant=grant.sealed(), signed_in_at=timezone.now()
    )

    def opens() -> bool:
        for row in (factor, spare, person):
            row.refresh_from_db()
        assert spare.data["used_mask"] == 5
        factors = [ADAPTER.decrypt(factor.data["secret"]), ADAPTER.decrypt(spare.data["seed"])]
        return (*factors, Grant.opened(person.grant)) == (secret, "seed", grant)

    keys(NEW, OLD)
    assert opens()
    call_command("reseal")
    keys(NEW)
    assert opens()
    keys("x" * 40)
    with pytest.raises(CommandError, match=r"No key opens: .* of olga, .* of olga, tokens of olga"):
        call_command("reseal")
    keys(NEW)
    assert opens(), "what nothing opened is as it was"


@pytest.mark.django_db
def test_kept_responses_open_with_the_former_key(keys: Any) -> None:
    owner, kept = Owner("acme", ""), Kept(b"[]", b"{}")
    assert responses.keep(secrets_for(b"r")[0], owner, "resp_1", kept, lambda: False)
    keys(NEW, OLD)
    assert responses.load(secrets_for(b"r"), owner, "resp_1") == kept
    keys(NEW)
    assert responses.load(secrets_for(b"r"), owner, "resp_1") is None


def test_processes_with_either_key_know_each_other(keys: Any) -> None:
    [former] = installation_marks()
    keys(NEW, OLD)
    own, other = installation_marks()
    assert other == former != own
