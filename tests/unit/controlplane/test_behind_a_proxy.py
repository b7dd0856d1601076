"""Behind a proxy that passes on other names than browsers use: what is wrong is said, and by whom it can be mended."""

from __future__ import annotations

import logging

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from controlplane import env_loading
from controlplane.web.error_pages import MOST_NAMED, NAMED_AGAIN_S, UntrustedProxy

pytestmark = pytest.mark.django_db
ORIGIN = "https://llm.example.org:8443"


def post(browser: Client, **headers: str) -> tuple[int, str]:
    answer = browser.post("/login", {"login": "adam", "password": "x"}, headers=headers)  # type: ignore[arg-type]
    return answer.status_code, answer.content.decode()


def test_a_form_from_another_address_is_not_called_too_old() -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.get("/login")
    status, page = post(browser, origin=ORIGIN)
    assert (status, "The form came from another address" in page, "TRUSTED_ORIGINS" in page) == (403, True, True)
    assert "cookies are blocked" not in page
    status, page = post(browser)
    assert (status, "The form has expired" in page) == (403, True), "one without its token"


def test_the_consoles_own_address_may_post_forms() -> None:
    assert env_loading.load({"QUARTERMASTER_PUBLIC_URL": f"{ORIGIN}/"}).origins == [ORIGIN]
    both = {"QUARTERMASTER_PUBLIC_URL": ORIGIN, "QUARTERMASTER_TRUSTED_ORIGINS": "https://a.example"}
    assert env_loading.load(both).origins == ["https://a.example", ORIGIN]
    assert env_loading.load({}).origins == []


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("https://LLM.example.org:443/", "https://llm.example.org"),
        ("http://llm.example.org:80", "http://llm.example.org"),
        ("http://llm.example.org:443", "http://llm.example.org:443"),
        ("https://someone:secret@llm.example.org/console", "https://llm.example.org"),
        ("https://[::1]:8443/", "https://[::1]:8443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_it_is_written_as_browsers_send_it(address: str, sent: str) -> None:
    assert env_loading.load({"QUARTERMASTER_PUBLIC_URL": address}).origins == [sent]


def test_nobody_elses_pages_may_post_because_of_it() -> None:
    """Those of all subdomains, and with TLS those that anybody on the way can make."""
    assert env_loading.load({"QUARTERMASTER_PUBLIC_URL": "https://*.example.org"}).origins == []
    own = {"QUARTERMASTER_PUBLIC_URL": "http://llm.example.org", "QUARTERMASTER_HTTPS": "on"}
    assert env_loading.load(own).origins == []


def test_who_comes_through_a_proxy_that_is_not_trusted_is_not_sent_round_in_circles(
    settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.SECURE_SSL_REDIRECT = True
    browser = Client()
    with caplog.at_level(logging.WARNING, "controlplane.web.error_pages"):
        answer = browser.get("/login", headers={"x-forwarded-proto": "https"})
    assert (answer.status_code, "TRUSTED_PROXIES" in answer.content.decode()) == (400, True)
    assert "a proxy at 127.0.0.1 says" in caplog.text
    assert browser.get("/login").status_code == 301, "one that came by HTTP is sent to HTTPS"
    assert browser.get("/login", headers={"x-forwarded-proto": "https"}, secure=True).status_code == 200


def test_each_such_proxy_is_logged_seldom_and_so_are_many_addresses(settings, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can send the header, with every request."""
    settings.SECURE_SSL_REDIRECT = True
    now = [0.0]
    middleware = UntrustedProxy(lambda request: HttpResponse(), clock=lambda: now[0])

    def lines(*addresses: str) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "controlplane.web.error_pages"):
            for address in addresses:
                middleware(RequestFactory().get("/login", REMOTE_ADDR=address, HTTP_X_FORWARDED_PROTO="https"))
        return len(caplog.records)

    assert lines(*["10.0.0.1"] * 50, "10.0.0.2") == 2
    now[0] = NAMED_AGAIN_S
    assert lines("10.0.0.1", "10.0.0.1") == 1, "it is still so"
    assert lines(*(f"10.1.{n // 250}.{n % 250}" for n in range(10 * MOST_NAMED))) == MOST_NAMED - 1
    assert len(middleware._named) == MOST_NAMED
