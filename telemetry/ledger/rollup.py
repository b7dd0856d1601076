"""The ledger added up by the hour, so that usage and bills outlive its retention.

An hour is always added up **whole and anew** from the ledger and replaces what was stored: running it twice, or two of
it at once, changes nothing. Which hours have to be done again follows from the ledger's row numbers: those of rows
newer than the last look, and of the last few thousand before it, for transactions do not become visible in the order
of their numbers. The ledger forgets whole hours only, and never one that was not added up (``telemetry.tasks``).

The hour that runs is added up every ten minutes, and once more when it is over: each minute anew, a row would be read
thirty times. Whoever asks for it asks the ledger (:func:`rolled_until`).

Sums are made of figures that can be true (:data:`INPUT`, :data:`OUTPUT`): a row with an absurd one, which older
versions took over from engines, must not overflow the sum of everybody.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    F,
    Func,
    Max,
    Q,
    Sum,
    Value,
    When,
)
from django.db.models.functions import TruncHour
from django.utils import timezone

from scheduling.core.ledger.record import MAX_TOKENS
from scheduling.core.ledger.slo import TURNED_AWAY as TURNED_AWAY_REASONS
from scheduling.core.outcomes import Reason
from telemetry.models import LedgerEntry, RollupMark, UsageHour

log = logging.getLogger(__name__)

OVERLAP = 10_000  # ledger rows that are looked at again
RUNNING_EVERY_S = 600  # in which the hour that runs is added up
ROWS_AT_ONCE = 200  # of an hour
KEY = ("pool", "model", "tenant", "tier", "entitlement", "key_id")
FIGURES = (
    "requests", "completed", "refused", "failed", "cancelled", "input_tokens", "output_tokens", "slot_ms", "slo_met",
    "slo_total", "slo_turned_away", "cached_tokens", "slot_us", "slo_retries", "slo_retries_met",
    "tokens_unknown",
)  # fmt: skip
_COMPARED = (*KEY, *FIGURES, "project")
RAN = ~Q(outcome="refused")
ENDS = {"requests": Count("id")} | {
    name: Count("id", filter=Q(outcome=name)) for name in ("completed", "refused", "failed", "cancelled")
}


class _SlotUs(Func):
    """How long a request held a slot [us], exactly, of two columns: counted by the database itself.

    Of two times of SQLite, Django makes a call of Python for each row, which was most of what adding up an hour cost.
    """

    output_field = BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        until, since = self._columns(compiler)
        return f"CAST(EXTRACT(EPOCH FROM ({until} - {since})) * 1000000 AS BIGINT)", []

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[str | int, ...]]:
        # Text: 2026-12-01 14:00:01.250000, without the fraction where there is none.
        until, since = self._columns(compiler)
        seconds = [f"STRFTIME('%%s', SUBSTR({time}, 1, 19))" for time in (until, since)]
        parts = [f"CAST(SUBSTR({time}, 21, 6) AS INTEGER)" for time in (until, since)]
        return f"(({' - '.join(seconds)}) * 1000000 + {' - '.join(parts)})", ()

    def _columns(self, compiler: Any) -> list[str]:
        return [compiler.compile(column)[0] for column in self.source_expressions]


class _Hour(TruncHour):
    """The hour of a column's time, UTC. Of SQLite's text it is the beginning: likewise no call of Python for a row."""

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[str | int, ...]]:
        sql, values = compiler.compile(self.lhs)
        return f"(SUBSTR({sql}, 1, 13) || ':00:00')", tuple(values)


SLOT_US = _SlotUs(F("done_at"), F("granted_at"))
HELD_A_SLOT = Q(granted_at__isnull=False, done_at__gte=F("granted_at"))  # a clock that was set back holds nothing
MAX_SHARE_OF_HOUR = 10**13  # of anything that an hour's row counts; a larger figure is no sum of requests
MOST_OF_HOUR = dict.fromkeys(FIGURES, MAX_SHARE_OF_HOUR) | {"slot_us": 1000 * MAX_SHARE_OF_HOUR}


def _within(name: str, most: int, instead: Case | Value) -> Case:
    """A column, or something else in its stead where its figure cannot be true."""
    true = {f"{name}__gte": 0, f"{name}__lte": most}
    return Case(When(**true, then=F(name)), default=instead, output_field=BigIntegerField())


_NOTHING = Value(0, output_field=BigIntegerField())
# of a ledger row: what was expected of a prompt and asked of an answer stand in for what cannot be true
INPUT = _within("input_tokens", MAX_TOKENS, _within("input_tokens_est", MAX_TOKENS, _NOTHING))
OUTPUT = _within("output_tokens", MAX_TOKENS, _within("output_bound", MAX_TOKENS, _NOTHING))
CACHED = _within("cached_tokens", MAX_TOKENS, _NOTHING)
# of an hour's row: nothing is known that could stand in; ``roll_up`` adds such an hour up anew where it can
OF_HOUR = {name: _within(name, MOST_OF_HOUR[name], _NOTHING) for name in FIGURES}
# Hours of releases that did not count them: every refusal counts. Too good a figure would be worse than a bad one.
OF_HOUR["slo_turned_away"] = Case(
    When(slo_turned_away=None, slo_total__gt=0, then=OF_HOUR["refused"]),
    default=OF_HOUR["slo_turned_away"],
    output_field=BigIntegerField(),
)
# Hours of releases that did not have it: milliseconds
OF_HOUR["slot_us"] = Case(
    When(slot_us=None, then=OF_HOUR["slot_ms"] * Value(1000)),
    default=OF_HOUR["slot_us"],
    output_field=BigIntegerField(),
)
# a refusal that counts in attainment (scheduling/core/ledger/slo.py: turned_away)
TURNED_AWAY = Q(outcome="refused", reason__in=sorted(TURNED_AWAY_REASONS)) & (
    Q(ttft_slo_s=None, ttlt_slo_s__isnull=False)
    | Q(ttft_slo_s__isnull=False) & (Q(streamed=True) | Q(tbt_slo_s__isnull=False))
)
RETRIES = Q(client_retry__gt=0) & (Q(slo_met__isnull=False) | TURNED_AWAY)  # of those that attainment counts
# Hours of releases that did not count retries, and had something to count
RETRIES_UNKNOWN = Q(slo_retries=None) & (Q(slo_total__gt=0) | Q(refused__gt=0))
# What ran, and nobody knows how many tokens it was answered; ``selectors.tokens_unknown`` says so of one request
TOKENS_UNKNOWN = Q(reason=Reason.GATEWAY_LOST, granted_at__isnull=False, output_tokens=0)
# Hours of releases that did not count these, and had something to count
TOKENS_UNCOUNTED = Q(tokens_unknown=None, failed__gt=0)
_ABSURD = Q(
    *[Q(**{f"{name}__lt": 0}) | Q(**{f"{name}__gt": MOST_OF_HOUR[name]}) for name in FIGURES[5:]], _connector=Q.OR
)
_mended = False  # absurd hours have been looked for since this process began
# The newest row, and the mark, of a look of this process that found nothing new and left nothing out.
_settled: tuple[int, datetime] | None = None


def roll_up() -> int:
    """Brings the hours up to date; how many were looked at. An hour that cannot be added up does not keep the others
    from it; it is tried again, and until it succeeds nothing is deleted.

    Raises:
        DatabaseError: of the first hour that failed, after all others were done.
    """
    global _mended, _settled
    RollupMark.objects.get_or_create(pk=1)
    started = timezone.now()
    newest = LedgerEntry.objects.aggregate(newest=Max("id"))["newest"] or 0
    before = RollupMark.objects.get(pk=1)
    settled = newest == before.last_id
    hours = set() if (newest, before.at) == _settled else _hours_of(before.last_id - OVERLAP, newest)
    if before.at is not None:
        running = floor_hour(started)
        if floor_hour(before.at) != running:
            hours.add(floor_hour(before.at))  # it ran, and may have been left out
        if running in hours and _turn(before.at) == _turn(started):
            hours.remove(running)
            settled = False
    absurd = [] if _mended else list(UsageHour.objects.filter(_ABSURD).values_list("hour", flat=True).distinct())
    failure: Exception | None = None
    for hour in sorted({*hours, *absurd}):
        try:
            sums = _added_up(hour)
            if changed := _changed(hour, sums):
                _write(hour, changed, sum(row.requests for row in sums))
        except (DatabaseError, OverflowError, ValueError) as error:
            log.exception("the hour from %s cannot be added up; the others are", hour)
            failure = failure or error
    if failure is not None:
        raise failure
    if absurd:
        left = UsageHour.objects.filter(_ABSURD).count()
        log.warning(
            "%d hours of usage had impossible figures and were added up again; %d rows that the ledger no longer knows "
            "count as nothing",
            len(absurd),
            left,
        )
    _mended = True
    _settled = (newest, started) if settled else None
    with transaction.atomic():
        mark = RollupMark.objects.select_for_update().get(pk=1)
        mark.last_id, mark.at = max(mark.last_id, newest), started
        mark.save(update_fields=["last_id", "at"])
    return len(hours)


def _hours_of(after: int, newest: int) -> set[datetime]:
    """Of the ledger's rows of these numbers. A quiet instance's last ones are of many hours."""
    rows = LedgerEntry.objects.filter(id__gt=after, id__lte=newest).order_by()
    return set(rows.annotate(hour=_Hour("received_at", tzinfo=UTC)).values_list("hour", flat=True).distinct())


def _turn(at: datetime) -> int:
    return int(at.timestamp() // RUNNING_EVERY_S)


def rolled_until() -> datetime | None:
    """Hours before this one are complete and need no ledger; None when nothing was added up yet.

    An hour is taken as complete when it had ended an hour before the last look: requests may take long, and their
    ledger entries may have waited for the database.
    """
    at = RollupMark.objects.filter(pk=1).values_list("at", flat=True).first()
    return None if at is None else floor_hour(at) - timedelta(hours=1)


def floor_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _added_up(hour: datetime) -> list[UsageHour]:
    """Outside any transaction: SQLite's would keep all others from writing for as long as it reads, hour after hour."""
    sums = (
        LedgerEntry.objects.filter(received_at__gte=hour, received_at__lt=hour + timedelta(hours=1))
        .order_by()
        .values(*KEY)
        .annotate(
            **ENDS,
            sum_input=Sum(INPUT, filter=RAN, default=0),
            sum_output=Sum(OUTPUT, filter=RAN, default=0),
            sum_cached=Sum(CACHED, filter=RAN, default=0),
            of_project=Max("project"),  # a key is of one project
            slot_us=Sum(SLOT_US, filter=HELD_A_SLOT, default=0),
            met=Count("id", filter=Q(slo_met=True)),
            slo_total=Count("id", filter=Q(slo_met__isnull=False)),
            slo_turned_away=Count("id", filter=TURNED_AWAY),
            slo_retries=Count("id", filter=RETRIES),
            slo_retries_met=Count("id", filter=RETRIES & Q(slo_met=True)),
            tokens_unknown=Count("id", filter=TOKENS_UNKNOWN),
        )
    )
    rows = []
    for group in sums:
        group["slot_us"] = int(group["slot_us"])  # PostgreSQL's sums are of type numeric
        group["slot_ms"] = round(group["slot_us"] / 1000)
        group["cached_tokens"], group["project"] = group.pop("sum_cached"), group.pop("of_project")
        group["input_tokens"], group["output_tokens"] = group.pop("sum_input"), group.pop("sum_output")
        group["slo_met"] = group.pop("met")
        rows.append(UsageHour(hour=hour, **group))
    return rows


def _changed(hour: datetime, rows: list[UsageHour]) -> list[UsageHour]:
    """Those that are not stored as they are: of the hours that are looked at each minute, most are over."""
    stored = set(UsageHour.objects.filter(hour=hour).values_list(*_COMPARED))
    return [row for row in rows if tuple([getattr(row, name) for name in _COMPARED]) not in stored]


def _write(hour: datetime, rows: list[UsageHour], requests: int) -> None:
    """``requests``: of the whole hour, with the rows that are stored already.

    Some at a time: this process gives way to all others, and while it writes to SQLite no other does.
    """
    for start in range(0, len(rows), ROWS_AT_ONCE):
        if not _write_some(hour, rows[start : start + ROWS_AT_ONCE], requests):
            return


@transaction.atomic
def _write_some(hour: datetime, rows: list[UsageHour], requests: int) -> bool:
    RollupMark.objects.select_for_update().get(pk=1)  # one at a time
    stored = UsageHour.objects.filter(hour=hour).aggregate(requests=Sum("requests", default=0))["requests"]
    if stored > requests:
        return False  # the ledger has forgotten part of this hour, or somebody has added up more of it meanwhile
    UsageHour.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["hour", *KEY], update_fields=[*FIGURES, "project"]
    )
    return True
