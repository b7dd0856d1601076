"""The second step of a login: asked for, bounded, used once, required where it is set, and not to be walked around."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, generate_totp_secret, hotp_value
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from rest_framework.test import APIClient

from controlplane.signin import second_factor
from controlplane.web import login_attempts
from tenants import people, second_factors, services
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Membership
from tests.support import worlds

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture
def world() -> worlds.World:
    built = worlds.build()
    for name in ("adam", "alice", "olga"):
        built.users[name].set_password(PASSWORD)
        built.users[name].save()
    return built


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time by which codes are made and checked."""
    start = time.time()

    def at(later_s: float) -> None:
        monkeypatch.setattr(second_factors.time, "time", lambda: start + later_s)

    at(0.0)
    return at


def code_of(secret: str, steps: int = 0) -> str:
    """What the app shows, some steps of 30 s from now."""
    return format_hotp_value(hotp_value(secret, int(second_factors.time.time()) // 30 + steps))


def with_factor(user: User) -> tuple[str, list[str]]:
    """Enabled a minute ago. Secret and recovery codes."""
    secret = generate_totp_secret()
    earlier = second_factors.time.time() - 60
    code = format_hotp_value(hotp_value(secret, int(earlier) // 30))
    return secret, second_factors.enable(actor=SYSTEM, user=user, secret=secret, code=code, now_s=earlier)


def password_of(name: str, browser: Client, **more: str) -> Any:
    return browser.post("/login", {"username": name, "password": PASSWORD, **more})


def is_in(browser: Client) -> bool:
    return browser.get("/api/v1/me").status_code == 200


def wrong(right: str) -> str:
    return f"{(int(right) + 1) % 1_000_000:06d}"


@pytest.mark.parametrize(
    ("at_s", "code"), [(59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (20000000000, "353130")]
)
def test_codes_are_those_of_the_standard(at_s: int, code: str) -> None:
    """RFC 6238, appendix B: the last six digits of its eight."""
    secret = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
    assert second_factors.step_of(secret, code, at_s) == at_s // 30
    assert second_factors.step_of(secret, code[:3] + " " + code[3:], at_s + 30) == at_s // 30
    assert second_factors.step_of(secret, code, at_s + 60) is None


def test_a_password_alone_lets_nobody_in_who_has_a_second_factor(world: worlds.World, clock: Any) -> None:
    secret, _ = with_factor(world.users["alice"])
    browser = Client()
    answer = password_of("alice", browser, next="/requests")
    assert answer.headers["Location"] == second_factor.CODE
    assert not is_in(browser)
    assert browser.get("/").headers["Location"].startswith("/login")
    refused = browser.post(second_factor.CODE, {"code": wrong(code_of(secret))})
    assert (refused.status_code, is_in(browser)) == (200, False)
    assert "does not fit" in refused.content.decode()
    answer = browser.post(second_factor.CODE, {"code": code_of(secret)})
    assert (answer.headers["Location"], is_in(browser)) == ("/requests", True)


def test_right_passwords_count_without_their_codes_too_and_codes_do_not(
    world: worlds.World, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_attempts, "RIGHT", 3)
    secret, _ = with_factor(world.users["alice"])
    for _ in range(2):
        assert password_of("alice", Client()).status_code == 302
    last = Client()
    assert password_of("alice", last).headers["Location"] == second_factor.CODE
    assert last.post(second_factor.CODE, {"code": code_of(secret)}).status_code == 302
    assert is_in(last)
    refused = password_of("alice", Client())
    assert refused.status_code == 429
    assert "3 times in five minutes" in refused.content.decode()
    assert password_of("olga", Client()).status_code == 302


def test_a_code_is_taken_once_and_none_of_an_earlier_step_after_it(world: worlds.World, clock: Any) -> None:
    user = world.users["alice"]
    secret, _ = with_factor(user)
    newest, before = code_of(secret), code_of(secret, -1)
    assert second_factors.check(actor=SYSTEM, user=user, code=newest)
    assert not second_factors.check(actor=SYSTEM, user=user, code=newest)
    assert not second_factors.check(actor=SYSTEM, user=user, code=before)
    clock(45)
    assert not second_factors.check(actor=SYSTEM, user=user, code=newest)
    assert second_factors.check(actor=SYSTEM, user=user, code=code_of(secret))


def test_a_recovery_code_opens_the_account_once_and_is_written_down(world: worlds.World, clock: Any) -> None:
    _, codes = with_factor(world.users["alice"])
    assert len(set(codes)) == second_factors.CODES
    for opened in (True, False):
        browser = Client()
        password_of("alice", browser)
        browser.post(second_factor.CODE, {"code": codes[3]})
        assert is_in(browser) is opened
    assert second_factors.state(world.users["alice"]).codes_left == second_factors.CODES - 1
    assert AuditEntry.objects.get(action="use recovery code").after == {"left": second_factors.CODES - 1}


def test_wrong_codes_are_counted_for_the_account_whatever_address_they_come_from(
    world: worlds.World, clock: Any
) -> None:
    secret, _ = with_factor(world.users["alice"])
    tried = 0
    for n in range(second_factor.WRONG_CODES + 2):
        browser = Client(REMOTE_ADDR=f"10.1.{n}.1")
        password_of("alice", browser)
        tried += browser.post(second_factor.CODE, {"code": wrong(code_of(secret))}).status_code == 200
    assert tried == second_factor.WRONG_CODES
    browser = Client(REMOTE_ADDR="10.2.0.1")
    password_of("alice", browser)
    refused = browser.post(second_factor.CODE, {"code": code_of(secret)})
    assert (refused.status_code, int(refused.headers["Retry-After"]) > 0, is_in(browser)) == (429, True, False)
    assert password_of("olga", Client()).headers["Location"] == "/", "another account is not held up"


def test_wrong_codes_count_with_the_passwords_of_that_name(world: worlds.World, clock: Any) -> None:
    secret, _ = with_factor(world.users["alice"])
    browser = Client()
    password_of("alice", browser)
    for _ in range(10):
        browser.post(second_factor.CODE, {"code": wrong(code_of(secret))})
    assert password_of("alice", Client()).status_code == 429


def test_a_right_code_forgets_the_wrong_ones(world: worlds.World, clock: Any) -> None:
    secret, _ = with_factor(world.users["alice"])
    browser = Client()
    password_of("alice", browser)
    for _ in range(second_factor.WRONG_CODES - 1):
        browser.post(second_factor.CODE, {"code": wrong(code_of(secret))})
    assert browser.post(second_factor.CODE, {"code": code_of(secret)}).status_code == 302
    assert second_factor.wait_for_codes(world.users["alice"]) == 0


@pytest.mark.parametrize("what", ["nothing was typed before", "too late", "another password", "disabled"])
def test_a_code_alone_or_after_a_step_that_is_over_opens_nothing(
    world: worlds.World, clock: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = world.users["alice"]
    secret, _ = with_factor(user)
    browser = Client()
    if what != "nothing was typed before":
        password_of("alice", browser)
    if what == "too late":
        clock(second_factor.WAITED_S + 1)
    elif what == "another password":
        user.set_password("battery horse correct")
        user.save()
    elif what == "disabled":
        people.set_active(actor=SYSTEM, user=user, active=False)
    answer = browser.post(second_factor.CODE, {"code": code_of(secret)})
    assert answer.headers["Location"] == "/login"
    assert not is_in(browser)


def test_the_back_office_has_no_login_of_its_own_to_walk_around_it(world: worlds.World, clock: Any) -> None:
    user = world.users["adam"]
    user.is_staff = user.is_superuser = True
    user.save()
    with_factor(user)
    browser = Client()
    answer = browser.post("/admin/login/?next=/admin/", {"username": "adam", "password": PASSWORD})
    assert answer.headers["Location"] == "/login?next=/admin/"
    assert not is_in(browser)
    other = Client()
    other.force_login(world.users["alice"])
    assert other.get("/admin/login/?next=/admin/").status_code == 403


def test_http_basic_is_no_way_around_it(world: worlds.World, clock: Any, settings: Any) -> None:
    settings.QUARTERMASTER_BASIC_AUTH = True
    browser = Client()
    basic = {name: "Basic " + b64encode(f"{name}:{PASSWORD}".encode()).decode() for name in ("alice", "adam")}
    assert browser.get("/api/v1/me", headers={"authorization": basic["alice"]}).status_code == 200
    with_factor(world.users["alice"])
    refused = browser.get("/api/v1/me", headers={"authorization": basic["alice"]})
    assert (refused.status_code, "second factor" in refused.json()["detail"]) == (401, True)
    settings.QUARTERMASTER_SECOND_FACTOR = "admins"
    assert browser.get("/api/v1/me", headers={"authorization": basic["adam"]}).status_code == 401


def test_access_tokens_and_service_accounts_are_not_asked(world: worlds.World, clock: Any, settings: Any) -> None:
    settings.QUARTERMASTER_SECOND_FACTOR = "all"
    with_factor(world.users["adam"])
    bot = people.make_service_account(actor=SYSTEM, username="bot", description="")
    services.save(actor=SYSTEM, instance=Membership(user=bot, role="operator"))
    issued = services.issue_token(actor=SYSTEM, user=bot, name="t")
    for text in (world.tokens["adam"].credential.text, issued.credential.text):
        answer = Client().get("/api/v1/me", headers={"authorization": f"Bearer {text}"})
        assert answer.status_code == 200


@pytest.mark.parametrize(("who", "wanted", "asked"), [
    ("adam", "optional", False), ("adam", "admins", True), ("olga", "admins", False), ("alice", "admins", False),
    ("alice", "all", True),
])  # fmt: skip
def test_where_it_is_required_an_app_is_set_up_before_anybody_is_let_in(
    world: worlds.World, clock: Any, settings: Any, who: str, wanted: str, asked: bool
) -> None:
    settings.QUARTERMASTER_SECOND_FACTOR = wanted
    browser = Client()
    answer = password_of(who, browser)
    assert (answer.headers["Location"] == second_factor.SET_UP) is asked
    assert is_in(browser) is not asked
    if not asked:
        return
    page = browser.get(second_factor.SET_UP).content.decode()
    secret = page.partition('data-testid="secret">')[2].partition("<")[0]
    assert "data:image/svg+xml" in page
    assert browser.post(second_factor.SET_UP, {"code": wrong(code_of(secret))}).status_code == 200
    assert not is_in(browser)
    done = browser.post(second_factor.SET_UP, {"code": code_of(secret)}).content.decode()
    assert done.count("<li>") == second_factors.CODES
    assert is_in(browser)


def test_a_session_that_began_before_it_was_required_ends(world: worlds.World, clock: Any, settings: Any) -> None:
    old, with_code, provider = Client(), Client(), Client()
    for browser in (old, with_code, provider):
        browser.force_login(world.users["adam"])
    for browser, how in ((with_code, "code"), (provider, "provider")):
        session = browser.session
        session[second_factors.HOW] = how
        session.save()
    settings.QUARTERMASTER_SECOND_FACTOR = "admins"
    assert [is_in(browser) for browser in (old, with_code, provider)] == [False, True, True]


def test_a_person_sets_it_up_in_the_console_and_other_sessions_end(world: worlds.World, clock: Any) -> None:
    here, elsewhere = APIClient(), Client()
    assert password_of("alice", elsewhere).status_code == 302
    assert password_of("alice", here).status_code == 302
    assert here.get("/api/v1/second-factor").json()["enabled"] is False
    refused = here.post("/api/v1/second-factor/offer", {"password": "wrong"}, format="json")
    assert (refused.status_code, "password" in refused.json()) == (400, True)
    offer = here.post("/api/v1/second-factor/offer", {"password": PASSWORD}, format="json").json()
    assert offer["secret"] in offer["address"]
    assert offer["svg"].startswith("<?xml")
    assert here.get("/api/v1/second-factor").json()["enabled"] is False
    done = here.post("/api/v1/second-factor/enable", {"code": code_of(offer["secret"])}, format="json")
    assert (done.status_code, len(done.json()["recovery_codes"])) == (201, 10)
    told = here.get("/api/v1/second-factor").json()
    assert (told["enabled"], told["codes_left"]) == (True, 10)
    assert (is_in(here), is_in(elsewhere)) == (True, False)  # type: ignore[arg-type]
    clock(60)
    codes = here.post("/api/v1/second-factor/codes", {"code": code_of(offer["secret"])}, format="json").json()
    assert not set(codes["recovery_codes"]) & set(done.json()["recovery_codes"])
    assert here.post("/api/v1/second-factor/disable", {"code": "000000"}, format="json").status_code == 400
    gone = here.post("/api/v1/second-factor/disable", {"code": codes["recovery_codes"][0]}, format="json")
    assert (gone.status_code, here.get("/api/v1/second-factor").json()["enabled"]) == (204, False)
    assert is_in(Client()) is False
    assert [entry.action for entry in AuditEntry.objects.filter(action__contains="second factor").order_by("pk")] == [
        "enable second factor", "disable second factor",
    ]  # fmt: skip


def test_who_has_one_already_changes_the_device_by_a_code_and_not_by_the_password(
    world: worlds.World, clock: Any
) -> None:
    secret, _ = with_factor(world.users["alice"])
    api = APIClient()
    api.force_login(world.users["alice"])
    assert api.post("/api/v1/second-factor/offer", {"password": PASSWORD}, format="json").status_code == 400
    offer = api.post("/api/v1/second-factor/offer", {"code": code_of(secret)}, format="json").json()
    assert (
        api.post("/api/v1/second-factor/enable", {"code": code_of(offer["secret"])}, format="json").status_code == 201
    )
    clock(60)
    assert not second_factors.check(actor=SYSTEM, user=world.users["alice"], code=code_of(secret))
    assert second_factors.check(actor=SYSTEM, user=world.users["alice"], code=code_of(offer["secret"]))


def test_an_access_token_changes_no_second_factor(world: worlds.World, clock: Any) -> None:
    secret, _ = with_factor(world.users["alice"])
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {world.tokens['alice'].credential.text}")
    for path in ("offer", "enable", "codes", "disable"):
        answer = api.post(f"/api/v1/second-factor/{path}", {"code": code_of(secret)}, format="json")
        assert answer.status_code == 403
    assert second_factors.enabled(world.users["alice"])


def test_it_cannot_be_switched_off_where_it_is_required(world: worlds.World, clock: Any, settings: Any) -> None:
    secret, _ = with_factor(world.users["alice"])
    settings.QUARTERMASTER_SECOND_FACTOR = "all"
    browser = APIClient()
    password_of("alice", browser)
    browser.post(second_factor.CODE, {"code": code_of(secret)})
    refused = browser.post("/api/v1/second-factor/disable", {"code": code_of(secret)}, format="json")
    assert "required here" in refused.json()["non_field_errors"]


def test_who_comes_by_the_identity_provider_has_none_to_set_up(world: worlds.World, clock: Any) -> None:
    api = APIClient()
    api.force_login(world.users["bob"])
    assert api.get("/api/v1/second-factor").json()["available"] is False
    refused = api.post("/api/v1/second-factor/offer", {}, format="json")
    assert "no password here" in str(refused.json())


def test_a_lost_device_is_reset_by_an_admin_and_by_nobody_else(world: worlds.World, clock: Any) -> None:
    alice = world.users["alice"]
    with_factor(alice)
    browser = Client()
    browser.force_login(alice)
    operator, admin = APIClient(), APIClient()
    operator.force_login(world.users["olga"])
    admin.force_login(world.users["adam"])
    path = f"/api/v1/people/{alice.pk}/reset-second-factor"
    assert operator.get(f"/api/v1/people/{alice.pk}").json()["second_factor"] is True
    assert operator.post(path).status_code == 403
    assert second_factors.enabled(alice)
    assert admin.post(path).json()["second_factor"] is False
    assert not is_in(browser)
    entry = AuditEntry.objects.get(action="reset second factor")
    assert (entry.actor, entry.object_id) == ("adam", "alice")
    assert password_of("alice", Client()).headers["Location"] == "/"


def test_the_host_resets_the_last_admins(world: worlds.World, clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with_factor(world.users["adam"])
    call_command("second_factor", "reset", "adam")
    assert not second_factors.enabled(world.users["adam"])
    assert "was reset" in capsys.readouterr().out
    assert AuditEntry.objects.get(action="reset second factor").via == "cli"


def test_secrets_lie_sealed_and_are_said_to_be_so_under_another_key(
    world: worlds.World, clock: Any, settings: Any
) -> None:
    secret, codes = with_factor(world.users["alice"])
    stored = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in stored
    assert not any(code in stored for code in codes)
    assert not any(text in str(AuditEntry.objects.values_list("before", "after")) for text in (secret, *codes))
    settings.SECRET_KEY = "another key of at least thirty-two characters"
    browser = Client()
    password_of("alice", browser)
    answer = browser.post(second_factor.CODE, {"code": code_of(secret)})
    assert (answer.status_code, is_in(browser)) == (409, False)
    assert "manage.py second_factor reset" in answer.content.decode()
