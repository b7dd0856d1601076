"""Debug pages show where it failed, and nothing that somebody could use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from django.test import Client

URLS = {
    "database_url": "postgresql://qm:pa%24%24-database@db/qm",
    "redis_url": "redis://:pass-of-redis@redis:6379/0",
}
SECRETS = {
    "secret_key": "secret-key-" + "k" * 40,
    "metrics_token": "token-of-metrics",
    "webhook_secret": "secret-of-webhooks",
} | URLS
SHOWN_NOWHERE = (
    *SECRETS.values(), "pa%24%24-database", "pa$$-database", "pass-of-redis", "password-of-ada", "cookie-of-ada",
    "qma-AAAAAAAAAAAA.bearer",
)  # fmt: skip


@pytest.fixture
def debugging(settings: Any) -> Any:
    settings.DEBUG = True
    settings.ENV = replace(settings.ENV, **SECRETS)
    settings.SECRET_KEY = SECRETS["secret_key"]
    settings.QUARTERMASTER_WEBHOOK_SECRET = SECRETS["webhook_secret"]
    settings.SOME_HOSTS = [{"address": SECRETS["redis_url"]}]  # as in CHANNEL_LAYERS
    return settings


def ask(method: str, path: str, **given: Any) -> tuple[int, str]:
    client = Client(raise_request_exception=False, enforce_csrf_checks=False)
    client.cookies["qm_session_8000"] = "cookie-of-ada"
    client.cookies["other"] = "cookie-of-ada"
    answer = getattr(client, method)(
        path,
        headers={"authorization": "Bearer qma-AAAAAAAAAAAA.bearer"} | given,
        data={"username": "ada", "password": "password-of-ada"} if method == "post" else None,
    )
    return answer.status_code, answer.content.decode()


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
@pytest.mark.django_db
def test_a_failure_shows_no_secret(debugging: Any, accept: str) -> None:
    def fail(*_: Any, **credentials: Any) -> None:
        url, env = debugging.ENV.redis_url, debugging.ENV  # both are variables of a frame
        raise RuntimeError(f"no connection to {url} with {debugging.ENV.database_url}, {env}")

    with mock.patch("django.contrib.auth.forms.authenticate", fail):
        status, page = ask("post", "/login", accept=accept)
    assert status == 500
    assert "no connection to" in page, "what went wrong is told"
    assert "test_debug_pages.py" in page, "and where"
    assert [secret for secret in SHOWN_NOWHERE if secret in page] == []


@pytest.mark.django_db
def test_a_page_that_is_missing_shows_no_secret(debugging: Any) -> None:
    for path in ("/static/nothing", "/No-such-page", "/admin/nothing/"):
        status, page = ask("get", path)
        assert status in (302, 404, 500)
        assert [secret for secret in SHOWN_NOWHERE if secret in page] == []
