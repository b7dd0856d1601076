"""What stands before every page: login, policy headers, a brake on guessing, closed defaults."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.urls import get_resolver

from controlplane.web import login_attempts

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"


@pytest.fixture
def user(db):
    return get_user_model().objects.create_user("ada", password=PASSWORD, is_staff=True, is_superuser=True)


def test_the_console_asks_who_it_is(client, db):
    answer = client.get("/")
    assert answer.status_code == 302
    assert answer["location"].startswith("/login")


def test_the_console_loads_only_what_was_built(client, user, settings, tmp_path):
    (tmp_path / ".vite").mkdir()
    (tmp_path / ".vite" / "manifest.json").write_text(
        '{"src/main.tsx": {"file": "assets/main-1.js", "isEntry": true, "css": ["assets/main-2.css"]}}'
    )
    settings.FRONTEND_DIST = tmp_path
    client.force_login(user)
    page = client.get("/").content.decode()
    assert "/static/console/assets/main-1.js" in page
    assert "/static/console/assets/main-2.css" in page
    root = page.partition('<div id="root"')[2]
    assert "Quartermaster" in root, "the frame is painted before any script is there"
    assert client.get("/pools/llama").status_code == 200


def test_the_console_names_all_that_its_script_imports(client, user, settings, tmp_path):
    (tmp_path / ".vite").mkdir()
    (tmp_path / ".vite" / "manifest.json").write_text(
        """{"src/main.tsx": {"file": "assets/main-1.js", "isEntry": true, "imports": ["_a", "_b"],
            "dynamicImports": ["_later"]},
        "_a": {"file": "assets/a-1.js", "imports": ["_b", "src/main.tsx"], "css": ["assets/a-2.css"]},
        "_b": {"file": "assets/b-1.js", "imports": ["_c"]}, "_c": {"file": "assets/c-1.js"},
        "_later": {"file": "assets/later-1.js"}}"""
    )
    settings.FRONTEND_DIST = tmp_path
    client.force_login(user)
    page = client.get("/").content.decode()
    assert re.findall(r'"modulepreload" href="/static/console/assets/(\w)-1.js"', page) == ["a", "b", "c"]
    assert "/static/console/assets/a-2.css" in page
    assert "later-1" not in page


def test_built_files_are_cached_for_good_and_others_are_not(settings):
    built, other = {}, {}
    settings.SERVESTATIC_ADD_HEADERS_FUNCTION(built, "", "/static/console/assets/main-1.js")
    settings.SERVESTATIC_ADD_HEADERS_FUNCTION(other, "", "/static/admin/css/base.css")
    assert "immutable" in built["Cache-Control"]
    assert not other


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/login", "/nothing/here", "/admin/", "/api/v1/me", "/api/v1/tenants", "/api/v1/requests"),
        *(f"/api/v1/{name}?format=csv" for name in ("requests/export", "usage", "audit")),
        "/api/v1/schema",
    ],
)
def test_no_cache_keeps_what_was_made_for_one_user(path, client, user):
    assert "no-store" in client.get(path)["Cache-Control"]
    client.force_login(user)
    assert "no-store" in client.get(path)["Cache-Control"]


def test_a_console_that_was_not_built_says_so(client, user, settings, tmp_path):
    settings.FRONTEND_DIST = tmp_path
    client.force_login(user)
    answer = client.get("/")
    assert answer.status_code == 503
    assert "make setup" in answer.content.decode()


def test_a_policy_without_inline_scripts_covers_our_pages(client, user):
    policy = client.get("/login")["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    client.force_login(user)
    page = client.get("/").content.decode()
    assert "<script>" not in page
    assert " onclick=" not in page


def test_the_back_office_has_the_consoles_accent_on_light_and_on_dark_ground(client, user):
    css = (ROOT / "frontend" / "src" / "app.css").read_text()
    light, *dark = (tuple(bytes.fromhex(c)) for c in re.findall(r"--accent: #([0-9a-f]{6});", css))
    assert len(set(dark)) == 1
    client.force_login(user)
    page = client.get("/admin/").content.decode()
    for shade, accent in ((600, light), (500, dark[0])):
        assert f"--color-primary-{shade}: rgb{accent};" in page


def test_ten_wrong_passwords_close_the_door_for_that_name_only(client, user):
    for _ in range(login_attempts.FAILURES):
        assert client.post("/login", {"username": "ada", "password": "wrong"}).status_code == 200
    refused = client.post("/login", {"username": "ada", "password": PASSWORD})
    assert refused.status_code == 429
    assert refused["retry-after"]
    assert refused["content-type"].startswith("text/html")
    assert "Too many passwords</h1>" in refused.content.decode()
    assert "Content-Security-Policy" in refused
    assert client.post("/login", {"username": "grace", "password": "wrong"}).status_code == 200


def test_passwords_tried_over_basic_count_with_those_of_the_login_page(client, user, settings):
    settings.QUARTERMASTER_BASIC_AUTH = True

    def basic(password):
        return {"HTTP_AUTHORIZATION": "Basic " + b64encode(f"ada:{password}".encode()).decode()}

    assert client.get("/api/v1/me", **basic(PASSWORD)).status_code == 200
    for _ in range(login_attempts.FAILURES):
        assert client.get("/api/v1/me", **basic("wrong")).status_code == 401
    refused = client.get("/api/v1/me", **basic(PASSWORD))
    assert refused.status_code == 429
    assert refused.json()["detail"].startswith("Too many wrong passwords")
    assert client.post("/login", {"username": "ada", "password": PASSWORD}).status_code == 429
    assert client.get("/api/v1/me", HTTP_AUTHORIZATION="Basic !!!").status_code == 401


def test_a_right_password_forgets_wrong_ones(client, user):
    for _ in range(login_attempts.FAILURES - 1):
        client.post("/login", {"username": "ada", "password": "wrong"})
    assert client.post("/login", {"username": "ada", "password": PASSWORD}).status_code == 302
    client.logout()
    assert client.post("/login", {"username": "ada", "password": "wrong"}).status_code == 200


def test_logging_out_needs_a_post(client, user):
    client.force_login(user)
    assert client.get("/logout").status_code == 405
    assert client.post("/logout").status_code == 302


def test_a_view_that_names_nobody_serves_nobody(rf):
    from rest_framework.test import force_authenticate
    from rest_framework.views import APIView

    class Forgotten(APIView):
        def get(self, request):
            raise AssertionError("not reached")

    request = rf.get("/x")
    force_authenticate(request, get_user_model()(username="root", is_superuser=True))
    assert Forgotten.as_view()(request).status_code == 403


def test_every_django_route_is_closed_to_strangers(client, db):
    """No page but the login answers 200 to someone who is not logged in."""
    open_ones = set()
    for pattern in _paths(get_resolver().url_patterns):
        answer = client.get(pattern)
        if answer.status_code == 200:
            open_ones.add(pattern)
    assert open_ones <= {"/login"}


def _paths(patterns, prefix="/"):
    for entry in patterns:
        text = prefix + str(entry.pattern).lstrip("^")
        if hasattr(entry, "url_patterns"):
            yield from _paths(entry.url_patterns, text)
        elif "<" not in text and "(" not in text and "\\" not in text:
            yield text.rstrip("$")


def test_django_finds_nothing_to_warn_about_in_a_deployment(tmp_path):
    environ = os.environ | {
        "QUARTERMASTER_HTTPS": "on",
        "QUARTERMASTER_HOME": str(tmp_path),
        "QUARTERMASTER_SECRET_KEY": "k" * 25 + "abcdefghijklmnopqrstuvwxyz0123456789",
    }
    check = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr


def test_migrations_are_complete(db):
    from django.core.management import call_command

    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_what_does_not_exist_under_api_is_told_as_json(client, db):
    answer = client.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert "schema" in answer.json()["detail"]
    assert client.get("/api/v1/nothing/").status_code == 404
    assert client.get("/static/nothing").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/api/v1/schema", "/api/v1/live", "/api/v1/usage"])
def test_a_slash_too_many_under_api_is_forgiven_and_keeps_method_and_query(client, db, path):
    answer = client.post(f"{path}/?pool=a&pool=b")
    assert (answer.status_code, answer["location"]) == (308, f"{path}?pool=a&pool=b")


def test_strangers_with_other_hosts_do_not_fill_the_log(client, settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append
    logging.getLogger().addHandler(handler)
    try:
        assert {client.get("/login", headers={"host": f"evil-{n}"}).status_code for n in range(20)} == {400}
    finally:
        logging.getLogger().removeHandler(handler)
    told = [line for line in lines if line.name == "django.security.DisallowedHost"]
    assert len(told) <= 1
    assert all(line.exc_info is None for line in told)


def test_who_asks_for_another_host_is_told_which_setting_names_them(client, settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    page = client.get("/login", headers={"host": "gpu-box", "accept": "text/html"})
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (400, "text/html")
    assert "QUARTERMASTER_ALLOWED_HOSTS" in page.content.decode()
    answer = client.get("/api/v1/tenants", headers={"host": "gpu-box"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert "QUARTERMASTER_ALLOWED_HOSTS" in answer.json()["detail"]
    assert "gpu-box" not in page.content.decode() + answer.content.decode()


@pytest.mark.parametrize("host", ["a#@localhost", "localhost/login?#@b", "localhost:1@evil", "evil.localhost.", ""])
def test_a_host_that_is_not_ours_gets_no_page(client, settings, host):
    settings.ALLOWED_HOSTS = ["localhost"]
    assert client.get("/login", HTTP_HOST=host).status_code == 400
