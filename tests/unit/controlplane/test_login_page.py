"""The login page for who is signed in already: it sends on, and never to itself or to another site."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from controlplane.web import login_attempts, security
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("following", "goes_to"),
    [
        ("/requests", "/requests"), ("/login", "/"), ("/login?next=/login", "/"), ("http://testserver/login", "/"),
        ("//evil.test/", "/"), ("https://evil.test/", "/"), ("", "/"),
    ],
)  # fmt: skip
def test_who_is_signed_in_is_sent_on_wherever_the_address_says(following: str, goes_to: str) -> None:
    browser = Client()
    browser.force_login(worlds.build().users["adam"])
    answer = browser.get("/login", {"next": following})
    assert (answer.status_code, answer.headers["Location"]) == (302, goes_to)


@pytest.mark.parametrize("later", [False, True], ids=["one after the other", "in the event loop"])
def test_who_finds_no_place_is_asked_for_in_redis_by_few_at_a_time(
    later: bool, rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an owner has signed in from there is a question to Redis, and strangers have addresses without number."""
    asked: list[str] = []

    def known(name: str, address: str) -> bool:
        asked.append(address)
        return False

    monkeypatch.setattr(login_attempts, "known", known)
    monkeypatch.setattr(security, "places", full := login_attempts.Places(most=1))
    monkeypatch.setattr(security, "asking", few := login_attempts.Places(most=1))

    async def answers_later(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    throttle = security.LoginThrottle(answers_later if later else lambda request: HttpResponse())

    def try_from(address: str) -> int:
        request = rf.post("/login", {"username": "ann", "password": "x"}, REMOTE_ADDR=address)
        answer: HttpResponse = async_to_sync(throttle.later)(request) if later else throttle.now(request)
        return answer.status_code

    assert (try_from("10.0.0.1"), asked) == (200, ["10.0.0.1"])
    assert full.enter("10.0.0.9")
    assert (try_from("10.0.0.2"), asked) == (429, ["10.0.0.1", "10.0.0.2"])
    assert few.enter("10.0.0.9")
    assert (try_from("10.0.0.3"), asked) == (429, ["10.0.0.1", "10.0.0.2"])
    full.leave("10.0.0.9")
    few.leave("10.0.0.9")
    assert (try_from("10.0.0.4"), full._inside, few._inside) == (200, {}, {})
