"""What each question of the explorer costs on a ledger of a million requests, on SQLite and on PostgreSQL.

    python -m tests.bench.bench_explorer [--database sqlite|postgresql] [--rows 1000000] [--repeats 7] [--only explore]

Facets, heat map, lists in each order, percentiles by each group, filters by tenant, key, user, time and duration, alone
and together, over an hour, a day and the whole week. Asked through the whole of Django (session, rights, serializer,
JSON), in the process, without a network. With ``--folder`` the filled SQLite file is kept there and used again.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.bench.bench_pages import Question, measure, people
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

DAYS = 7
TENANTS, KEYS, USERS, BACKENDS = 40, 4, 2000, 8
AT_ONCE = 20_000
TIERS = {"premium": (0.02, 0.3), "standard": (0.2, 0.6), "batch": (5.0, 1.0)}  # median wait [s], median of the prefill
ENDS = (
    [("completed", "stop", 200)] * 50 + [("completed", "length", 200)] * 32 + [("refused", "token_budget", 429)] * 7
    + [("refused", "concurrency", 429)] * 5 + [("failed", "backend_lost", 502)] * 2
    + [("cancelled", "client_left", 499)] * 4
)  # fmt: skip


def rows_of(count: int, begin_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    """Requests over the time, the newest last: a quarter of one tenant's, another with one in ten thousand."""
    draw = random.Random(17)
    step_s = (end_s - begin_s) / count
    for number in range(count):
        kind = draw.random()
        tenant = "rare" if kind < 0.0001 else "tenant-00" if kind < 0.25 else f"tenant-{draw.randrange(1, TENANTS):02d}"
        tier = draw.choice(list(TIERS))
        outcome, reason, status = draw.choice(ENDS)
        wait, prefill = TIERS[tier]
        received = begin_s + number * step_s
        queued = received + 0.003 if draw.random() < 0.6 else None
        granted = first = None
        done = received + 0.005
        if outcome != "refused":
            granted = (queued or received) + (0.0 if queued is None else draw.lognormvariate(0.0, 1.2) * wait)
            first = granted + draw.lognormvariate(0.0, 0.7) * prefill
            done = first + draw.lognormvariate(1.0, 0.8)
        pool = "mistral" if number % 100 == 0 else "llama"
        yield {
            "request_id": f"req_{1764000000000 + number:012x}{draw.getrandbits(48):012x}", "pool": pool,
            "model": "mistral-7b" if pool == "mistral" else "llama-3-8b", "tenant": tenant, "tier": tier,
            "entitlement": f"{tenant}-{tier}", "key_id": f"{tenant}-key{draw.randrange(KEYS)}", "gateway": "gw-1",
            "outcome": outcome, "reason": reason, "status": status, "streamed": True, "attempts": 1,
            "backend": "" if granted is None else f"{pool}-{draw.randrange(BACKENDS)}", "policy": "unified@3",
            "why": "rank 0 before 3 waiting", "input_tokens_est": 400, "output_tokens_est": 200.0, "output_bound": 512,
            "input_tokens": draw.randrange(20, 4000), "output_tokens": 0 if granted is None else draw.randrange(1, 512),
            "received_at": received, "queued_at": queued, "granted_at": granted, "first_token_at": first,
            "done_at": done, "ttft_slo_s": 1.0, "tbt_slo_s": 0.1, "ttlt_slo_s": None,
            "slo_met": None if first is None else first - received <= 1.0, "category": "chat",
            "estimate_source": "history", "output_tokens_p90": 400.0, "output_rank": 0.5,
            "user": f"user-{int(USERS * draw.random() ** 2)}" if draw.random() < 0.5 else "", "instead_of": "",
            "instead_why": "", "admission": '{"concurrency": [3, 40], "tokens": [90000, 120000], "weight": 61.2}',
            "cached_tokens": 0, "project": "",
        }  # fmt: skip


def fill(count: int, now_s: float) -> None:
    """Writes the rows as fast as the database takes them; both keep moments as Django does."""
    from django.db import connection, transaction

    from telemetry.models import LedgerEntry

    fields = [field for field in LedgerEntry._meta.concrete_fields if not field.primary_key]
    moments = {field.name for field in fields if field.name.endswith("_at")}
    columns = ", ".join(f'"{field.column}"' for field in fields)
    table = LedgerEntry._meta.db_table
    sqlite = connection.vendor == "sqlite"

    def value(row: dict[str, Any], name: str) -> Any:
        found = row[name]
        if name not in moments or found is None:
            return found
        return str(
            datetime.fromtimestamp(found, UTC).replace(tzinfo=None) if sqlite else datetime.fromtimestamp(found, UTC)
        )

    lines = ([value(row, field.name) for field in fields] for row in rows_of(count, now_s - DAYS * 86_400, now_s))
    connection.ensure_connection()
    with transaction.atomic(), connection.cursor() as cursor:
        if sqlite:
            places = ", ".join(["?"] * len(fields))
            assert connection.connection is not None
            connection.connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", lines)
        else:
            with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for line in lines:
                    copy.write_row(line)


