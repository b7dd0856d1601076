"""The ledger added up by the hour, so that usage and bills outlive its retention.

An hour is always added up **whole and anew** from the ledger and replaces what was stored: running it twice, or two of
it at once, changes nothing. Which hours have to be done again follows from the ledger's row numbers: those of rows
newer than the last look, and of the last few thousand before it, for transactions do not become visible in the order
of their numbers. The ledger forgets whole hours only, and never one that was not added up (``telemetry.tasks``).

Sums are made of figures that can be true (:data:`INPUT`, :data:`OUTPUT`): a row with an absurd one, which older
versions took over from engines, must not overflow the sum of everybody.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
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
SLOT_TIME = ExpressionWrapper(F("done_at") - F("granted_at"), output_field=DurationField())
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


def roll_up() -> int:
    """Brings the hours up to date; how many were looked at. An hour that cannot be added up does not keep the others
    from it; it is tried again, and until it succeeds nothing is deleted.

    Raises:
        DatabaseError: of the first hour that failed, after all others were done.
    """
    global _mended
    RollupMark.objects.get_or_create(pk=1)
    started = timezone.now()
    newest = LedgerEntry.objects.aggregate(newest=Max("id"))["newest"] or 0
    looked = RollupMark.objects.get(pk=1).last_id
    rows = LedgerEntry.objects.filter(id__gt=looked - OVERLAP, id__lte=newest)
    hours = list(rows.order_by().annotate(hour=TruncHour("received_at")).values_list("hour", flat=True).distinct())
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
    with transaction.atomic():
        mark = RollupMark.objects.select_for_update().get(pk=1)
        mark.last_id, mark.at = max(mark.last_id, newest), started
        mark.save(update_fields=["last_id", "at"])
    return len(hours)


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
            slot_time=Sum(SLOT_TIME, filter=HELD_A_SLOT),
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
        slot_time = group.pop("slot_time")
        group["slot_us"] = slot_time // timedelta(microseconds=1) if slot_time else 0
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
