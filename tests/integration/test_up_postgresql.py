"""The same instance on PostgreSQL and a Redis that it did not start, as in compose."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from tests.support.instance import Up, gone
from tests.support.postgresql import postgresql


@pytest.fixture
def database(tmp_path):
    with postgresql(tmp_path) as url:
        yield url


def test_everything_runs_on_postgresql_and_a_redis_of_ones_own(database, private_redis, tmp_path):
    up = Up(
        tmp_path / "home",
        QUARTERMASTER_DATABASE_URL=database,
        QUARTERMASTER_REDIS_URL=private_redis.url,
        QUARTERMASTER_SECRET_KEY=secrets.token_urlsafe(48),
        QUARTERMASTER_SIM_REPLICAS="1",
    ).start()
    try:
        up.wait_ready()
        assert not (up.home / "run" / "redis.pid").exists()
        assert not (up.home / "db.sqlite3").exists()
        with up.client() as client:
            for _ in range(3):
                client.chat.completions.create(
                    model=up.demo()["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
                )
        with psycopg.connect(database) as connection:

            def recorded():
                return connection.execute("SELECT count(*) FROM telemetry_ledgerentry").fetchone()[0] == 3

            up.wait(recorded)
        tree = up.tree()
    finally:
        up.stop()
    assert gone(tree)
