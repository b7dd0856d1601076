"""The login page for who is signed in already: it sends on, and never to itself or to another site."""

from __future__ import annotations

import pytest
from django.test import Client

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
