"""Sign-in by SAML: who comes in with which role, and what was not signed for us, now, and for our question."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from controlplane.env import Env
from controlplane.signin import recheck, saml
from tenants import people, second_factors, services
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, GroupRule, Identity, Membership
from tests.support import saml_provider, worlds
from tests.support.saml_provider import SamlProvider, key_and_certificate

pytestmark = pytest.mark.django_db
PROVIDER = SamlProvider()


def stranger() -> Client:
    return Client(headers={"host": "testserver"})


@pytest.fixture(autouse=True)
def provider(settings: Any) -> SamlProvider:
    settings.SOCIALACCOUNT_PROVIDERS = {"saml": {"APPS": saml.apps_for(PROVIDER.metadata(), "Example")}}
    settings.QUARTERMASTER_SAML_ISSUER = PROVIDER.issuer
    settings.ALLOWED_HOSTS = ["testserver"]
    PROVIDER.people = {"ada": {"groups": ["llm-acme", "cooks"], "mail": ["ada@example.org"]}, "bea": {"groups": ["x"]}}
    PROVIDER.wrong = {}
    return PROVIDER


@pytest.fixture
def world() -> worlds.World:
    built = worlds.build()
    for group, tenant in (("llm-acme", "acme"), ("llm-globex", "globex")):
        services.save(actor=SYSTEM, instance=GroupRule(group=group, role="member", tenant=built.tenants[tenant]))
    return built


def asked(browser: Client, following: str = "/") -> str:
    answer = browser.get(f"/saml/sso/login/?next={following}")
    assert answer.status_code == 302, answer.content
    return str(answer.headers["Location"])


def given(browser: Client, form: dict[str, str]) -> Any:
    answer = browser.post("/saml/sso/acs/", form)
    if answer.status_code != 302:
        return answer
    assert answer.headers["Location"] == "/saml/sso/acs/finish/"
    return browser.get(answer.headers["Location"])


def signed_in(who: str = "ada", browser: Client | None = None, following: str = "/") -> Client:
    browser = browser or stranger()
    given(browser, PROVIDER.answer(asked(browser, following), who)[1])
    return browser


def is_in(browser: Client) -> bool:
    return browser.get("/api/v1/me").status_code == 200


def test_the_login_page_leads_there_and_back_to_the_page_that_was_asked_for(world: worlds.World) -> None:
    browser = stranger()
    assert 'href="/saml/sso/login/?next=/requests"' in browser.get("/login?next=/requests").content.decode()
    _, form = PROVIDER.answer(asked(browser, "/requests"), "ada")
    assert given(browser, form).headers["Location"] == "/requests"
    assert is_in(browser)
    assert browser.session[second_factors.HOW] == "provider"


def test_a_person_of_a_group_comes_in_with_the_role_of_that_group(world: worlds.World) -> None:
    signed_in()
    user = User.objects.get(username="ada")
    (role,) = Membership.objects.filter(user=user)
    assert (role.role, role.tenant, role.from_groups) == ("member", world.tenants["acme"], True)
    identity = Identity.objects.get(user=user)
    assert (identity.issuer, identity.subject, identity.groups) == (PROVIDER.issuer, "id of ada", ["cooks", "llm-acme"])
    assert not user.has_usable_password()


def test_another_group_at_the_next_sign_in_is_another_role(world: worlds.World) -> None:
    signed_in()
    PROVIDER.people["ada"]["groups"] = ["llm-globex"]
    signed_in()
    (role,) = Membership.objects.filter(user__username="ada")
    assert role.tenant == world.tenants["globex"]
    assert User.objects.filter(username="ada").count() == 1


def test_who_has_no_group_with_a_role_is_refused_and_leaves_no_account(world: worlds.World) -> None:
    browser = stranger()
    refused = given(browser, PROVIDER.answer(asked(browser), "bea")[1])
    assert (refused.status_code, "none of your groups" in refused.content.decode()) == (403, True)
    assert not User.objects.filter(username="bea").exists()


def test_accounts_are_not_joined_by_name_or_address(world: worlds.World) -> None:
    theirs = world.users["alice"]
    theirs.email = "alice@example.org"
    theirs.save()
    PROVIDER.people["alice"] = {"groups": ["llm-globex"], "mail": ["alice@example.org"]}
    signed_in("alice")
    new = Identity.objects.get(subject="id of alice").user
    assert new != theirs
    assert new.username != "alice"


CLAIMS = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims"


@pytest.mark.parametrize(
    ("sent", "name", "address"),
    [
        ({f"{CLAIMS}/name": ["ada@corp.example"], f"{CLAIMS}/emailaddress": ["ada.l@corp.example"]},
         "ada@corp.example", "ada.l@corp.example"),
        ({f"{CLAIMS}/upn": ["ada@corp.example"]}, "ada@corp.example", ""),
        ({"mail": ["ada.l@corp.example"]}, "ada.l", "ada.l@corp.example"),
        ({}, "id_of_ada", ""),
    ],
    ids=["Entra ID", "AD FS", "an address alone", "nothing but the identifier"],
)  # fmt: skip
def test_a_person_is_called_as_the_provider_names_them_in_whatever_attribute(
    world: worlds.World, sent: dict[str, list[str]], name: str, address: str
) -> None:
    PROVIDER.people["ada"] = {"username": [], "groups": ["llm-acme"], **sent}
    assert is_in(signed_in())
    user = Identity.objects.get(subject="id of ada").user
    assert (user.username, user.email) == (name, address)


def test_a_person_whose_name_is_taken_here_keeps_a_name_that_tells_who_it_is(world: worlds.World) -> None:
    PROVIDER.people["alice"] = {"groups": ["llm-globex"]}
    assert is_in(signed_in("alice"))
    assert re.fullmatch(r"alice\d+", Identity.objects.get(subject="id of alice").user.username)


@pytest.mark.parametrize("name", ["quartermaster", "Quartermaster"])
def test_nobody_is_called_as_the_audit_log_calls_this_installation(world: worlds.World, name: str) -> None:
    PROVIDER.people["eve"] = {"username": [name], "groups": ["llm-acme"], "mail": ["eve@example.org"]}
    assert is_in(signed_in("eve"))
    assert Identity.objects.get(subject="id of eve").user.username == "eve"


def test_an_identifier_that_is_longer_than_may_be_lets_nobody_in(world: worlds.World) -> None:
    PROVIDER.people["e" * 400] = {"groups": ["llm-acme"]}
    browser = stranger()
    browser.raise_request_exception = False
    refused = given(browser, PROVIDER.answer(asked(browser), "e" * 400)[1])
    assert (refused.status_code, is_in(browser)) == (400, False)


@pytest.mark.parametrize("process", ["connect", "redirect"])
def test_no_address_joins_the_account_that_is_signed_in_with_a_person_of_the_provider(
    world: worlds.World, process: str
) -> None:
    """Such a link would leave the account of whoever follows it to whoever is signed in at the provider."""
    theirs = world.users["alice"]
    browser = stranger()
    browser.force_login(theirs)
    begun = browser.get(f"/saml/sso/login/?process={process}&next=/").headers["Location"]
    refused = given(browser, PROVIDER.answer(begun, "ada")[1])
    assert (refused.status_code, "never joined" in refused.content.decode()) == (400, True)
    signed_in("ada")
    assert Identity.objects.get(subject="id of ada").user != theirs


def _changed(old: str, new: str) -> dict[str, Any]:
    return {"change": lambda text: text.replace(old, new)}


def _second_assertion(text: str) -> str:
    """Signature wrapping: an unsigned copy for somebody else stands before the signed one."""
    begin, end = text.index("<saml:Assertion"), text.index("</saml:Assertion>") + len("</saml:Assertion>")
    false = text[begin:end].replace("id of bea", "id of ada").replace('ID="_', 'ID="_f')
    return text[:begin] + false + text[begin:]


def _false(text: str) -> tuple[str, str, str, str]:
    """What stands before the signed assertion, an unsigned one for another group, the signed one, and the rest."""
    begin, end = text.index("<saml:Assertion"), text.index("</saml:Assertion>") + len("</saml:Assertion>")
    signed = text[begin:end]
    false = re.sub(r"<(ds:)?Signature.*?</(ds:)?Signature>", "", signed, flags=re.DOTALL)
    return text[:begin], false.replace("llm-acme", "llm-globex").replace('ID="_', 'ID="_f', 1), signed, text[end:]


def _around(text: str) -> str:
    """Signature wrapping: the signed assertion is a part of the false one."""
    before, false, signed, after = _false(text)
    return before + false.replace("</saml:Assertion>", f"{signed}</saml:Assertion>") + after


def _among_extensions(text: str) -> str:
    """Signature wrapping: the signed assertion stands where nobody looks."""
    before, false, signed, after = _false(text)
    hidden = f"<samlp:Extensions>{signed}</samlp:Extensions><samlp:Status>"
    return before.replace("<samlp:Status>", hidden) + false + after


WRONG: dict[str, dict[str, Any]] = {
    "unsigned": {"unsigned": True},
    "another key": {"key": key_and_certificate()},
    "another group": _changed("llm-acme", "llm-globex"),
    "another person": _changed("id of ada", "id of adam"),
    "another audience": {"audience": "https://elsewhere.example"},
    "an hour ago": {"now": datetime.now(UTC) - timedelta(hours=1)},
    "in an hour": {"now": datetime.now(UTC) + timedelta(hours=1)},
    "a second assertion": {"change": _second_assertion},
    "a false one around it": {"change": _around},
    "a false one, and the signed one among extensions": {"change": _among_extensions},
    "an entity": {"change": lambda text: '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + text.replace("cooks", "&a;")},
    "no XML": {"change": lambda text: "<x"},
    "another XML": {"change": lambda text: "<x/>"},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_the_provider_did_not_sign_for_us_and_now_lets_nobody_in(world: worlds.World, what: str) -> None:
    PROVIDER.wrong = WRONG[what]
    browser = signed_in()
    assert not is_in(browser)
    assert not Identity.objects.exists()


@pytest.mark.parametrize("comment", ["<!---->", "<!-- a -->", "<?a b?>"])
def test_a_comment_which_no_signature_covers_ends_no_name_and_no_group(world: worlds.World, comment: str) -> None:
    PROVIDER.people["ada.b"] = {"groups": ["llm-acme", "llm-globex.b"]}
    PROVIDER.wrong = _changed("id of ada.b", f"id of ada{comment}.b")
    assert is_in(signed_in("ada.b"))
    assert [one.subject for one in Identity.objects.all()] == ["id of ada.b"]
    PROVIDER.people["ada.b"] = {"groups": ["llm-globex.b"]}
    PROVIDER.wrong = _changed("llm-globex.b", f"llm-globex{comment}.b")
    assert not is_in(signed_in("ada.b"))


@pytest.mark.parametrize("form", [{}, {"SAMLResponse": "%"}, {"SAMLResponse": "\x00\ufffd"}])
def test_what_is_no_answer_is_refused_with_a_sentence(world: worlds.World, form: dict[str, str]) -> None:
    browser = stranger()
    asked(browser)
    answer = given(browser, form)
    assert 400 <= answer.status_code < 500
    assert "Go to /login" in answer.content.decode()


def test_an_answer_that_was_not_asked_for_lets_nobody_in(world: worlds.World) -> None:
    """What a provider begins by itself could have been put under a stranger by somebody else (login CSRF)."""
    browser = stranger()
    host = "http://testserver/saml/sso"
    given(browser, {"SAMLResponse": PROVIDER.signed(f"{host}/acs/", f"{host}/metadata/", "ada", None)})
    assert not is_in(browser)
    given(browser, {"SAMLResponse": PROVIDER.signed(f"{host}/acs/", f"{host}/metadata/", "ada", "ONELOGIN_made_up")})
    assert not is_in(browser)


def test_a_question_that_stands_around_a_signed_answer_alone_opens_nothing(world: worlds.World) -> None:
    """Of what a provider signs the assertion alone counts: whoever has one that answers no question may write one."""
    browser = stranger()
    question = re.search(r"ONELOGIN_\w+", inflated(asked(browser)))
    assert question is not None
    around = '<samlp:Response InResponseTo="' + question[0] + '"'
    PROVIDER.wrong = {"change": lambda text: text.replace("<samlp:Response", around)}
    host = "http://testserver/saml/sso"
    answer = given(browser, {"SAMLResponse": PROVIDER.signed(f"{host}/acs/", f"{host}/metadata/", "ada", None)})
    assert (answer.status_code, is_in(browser)) == (400, False)


def test_an_answer_that_says_not_for_whom_it_is_lets_nobody_in(
    world: worlds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = re.sub("<saml:AudienceRestriction>.*</saml:AudienceRestriction>", "", saml_provider.ASSERTION)
    monkeypatch.setattr(saml_provider, "ASSERTION", without)
    browser = stranger()
    answer = given(browser, PROVIDER.answer(asked(browser), "ada")[1])
    assert (answer.status_code, is_in(browser)) == (400, False)


def inflated(address: str) -> str:
    """The question in an address."""
    packed = parse_qs(urlsplit(address).query)["SAMLRequest"][0]
    return zlib.decompress(base64.b64decode(packed), -15).decode()


def test_an_answer_opens_one_session_once_and_in_no_other_browser(world: worlds.World) -> None:
    first, second = stranger(), stranger()
    _, form = PROVIDER.answer(asked(first), "ada")
    given(second, form)
    assert not is_in(second)
    given(first, form)
    assert is_in(first)
    first.post("/logout")
    given(first, form)
    assert not is_in(first)


def test_an_answer_that_is_too_long_is_not_kept(world: worlds.World) -> None:
    kept = Session.objects.count()
    long = base64.b64encode(b"x" * saml.ANSWER_LETTERS).decode()
    assert stranger().post("/saml/sso/acs/", {"SAMLResponse": long}).status_code == 400
    assert Session.objects.count() == kept


def test_answers_of_one_address_are_bounded(world: worlds.World) -> None:
    statuses = [stranger().post("/saml/sso/acs/", {"SAMLResponse": "x"}).status_code for _ in range(saml.BEGUN + 1)]
    assert statuses == [302] * saml.BEGUN + [429]


def test_a_sign_in_that_was_not_renewed_ends_what_the_person_has_here(world: worlds.World, settings: Any) -> None:
    settings.QUARTERMASTER_SAML_HOURS = 2
    browser = signed_in()
    user = User.objects.get(username="ada")
    token = services.issue_token(actor=SYSTEM, user=user, name="t")
    bearer = {"authorization": f"Bearer {token.credential.text}"}
    identity = Identity.objects.get(user=user)
    assert abs(identity.due_at - timezone.now() - timedelta(hours=2)) < timedelta(minutes=1)
    looks = recheck.make_recheck()
    assert looks is not None
    assert looks.turn() == 0
    assert (is_in(browser), stranger().get("/api/v1/me", headers=bearer).status_code) == (True, 200)
    Identity.objects.update(due_at=timezone.now() - timedelta(seconds=1))
    looks.look(Identity.objects.get())
    assert (is_in(browser), stranger().get("/api/v1/me", headers=bearer).status_code) == (False, 401)
    assert not Membership.objects.filter(user=user).exists()
    assert "no way to ask" in AuditEntry.objects.get(action="end").after["reason"]
    assert is_in(signed_in()), "who signs in again is back"


def test_a_person_of_another_provider_is_not_ended_because_that_one_is_not_configured(world: worlds.World) -> None:
    signed_in()
    Identity.objects.update(issuer="https://former.example", due_at=timezone.now() - timedelta(days=1))
    looks = recheck.make_recheck()
    assert looks is not None
    looks.look(Identity.objects.get())
    assert Identity.objects.get().ended_at is None


def test_a_disabled_account_stays_out(world: worlds.World) -> None:
    signed_in()
    people.set_active(actor=SYSTEM, user=User.objects.get(username="ada"), active=False)
    assert not is_in(signed_in())
    people.end(Identity.objects.get(), "Their sign-in ran out.")
    assert not is_in(signed_in())


def test_only_what_the_provider_signed_logs_somebody_out_or_leads_elsewhere(world: worlds.World) -> None:
    browser = signed_in()
    link = f"/saml/sso/sls/?{PROVIDER.log_out('ada', 'https://elsewhere.example/', signed=False)}"
    for query in (link, f"{link}&Signature=", f"{link}&Signature=AAAA&SigAlg=x"):
        refused = browser.get(query)
        assert (refused.status_code, "Location" in refused.headers) == (400, False)
    assert is_in(browser)
    signed = browser.get(f"/saml/sso/sls/?{PROVIDER.log_out('ada', 'http://idp.test/bye')}")
    assert signed.headers["Location"].startswith("http://idp.test/bye?SAMLResponse=")
    assert not is_in(browser)


def test_a_log_out_that_says_nowhere_where_to_go_on_is_answered_with_a_sentence(world: worlds.World) -> None:
    browser = signed_in()
    assert browser.get(f"/saml/sso/sls/?{PROVIDER.log_out('ada')}").status_code == 400
    assert not is_in(browser)


def test_the_metadata_names_this_installation(world: worlds.World) -> None:
    answer = stranger().get("/saml/sso/metadata/")
    assert answer.status_code == 200
    assert b'Location="http://testserver/saml/sso/acs/"' in answer.content
    assert b'WantAssertionsSigned="true"' in answer.content


def test_without_saml_there_is_nothing(world: worlds.World, settings: Any) -> None:
    settings.QUARTERMASTER_SAML_ISSUER = ""
    assert "saml" not in stranger().get("/login").content.decode()
    for path in ("login/", "acs/finish/", "sls/", "metadata/"):
        assert stranger().get(f"/saml/sso/{path}").status_code == 404
    assert stranger().get("/saml/another/metadata/").status_code == 404


def test_a_file_that_describes_no_provider_and_missing_libraries_are_said_at_the_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "idp.xml"
    file.write_text(PROVIDER.metadata())
    (app,) = Env(saml_metadata_file=str(file)).saml_apps
    assert app["settings"]["idp"]["entity_id"] == PROVIDER.issuer
    monkeypatch.setattr(saml, "there", lambda: False)
    with pytest.raises(ValueError, match="make extras"):
        _ = Env(saml_metadata_file=str(file)).saml_apps
    monkeypatch.undo()
    file.write_text("<x/>")
    with pytest.raises(ValueError, match="no metadata of an identity provider"):
        _ = Env(saml_metadata_file=str(file)).saml_apps


WITHOUT = """
import sys
for name in ("onelogin", "xmlsec", "lxml", "pyarrow"):
    sys.modules[name] = None
import django
django.setup()
from django.core.management import call_command
from django.test import Client
from django.urls import get_resolver
call_command("check", verbosity=0)
page = Client(headers={"host": "localhost"}).get("/saml/sso/metadata/")
print(len(get_resolver().url_patterns) > 10, page.status_code)
"""


def test_the_product_starts_without_the_libraries_that_few_installations_have(tmp_path: Path) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("QUARTERMASTER_")}
    environ |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "QUARTERMASTER_HOME": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-c", WITHOUT], env=environ, capture_output=True, text=True, timeout=120)
    assert answer.stdout.split()[-2:] == ["True", "404"], answer.stderr
