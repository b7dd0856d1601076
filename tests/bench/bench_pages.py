"""What the console's lists cost on a large PostgreSQL: pages of requests, usage by group, the overview's past.

    python -m tests.bench.bench_pages [--rows 1000000] [--repeats 7] [--only requests]

A PostgreSQL and a Redis are started for it, with default settings. Asked through the whole of Django (session, rights,
serializer, JSON), in the process, without a network. A line says: the first answer, the median and the slowest of the
others [ms], the rows that came back, and how far back a page was searched that ended before the ledger did.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

DAYS = 7
TENANTS, KEYS, PASTS = 40, 4, 50
TARGET_MS = 300.0
Question = tuple[str, str, str, dict[str, Any]]  # its name, who asks, the path, its parameters

# The newest requests come last, as they do in life: a quarter of all is one tenant's, another has one in ten thousand.
FILL = """
INSERT INTO telemetry_ledgerentry (
    request_id, pool, model, tenant, tier, entitlement, key_id, gateway, outcome, reason, status, streamed, attempts,
    backend, policy, why, input_tokens_est, output_tokens_est, output_bound, input_tokens, output_tokens, received_at,
    queued_at, granted_at, first_token_at, done_at, ttft_slo_s, tbt_slo_s, slo_met, category, estimate_source,
    output_tokens_p90, output_rank, admission)
SELECT
    'req_' || lpad(to_hex(1764000000000 + n), 12, '0') || substr(md5(n::text), 1, 12),
    CASE WHEN n %% 100 = 0 THEN 'mistral' ELSE 'llama' END,
    CASE WHEN n %% 100 = 0 THEN 'mistral-7b' ELSE 'llama-3-8b' END,
    tenant, tier, tenant || '-' || tier, 'key' || lpad((h %% 4)::text, 9, '0'), 'gw-0a1b2c3d',
    outcome,
    CASE outcome
        WHEN 'completed' THEN CASE WHEN h %% 3 = 0 THEN 'length' ELSE 'stop' END
        WHEN 'refused' THEN CASE WHEN h %% 5000 = 1 THEN 'too_long' WHEN h %% 2 = 0 THEN 'token_budget'
                                 ELSE 'concurrency' END
        WHEN 'failed' THEN 'backend_lost'
        ELSE CASE WHEN h %% 1000 = 7 THEN 'operator' ELSE 'client_left' END END,
    CASE outcome WHEN 'refused' THEN 429 ELSE 200 END, true, 1,
    CASE outcome WHEN 'refused' THEN '' ELSE 'llama-' || (h %% 8) END, 'unified@3', 'free slot and nobody waiting',
    400, 200.0, 512, 380, h %% 500, at,
    at + interval '3 ms', CASE outcome WHEN 'refused' THEN NULL ELSE at + interval '200 ms' END,
    CASE outcome WHEN 'refused' THEN NULL ELSE at + interval '500 ms' END, at + interval '4 s', 1.0, 0.1,
    CASE outcome WHEN 'refused' THEN NULL ELSE h %% 20 <> 0 END, 'chat', 'history', 400.0, 0.5,
    '{"concurrency": [3, 40], "tokens": [90000, 120000], "weight": 61.2}'
