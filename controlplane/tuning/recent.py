"""What a pool has been asked for lately and in the long run: the ledger as a recording, and a sample that outlives it.

The rolling window is the ledger itself, as far back as its retention goes, and what is in flight. The long-term sample
is a reservoir (Vitter's algorithm R) of ``SIZE`` requests that an engine worked on; from ``SIZE * MEMORY`` requests on,
newer ones replace older ones at a constant rate, so that it stands for about the last ``SIZE * MEMORY`` requests. Which
request gets in follows from the pool's name and its number, so looking twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TextIO

from django.db import transaction
from django.utils import timezone

from controlplane.tuning.in_flight import InFlight, in_flight
from scheduling.core.types import ServiceClass
from scheduling.simulator.recording import Recorded, Recording, write_recording
from scheduling.simulator.workload import Tier as LabTier
from telemetry.models import LedgerEntry, Sampled, SampleMark
from tenants.models import Pool, Tier
from tenants.rows import slo_spec

SIZE = 10_000  # requests of a pool's sample
MEMORY = 20  # times its size is what it remembers
BATCH = 20_000  # ledger rows looked at in one go
MOST_RECORDED = 200_000  # requests of one recording

_COLUMNS = (
    "received_at", "input_tokens", "output_tokens", "tenant", "tier", "entitlement", "category", "output_tokens_est",
    "output_bound", "queued_at", "granted_at", "first_token_at", "done_at", "outcome", "reason", "backend",
    "input_tokens_est",
)  # fmt: skip


def record(
    pool: str,
    since: datetime,
    until: datetime | None = None,
    *,
    most: int = MOST_RECORDED,
    ended_by: datetime | None = None,
    unended: Sequence[InFlight] | None = None,
) -> Recording:
    """What was received from ``since`` on, in order of arrival; the latest ``most`` of it.

    ``unended``: what has no ledger record and counts all the same, in place of what is in flight now (nothing, where
    Redis does not say). ``ended_by``: only what had ended by then, so that asking again later, with the same
    ``unended``, finds the same."""
    if unended is None:
        unended = in_flight(pool, timezone.now()) or ()  # before the ledger, in which it is when it ends meanwhile
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since)
    if until is not None:
        rows = rows.filter(received_at__lt=until)
    if ended_by is not None:
        rows = rows.filter(done_at__lte=ended_by)
    most = min(most, MOST_RECORDED)
    entries = list(rows.order_by("-received_at", "-id").values_list("request_id", *_COLUMNS)[:most])
    ended = {request_id for request_id, *_ in entries}
    moments = [(row[0], _recorded(tuple(row), row[0])) for _, *row in reversed(entries)]
    moments += [
        (one.received_at, one.row)
        for one in unended
        if one.id not in ended and since <= one.received_at and (until is None or one.received_at < until)
    ]
    moments = sorted(moments, key=lambda moment: moment[0])[-most:]
    start = moments[0][0] if moments else since
    recorded = tuple(replace(row, arrival_s=_after(start, at) or 0.0) for at, row in moments)
    return Recording(pool, tiers_of({row.tier for row in recorded}), recorded)


def export(pool: str, minutes: float, out: TextIO) -> int:
    """Writes the last ``minutes`` as a recording; how many requests."""
    recording = record(pool, timezone.now() - timedelta(minutes=minutes))
    if recording.rows:
        write_recording(recording, out)
    return len(recording.rows)


def export_sample(pool: str, out: TextIO) -> int:
    """Writes the long-term sample as a recording; how many requests. One of many that came: its rate is not theirs."""
    rows = list(Sampled.objects.filter(pool=pool).order_by("at"))
    recorded = tuple(
        Recorded(
            _after(rows[0].at, row.at) or 0.0, row.input_tokens, row.output_tokens, row.tenant, row.tier,
            category=row.category, output_bound=row.output_tokens, wait_s=row.wait_s, ttft_s=row.ttft_s,
            ttlt_s=row.ttlt_s,
        )
        for row in rows
    )  # fmt: skip
    if recorded:
        write_recording(Recording(pool, tiers_of({row.tier for row in recorded}), recorded), out)
    return len(recorded)


def tiers_of(names: set[str]) -> tuple[LabTier, ...]:
    """The contracts of these names as a lab knows them. One that was deleted has promised nothing."""
    tiers = {
        tier.slug: LabTier(
            tier.slug, slo_spec(tier.slo), tier.rank, tier.weight, service_class=ServiceClass(tier.service_class)
        )
        for tier in Tier.objects.filter(slug__in=names).select_related("slo")
    }
    return tuple(tiers.get(name) or LabTier(name) for name in sorted(names))


def _recorded(row: tuple[Any, ...], start: datetime) -> Recorded:
    (at, given, out, tenant, tier, entitlement, category, expected, bound, _, granted, first, done, *ended, guess) = row
    return Recorded(
        _after(start, at) or 0.0, given or guess, out, tenant, tier, entitlement, category, expected, bound,
        _after(at, granted), _after(at, first), _after(at, done) or 0.0, *ended,
    )  # fmt: skip


def _after(start: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else max(0.0, (moment - start).total_seconds())


def sample() -> int:
    """Brings the long-term samples of all pools up to date; how many ledger rows were looked at."""
    return sum(_sample(pool) for pool in Pool.objects.values_list("slug", flat=True))


def lengths(pool: str) -> list[int]:
    """Prompt lengths [tokens] of the long-term sample, oldest first."""
    return list(Sampled.objects.filter(pool=pool).order_by("at").values_list("input_tokens", flat=True))


def recent_lengths(
    pool: str, since: datetime, *, until: datetime | None = None, most: int = MOST_RECORDED
) -> list[int]:
    """Prompt lengths [tokens] of what an engine worked on lately, the latest ``most``."""
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since, granted_at__isnull=False)
    if until is not None:
        rows = rows.filter(received_at__lt=until)
    return list(rows.order_by("-received_at").values_list("input_tokens", flat=True)[:most])


def _sample(pool: str) -> int:
    SampleMark.objects.get_or_create(pool=pool)
    with transaction.atomic():
        mark = SampleMark.objects.select_for_update().get(pool=pool)
        rows = list(
            LedgerEntry.objects.filter(pool=pool, id__gt=mark.last_id)
            .order_by("id")
            .values_list("id", "granted_at", *_COLUMNS)[:BATCH]
        )
        if not rows:
            return 0
        chosen = dict(_chosen(pool, mark, rows))
        Sampled.objects.bulk_create(
            chosen.values(),
            update_conflicts=True,
            unique_fields=["pool", "place"],
            update_fields=[f.name for f in Sampled._meta.concrete_fields if f.name not in ("id", "pool", "place")],
            batch_size=500,
        )
        mark.last_id = rows[-1][0]
        mark.save(update_fields=["last_id", "seen"])
    return len(rows)


def _chosen(pool: str, mark: SampleMark, rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, Sampled]]:
    """Where in the sample which request goes; a later one may take the same place."""
    for _, granted, *columns in rows:
        if granted is None:
            continue
        mark.seen += 1
        draw = Random(f"{pool} {mark.seen}").randrange(min(mark.seen, SIZE * MEMORY))
        place = mark.seen - 1 if mark.seen <= SIZE else draw
        if place < SIZE:
            row = _recorded(tuple(columns), columns[0])
            yield place, Sampled(
                pool=pool, place=place, at=columns[0], tenant=row.tenant, tier=row.tier, category=row.category,
                input_tokens=row.input_tokens, output_tokens=row.output_tokens, wait_s=row.wait_s, ttft_s=row.ttft_s,
                ttlt_s=row.ttlt_s,
            )  # fmt: skip
