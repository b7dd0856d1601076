"""A PostgreSQL that is there and answers nothing: pages say so, nothing hangs, and it goes on when it wakes."""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import psutil
import psycopg
import pytest
from django.db import connection

from tests.support.instance import Up
from tests.support.postgresql import postgresql

PAGE_S = 20.0  # a page that hung took as long as the server slept


@contextmanager
def asleep(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def patience() -> Iterator[None]:
    from controlplane import database

    before = database.patience_s
    database.patience_s = 1.0
    yield
    database.patience_s = before


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="a server that can be frozen")
def test_a_question_that_gets_no_answer_fails_and_its_connection_is_closed(patience: None) -> None:
    from controlplane.database import BoundedConnection

    info = connection.get_connection_params()
    options = {k: v for k, v in info.items() if k in ("host", "port", "user", "password", "dbname")}
    with psycopg.connect(**options) as looking, BoundedConnection.connect(**options) as asking:
        with (
            asleep(asking.info.backend_pid),
            pytest.raises(psycopg.OperationalError, match="did not answer within 1 s"),
        ):
            asking.execute("SELECT 1")
        assert asking.closed
        with BoundedConnection.connect(**options) as slow:
            pid = slow.info.backend_pid
            with pytest.raises(psycopg.OperationalError, match="did not answer"):
                slow.execute("SELECT pg_sleep(60)")
        # what was given up does not go on in the server
        end = time.monotonic() + 30
        busy = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
        while looking.execute(busy, [pid]).fetchone() != (0,):
            assert time.monotonic() < end
            looking.rollback()
            time.sleep(0.2)


def signed_in(up: Up) -> httpx.Client:
    """A browser of the demo's admin: what a stranger is shown asks the database nothing."""
    browser, admin = httpx.Client(base_url=up.url, timeout=PAGE_S), up.demo()["admin"]
    token = re.search(r'csrfmiddlewaretoken" value="([^"]+)', browser.get("/login").text)
    assert token is not None
    form = {"username": admin["username"], "password": admin["password"], "csrfmiddlewaretoken": token[1]}
    assert browser.post("/login", data=form).status_code == 302
    return browser


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("minutes", [0, 10], ids=["for moments", "for ten minutes"])
def test_pages_answer_503_while_postgresql_is_frozen_and_inference_goes_on(
    tmp_path: Path, minutes: int, figure: Callable[[str], None]
) -> None:
    with postgresql(tmp_path) as url:
        up = Up(
            tmp_path / "home",
            QUARTERMASTER_DATABASE_URL=url,
            QUARTERMASTER_SECRET_KEY=secrets.token_urlsafe(48),
            QUARTERMASTER_SIM_REPLICAS="1",
        ).start()
        try:
            up.wait_ready()
            header = up.admin()
            pages: list[float] = []
            answers: list[float] = []
            browser = signed_in(up)

            def page(path: str) -> int:
                begun = time.monotonic()
                if path.startswith("/api/"):
                    status = httpx.get(up.url + path, headers=header, timeout=PAGE_S).status_code
                else:
                    status = browser.get(path).status_code
                pages.append(time.monotonic() - begun)
                return status

            def ask() -> None:
                begun = time.monotonic()
                with up.client(max_retries=0) as client:
                    client.chat.completions.create(
                        model=up.demo()["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
                    )
                answers.append(time.monotonic() - begun)

            assert [page(path) for path in ("/api/v1/tenants", "/admin/", "/")] == [200] * 3
            server = psutil.Process(int((tmp_path / "pg" / "postmaster.pid").read_text().split()[0]))
            with asleep(server.pid, *(child.pid for child in server.children(recursive=True))):
                pages.clear()
                began = time.monotonic()
                for path in ("/api/v1/tenants", "/admin/", "/", "/api/v1/requests"):
                    assert page(path) == 503, path
                ask()
                for _ in range(40):  # nor do questions add up
                    assert page("/api/v1/tenants") == 503
                while time.monotonic() < began + minutes * 60:
                    assert page("/api/v1/tenants") == 503
                    ask()
                    time.sleep(1.0)
                frozen_s = time.monotonic() - began
                figure(
                    f"frozen for {frozen_s:.0f} s: {len(pages)} of {len(pages)} pages 503, after {median(pages):.2f} s "
                    f"(median), {max(pages):.2f} s at most; {len(answers)} of {len(answers)} requests on /v1 served, "
                    f"after {median(answers):.2f} s"
                )
            thawed = time.monotonic()
            up.wait(lambda: page("/api/v1/tenants") == 200)
            figure(f"pages again {time.monotonic() - thawed:.1f} s after its return")
            ask()
        finally:
            up.stop()