@contextmanager
def filled_ledger(database: str, rows: int, folder: Path) -> Iterator[float]:
    """Django on a database with so many requests of the last days; when the last of them came."""
    with ExitStack() as stack:
        redis = RedisServer()
        redis.start()
        stack.callback(redis.stop)
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "QUARTERMASTER_HOME": str(folder),
            "QUARTERMASTER_REDIS_URL": redis.url,
            "QUARTERMASTER_SECRET_KEY": secrets.token_urlsafe(48),
        }
        if database == "postgresql":
            os.environ["QUARTERMASTER_DATABASE_URL"] = stack.enter_context(postgresql(folder))
        else:
            os.environ.pop("QUARTERMASTER_DATABASE_URL", None)
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection, connections

        from telemetry.models import LedgerEntry

        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        if LedgerEntry.objects.count() != rows:
            LedgerEntry.objects.all().delete()
            begin = time.perf_counter()
            fill(rows, time.time())
            if not _has_people():
                people()
            print(f"filled in {time.perf_counter() - begin:.0f} s", flush=True)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE" if database == "sqlite" else "VACUUM ANALYZE")
        newest = LedgerEntry.objects.order_by("-received_at").values_list("received_at", flat=True).first()
        assert newest is not None
        yield newest.timestamp()


def _has_people() -> bool:
    from django.contrib.auth import get_user_model

    return bool(get_user_model().objects.filter(username="admin").exists())


SPANS = {"an hour": timedelta(hours=1), "a day": timedelta(days=1), "the week": timedelta(days=DAYS)}
FILTERS: dict[str, dict[str, str]] = {
    "nothing": {},
    "the largest tenant": {"tenant": "tenant-00"},
    "a tenant": {"tenant": "tenant-07"},
    "a rare tenant": {"tenant": "rare"},
    "a pool": {"pool": "llama"},
    "a key": {"key_id": "tenant-07-key1"},
    "no such key": {"key_id": "none"},
    "a user": {"user": "user-3"},
    "a rare user": {"user": "user-1999"},
    "no such user": {"user": "none"},
    "a backend": {"backend": "llama-3"},
    "a model": {"model": "llama-3-8b"},
    "no such model": {"model": "none"},
    "a tier": {"tier": "premium"},
    "failed": {"outcome": "failed"},
    "refused": {"outcome": "refused"},
    "completed": {"outcome": "completed"},
    "a rare reason (none)": {"reason": "operator"},
    "refused for concurrency": {"reason": "concurrency"},
    "SLO missed": {"slo_met": "false"},
    "waited over 8 s": {"waited_over": "8"},
    "waited over 10 min (none)": {"waited_over": "600"},
    "TTFT over 2 s": {"ttft_over": "2"},
    "total over 3 s of a tenant": {"total_over": "3", "tenant": "tenant-00"},
    "waited over 8 s, a tenant's premium": {"waited_over": "8", "tenant": "tenant-07", "tier": "premium"},
    "a user of a tenant": {"user": "user-3", "tenant": "tenant-07"},
}


def questions(now: datetime) -> Iterator[Question]:
    """Who asks what: a name for people, the user, the path, its parameters."""
    from telemetry.ledger.explore import GROUPS, ORDERS
    from telemetry.ledger.spans import SPANS as DURATIONS

    requests, explore = "/api/v1/requests", "/api/v1/requests/explore"
    until = {"to": (now + timedelta(seconds=1)).isoformat()}
    for what, given in FILTERS.items():
        yield f"list: {what}", "admin", requests, given
        yield f"explore: {what}", "admin", explore, given
        for span, length in SPANS.items():
            times = {"from": (now - length).isoformat()} | until
            yield f"explore: {what}, {span}", "admin", explore, given | times
    for group in GROUPS:
        yield f"percentiles: by {group}", "admin", explore, {"group_by": group, "sort": "waited_p95"}
    for what in ("a pool", "the largest tenant", "a key", "a user", "a backend", "a model"):
        for span, length in SPANS.items():
            times = {"from": (now - length).isoformat(), "over_time": "true"} | until
            yield f"object's charts: {what}, {span}", "admin", explore, FILTERS[what] | times
    for duration in DURATIONS:
        yield f"heat: {duration}", "admin", explore, {"heat": duration}
    for order in ORDERS:
        yield f"order: {order}", "admin", requests, {"order": order}
        yield f"order: {order}, a tenant's", "admin", requests, {"order": order, "tenant": "tenant-00"}
    for who in ("tenant-00", "rare"):
        yield f"list: of a member of {who}", f"member-of-{who}", requests, {}
        yield f"explore: of a member of {who}", f"member-of-{who}", explore, {}
        yield f"explore: of a member of {who}, waited over 8 s", f"member-of-{who}", explore, {"waited_over": "8"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="Lines that begin so; several by comma.")
    parser.add_argument("--folder", type=Path, help="Where the filled SQLite file is kept.")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qm-explorer-") as made:
        folder = chosen.folder or Path(made)
        with filled_ledger(chosen.database, chosen.rows, folder) as newest_s:
            asked = questions(datetime.fromtimestamp(newest_s, UTC))
            print(f"{chosen.rows:,} requests on {chosen.database}, load average {os.getloadavg()[0]:.1f}")
            measure(asked, chosen.repeats, chosen.only)


if __name__ == "__main__":
    main()