FROM (
    SELECT n, h, tenant, CASE WHEN h %% 3 = 0 THEN 'premium' WHEN h %% 3 = 1 THEN 'standard' ELSE 'batch' END AS tier,
        CASE WHEN h %% 97 < 12 THEN 'refused' WHEN h %% 97 < 14 THEN 'failed' WHEN h %% 97 < 18 THEN 'cancelled'
             ELSE 'completed' END AS outcome,
        to_timestamp(%(begin)s + n * %(step)s) AS at
    FROM (
        SELECT n, h, CASE WHEN h %% 10000 = 4321 THEN 'rare' WHEN h %% 4 = 0 THEN 'tenant-00'
                          ELSE 'tenant-' || lpad((1 + h / 7 %% %(tenants)s)::text, 2, '0') END AS tenant
        FROM (SELECT n, abs(hashint8(n)::bigint) AS h FROM generate_series(1, %(rows)s) AS n) AS numbers
    ) AS named
) AS shaped ORDER BY n
"""


@contextmanager
def filled_ledger(rows: int) -> Iterator[None]:
    """Django on a database with so many requests of the last days, added up by the hour, and a week of the past."""
    with tempfile.TemporaryDirectory(prefix="qm-pages-") as folder, postgresql(Path(folder)) as url:
        redis = RedisServer()
        redis.start()
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "QUARTERMASTER_HOME": folder,
            "QUARTERMASTER_DATABASE_URL": url,
            "QUARTERMASTER_REDIS_URL": redis.url,
            "QUARTERMASTER_SECRET_KEY": secrets.token_urlsafe(48),
        }
        try:
            import django

            django.setup()
            from django.core.management import call_command
            from django.db import connection

            call_command("migrate", verbosity=0)
            now_s = time.time()
            begin = now_s - DAYS * 86_400
            values = {"rows": rows, "begin": begin, "step": DAYS * 86_400 / rows, "tenants": TENANTS - 1}
            with connection.cursor() as cursor:
                cursor.execute(FILL, values)
            people()
            past(now_s)
            from telemetry.ledger.rollup import roll_up

            roll_up()
            with connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE")
            yield
        finally:
            from django.db import connections

            connections.close_all()
            for alias in connections:
                connections[alias].close_pool()
            redis.stop()


def people() -> None:
    """An admin, a member of the largest tenant, one of the rarest."""
    from django.contrib.auth import get_user_model

    from tenants.models import Membership, Role, Tenant

    users = get_user_model()
    users.objects.create_superuser("admin", password="admin-of-the-bench")
    for name in ("tenant-00", "rare"):
        tenant = Tenant.objects.create(slug=name)
        user = users.objects.create_user(f"member-of-{name}", password="member-of-the-bench")
        Membership.objects.create(user=user, tenant=tenant, role=Role.MEMBER)


def past(now_s: float) -> None:
    """Every step that is kept of one pool whose points name as many tenants and entitlements as points may."""
    import msgspec

    from telemetry.feed.past import KEPT_S
    from telemetry.feed.store import LiveStore
    from telemetry.models import PastPoint
    from tests.browser.pretend import PretendPool

    pool = PretendPool("llama", now_s, tenants=PASTS)
    point = pool.point()

    def at_end(at_s: float) -> str:
        return msgspec.json.encode(point | {"at": at_s}).decode()

    for step, kept in KEPT_S.items():
        first = int(now_s - kept) // step * step
        PastPoint.objects.bulk_create(
            (
                PastPoint(pool="llama", step_s=step, at=at, point=at_end(at + step - 1))
                for at in range(first, int(now_s) - step, step)
            ),
            batch_size=1000,
        )
    store = LiveStore(os.environ["QUARTERMASTER_REDIS_URL"])
    for age in range(900, 0, -1):
        store.store(
            "llama",
            1,
            1000 - age,
            msgspec.json.encode(pool.snapshot),
            msgspec.json.encode(point | {"at": now_s - age}),
        )
    store.close()


def questions(rows: int, now: datetime) -> Iterator[Question]:
    """Who asks what: a name for people, the user, the path, its parameters."""
    requests = "/api/v1/requests"

    def cursor(age: timedelta) -> str:
        """As the paginator writes it: what was received before this moment."""
        return b64encode(urlencode({"p": str(now - age)}).encode()).decode()

    yield "requests: first page", "admin", requests, {}
    for name, share in (("a tenth", 0.1), ("half", 0.5), ("99 %", 0.99)):
        yield f"requests: page after {name} of all", "admin", requests, {"cursor": cursor(timedelta(days=DAYS * share))}
    for name, value in (
        ("outcome", "refused"), ("outcome", "failed"), ("reason", "stop"), ("reason", "too_long"),
        ("reason", "operator"), ("reason", "no_backend"), ("slo_met", "false"), ("slo_met", "true"),
        ("tenant", "tenant-00"), ("tenant", "rare"), ("tenant", "nobody"), ("pool", "llama"), ("pool", "mistral"),
        ("pool", "none"), ("tier", "premium"), ("tier", "none"), ("entitlement", "rare-premium"),
        ("entitlement", "none"), ("key_id", "key000000001"), ("key_id", "none"), ("backend", "llama-3"),
        ("backend", "none"),
    ):  # fmt: skip
        yield f"requests: {name} {value}", "admin", requests, {name: value}
    some = f"req_{1764000000000 + rows // 3:012x}"
    yield "requests: beginning of an id, one", "admin", requests, {"request_id": some}
    yield "requests: beginning of an id, all", "admin", requests, {"request_id": "req_"}
    yield "requests: beginning of an id, none", "admin", requests, {"request_id": "req_ffff"}
    yield "requests: failed, of a rare tenant", "admin", requests, {"outcome": "failed", "tenant": "rare"}
    yield (
        "requests: refused for concurrency, SLO missed (none)",
        "admin",
        requests,
        {"outcome": "refused", "reason": "concurrency", "slo_met": "false"},
    )
    yield "requests: no such tier, the largest tenant", "admin", requests, {"tier": "none", "tenant": "tenant-00"}
    yield (
        "requests: no such tier, after half",
        "admin",
        requests,
        {"tier": "none", "cursor": cursor(timedelta(days=DAYS / 2))},
    )
    yield "requests: no such tier, a member's", "member-of-tenant-00", requests, {"tier": "none"}
    yield (
        "requests: missed, of a rare tenant, mistral",
        "admin",
        requests,
        {"slo_met": "false", "tenant": "rare", "pool": "mistral"},
    )
    yield (
        "requests: an hour of five days ago",
        "admin",
        requests,
        {"from": (now - timedelta(days=5)).isoformat(), "to": (now - timedelta(days=5, hours=-1)).isoformat()},
    )
    yield "requests: a member's first page", "member-of-tenant-00", requests, {}
    yield (
        "requests: a member's page after half",
        "member-of-tenant-00",
        requests,
        {"cursor": cursor(timedelta(days=DAYS / 2))},
    )
    yield "requests: a rare member's failed", "member-of-rare", requests, {"outcome": "failed"}
    yield "requests: waited over 8 s (none)", "admin", requests, {"waited_over": "8"}
    yield "requests: first token after 0.4 s", "admin", requests, {"ttft_over": "0.4"}
    explore, hour = f"{requests}/explore", {"from": (now - timedelta(hours=1)).isoformat()}
    yield "explore: everything", "admin", explore, {}
    yield "explore: the last hour by reason", "admin", explore, hour | {"group_by": "reason"}
    yield "explore: waited over 8 s (none)", "admin", explore, {"waited_over": "8"}
    yield "explore: total over 3 s, a tenant's by key", "admin", explore, {
        "total_over": "3", "tenant": "tenant-00", "group_by": "key",
    }  # fmt: skip
    yield "requests: longest waits first", "admin", requests, {"order": "waited"}
    yield "requests: longest first tokens of a tenant", "admin", requests, {"order": "ttft", "tenant": "tenant-00"}
    yield "requests: JSON file of the last hour", "admin", f"{requests}/export", hour | {"format": "json"}
    yield "explore: a member's", "member-of-tenant-00", explore, {}
    week = {"from": (now - timedelta(days=DAYS)).isoformat()}
    for groups in ("tenant", "tenant,pool", "key", "model", "day", "tenant,day", "hour", "tenant,hour"):
        yield f"usage of a week by {groups}", "admin", "/api/v1/usage", week | {"group_by": groups}
    yield "usage of a day by tenant", "admin", "/api/v1/usage", {"group_by": "tenant"}
    yield "usage of a day by reason (no roll-up)", "admin", "/api/v1/usage", {"group_by": "reason"}
    yield "usage of a week by reason (no roll-up)", "admin", "/api/v1/usage", week | {"group_by": "reason"}
    yield "usage of a week, a member's by day", "member-of-tenant-00", "/api/v1/usage", week | {"group_by": "day"}
    for minutes, name in ((5, "5 min"), (15, "15 min"), (60, "1 h"), (360, "6 h"), (1440, "24 h"), (10_080, "7 days")):
        yield f"overview: {name}", "admin", "/api/v1/live/history", {"pool": "llama", "minutes": minutes}
    yield (
        "overview: an hour of three days ago",
        "admin",
        "/api/v1/live/history",
        {"pool": "llama", "minutes": 60, "until": (now - timedelta(days=3)).timestamp()},
    )


def returned(body: dict[str, Any]) -> int:
    return len(next(body[name] for name in ("results", "rows", "frames", "groups", "requests") if name in body))


def measure(asked: Iterable[Question], repeats: int, only: str) -> int:
    """Prints the table; how many lines miss the target."""
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.test import Client

    settings.ALLOWED_HOSTS = ["*"]
    clients: dict[str, Client] = {}
    missed, medians = 0, []
    print("[ms] first / median / slowest")
    for name, who, path, parameters in asked:
        if not name.startswith(tuple(only.split(","))):
            continue
        if who not in clients:
            clients[who] = Client()
            clients[who].force_login(get_user_model().objects.get(username=who))
        times = []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            answer = clients[who].get(path, parameters)
            times.append((time.perf_counter() - begin) * 1000)
            if answer.status_code != 200:
                raise SystemExit(f"{name}: {answer.status_code} {answer.content[:300]!r}")
        medians.append(statistics.median(times[1:]))
        slow = medians[-1] > TARGET_MS
        missed += slow
        body = json.loads(answer.content)
        found, size = returned(body), len(answer.content) / 1024
        ended = f"   back to {body['searched_to']}" if body.get("searched_to") else ""
        print(
            f"{'SLOW ' if slow else '     '}{name:<55}{times[0]:8.0f}{medians[-1]:8.0f}"
            f"{max(times[1:]):8.0f}   {found:6d} rows {size:7.0f} KiB{ended}",
            flush=True,
        )
    print(f"{missed} of {len(medians)} above {TARGET_MS:.0f} ms; the median line {statistics.median(medians):.0f} ms")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="Lines that begin so; several by comma.")
    chosen = parser.parse_args()
    with filled_ledger(chosen.rows):
        print(f"{chosen.rows:,} requests")
        measure(questions(chosen.rows, datetime.now(UTC)), chosen.repeats, chosen.only)


if __name__ == "__main__":
    main()
