"""Experiments of our own: a noisy neighbour, half of the replicas lost, lent slots taken back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from controlplane.experiments.clients import Crowd, Sent
from controlplane.experiments.plan import SERVICE_S, Experiment, Member, Outage, Phase
from controlplane.experiments.samples import Sample
from scheduling.core.percentiles import nearest_rank

# --- noisy neighbour

QUIET, NOISY_SLOTS = 20, 24
NOISE_PER_S = 100 * NOISY_SLOTS / (QUIET + 1) / SERVICE_S  # a hundred times what an equal share of the pool can serve


def noise(experiment: Experiment, rows: Sequence[Sent], samples: Sequence[Sample]) -> Mapping[str, Any]:
    """What the quiet tenants noticed: p95 of their waits and of their times to first token, alone and beside it."""
    figures: dict[str, Any] = {}
    for phase in experiment.phases:
        quiet = _sent_in(rows, phase, "quiet-")
        waits = sorted(row.queue_s for row in quiet if row.queue_s is not None)
        first = sorted(row.ttft_s for row in quiet if row.ttft_s is not None)
        figures[phase.name] = {
            "sent": len(quiet),
            "refused": sum(row.status in (429, 503) for row in quiet),
            "waited": sum(wait > 0 for wait in waits),
            **{f"queue_p{p}_s": nearest_rank(waits, p / 100) for p in (50, 95, 99)},
            **{f"ttft_p{p}_s": nearest_rank(first, p / 100) for p in (50, 95, 99)},
        }
    alone, noisy = (figures[phase.name] for phase in (experiment.phases[0], experiment.phases[-1]))
    for figure in ("queue_p95_s", "ttft_p95_s"):
        ratio = None
        if noisy[figure] is not None and alone[figure] is not None:
            equal = noisy[figure] <= alone[figure]
            ratio = noisy[figure] / alone[figure] if alone[figure] else 1.0 if equal else math.inf
        figures[f"{figure.removesuffix('_s')}_ratio"] = ratio if ratio != math.inf else "inf"
    return figures


def _quiet(number: int) -> Member:
    name = f"quiet-{number:02d}"
    crowd = Crowd(name, 1, 16.0, 0, 160, 64, (64, 64), even=False)
    return Member(name, "guaranteed", 1, crowd, ttft_s=1.2)


NOISY: Final = Experiment(
    "noisy-neighbour",
    "A spot tenant at 100 times its share beside 20 quiet guaranteed tenants, on 24 slots",
    replicas=1,
    members=(
        *(_quiet(number) for number in range(1, QUIET + 1)),
        Member(
            "spot-noisy",
            "spot",
            NOISY_SLOTS,
            Crowd("spot-noisy", 26, 26 / NOISE_PER_S, 75, 160, 64, (64, 64), open_loop=True),
            ttft_s=30.0,
        ),
    ),
    phases=(Phase("alone", 5, 75), Phase("noise begins", 75, 85), Phase("noisy", 85, 160)),
    headroom_slots=4,
    slots=NOISY_SLOTS,
    findings=noise,
)

NOISY_PROMPTS: Final = replace(
    NOISY,
    name="noisy-prompts",
    title="The same with prompts of 1,000 tokens on two replicas of a new pool, from the noise's first moment",
    replicas=2,
    members=tuple(replace(m, crowd=replace(m.crowd, input_tokens=1000)) for m in NOISY.members),
    phases=(Phase("alone", 5, 75), Phase("noisy", 75, 160)),
    headroom_slots=None,
)


# --- half the replicas lost


def herd(experiment: Experiment, rows: Sequence[Sent], samples: Sequence[Sample]) -> Mapping[str, Any]:
    """How refused clients come back: what they were told, when they came, and how thick around the recovery."""
    outage = experiment.outage
    assert outage is not None
    waits = sorted(row.retry_s for row in rows if row.retry_s is not None and _during(row, outage))
    per_second = Counter(math.floor(row.sent_s) for row in rows)
    last = [per_second[s] for s in range(int(outage.ends_s) - 30, int(outage.ends_s))]
    after = [per_second[s] for s in range(int(outage.ends_s), int(outage.ends_s) + 30)]
    widths = Counter(math.floor(wait / 0.05) for wait in waits)
    guaranteed = [m.name for m in experiment.members if m.service_class == "guaranteed"]
    refused = Counter(row.reason for row in rows if row.entitlement in guaranteed and row.status in (429, 503))
    return {
        "guaranteed_refused": dict(refused),
        "retry_after_s": {f"p{p}": nearest_rank(waits, p / 100) for p in (1, 5, 50, 95, 99)},
        "retry_after_histogram": {f"{n * 0.05:.2f}": widths[n] for n in sorted(widths)},
        "sent_per_s_outage_mean": math.fsum(last) / len(last),
        "sent_per_s_outage_max": max(last),
        "sent_per_s_after_max": max(after),
        "ready_again_s": next(
            (
                s.at_s - outage.ends_s
                for s in samples
                if s.at_s > outage.ends_s and s.slots == max(x.slots for x in samples)
            ),
            None,
        ),
        "engine_waiting_after_max": max((s.engine_waiting for s in samples if s.at_s > outage.ends_s), default=0),
    }


def _during(row: Sent, outage: Outage) -> bool:
    return outage.starts_s <= row.sent_s < outage.ends_s


OUTAGE: Final = Experiment(
    "outage",
    "Two of four replicas are killed for 90 s: guaranteed, two elastic and a spot tenant on 8 of 16 slots",
    replicas=4,
    members=(
        Member("guaranteed-a", "guaranteed", 3, Crowd("guaranteed-a", 3, SERVICE_S, 0, 180, 64, (64, 64)), ttft_s=1.2),
        Member("elastic-fast", "elastic", 5, Crowd("elastic-fast", 5, 2.7, 0, 180, 64, (32, 48)), ttft_s=0.5),
        Member("elastic-slow", "elastic", 5, Crowd("elastic-slow", 5, 3.5, 0, 180, 64, (32, 72)), ttlt_s=30.0),
        Member("spot-herd", "spot", 16, Crowd("spot-herd", 40, 4.0, 0, 180, 64, (32, 64)), ttft_s=30.0),
    ),
    phases=(Phase("1 before", 0, 30), Phase("2 outage", 30, 120), Phase("3 recovery", 120, 180)),
    slo_mean_s=15.25,
    coefficients=(("burst", 0.0),),
    outage=Outage(("engine-2", "engine-3"), 30, 120),
    findings=herd,
)


# --- slots taken back


def taken_back(experiment: Experiment, rows: Sequence[Sent], samples: Sequence[Sample]) -> Mapping[str, Any]:
    """How soon evicted streams had ended, and whether anybody got a slot before the owner that waited for it."""
    evicting, lent = experiment.phases[0], experiment.phases[-1]
    owners = [row for row in rows if row.entitlement == "dedicated-owner" and row.status == 200]
    evicted = [row.done_s for row in rows if row.reason == "evicted" and row.done_s < evicting.ends_s]
    arrivals = sorted(row.sent_s for row in owners if row.sent_s < evicting.ends_s)
    ends = [done - max((at for at in arrivals if at <= done), default=math.nan) for done in evicted]
    first = sorted(row.ttft_s for row in owners if row.ttft_s is not None and row.sent_s < evicting.ends_s)
    waits = sorted(row.queue_s for row in owners if row.queue_s is not None and row.sent_s >= lent.starts_s)
    return {
        "evicted": len(evicted),
        "evicted_ends_max_s": max(ends, default=None),
        "owner_ttft_max_s": first[-1] if first else None,
        "owner_requests_while_lent": len(waits),
        "owner_wait_max_s": waits[-1] if waits else None,
        "overtaken_max": max((_overtakers(row, rows) for row in owners if row.sent_s >= lent.starts_s), default=None),
    }


SETTLED_S = 0.05  # a slot that was given in the moment the owner asked was given before


def _overtakers(owner: Sent, rows: Sequence[Sent]) -> int:
    """Others who waited and got their slot while the owner waited for one."""
    begin, end = owner.sent_s + SETTLED_S, owner.sent_s + (owner.queue_s or 0.0) - SETTLED_S
    others = (row for row in rows if row.entitlement != owner.entitlement and row.queue_s and row.ttft_s is not None)
    return sum(begin < row.sent_s + row.queue_s < end for row in others)  # type: ignore[operator]


EVICTION: Final = Experiment(
    "eviction",
    "A dedicated owner of 4 slots comes back: to preemptible requests that have them, then to elastic ones",
    replicas=1,
    members=(
        Member("dedicated-owner", "dedicated", 4, Crowd("dedicated-owner", 4, 9.0, 8, 90, 64, (48, 48)), ttft_s=1.2),
        Member("preemptible-low", "preemptible", 16, Crowd("preemptible-low", 16, 1.0, 0, 40, 64, (96, 128)),
               ttlt_s=60.0),
        Member("elastic-lent", "elastic", 8, Crowd("elastic-lent", 30, 1.0, 40, 90, 64, (48, 96)), ttlt_s=60.0,
               over_limit="wait"),
    ),
    phases=(Phase("preemptible", 5, 40), Phase("change", 40, 50), Phase("lent", 50, 90)),
    findings=taken_back,
)  # fmt: skip


def _sent_in(rows: Sequence[Sent], phase: Phase, prefix: str) -> list[Sent]:
    return [r for r in rows if r.entitlement.startswith(prefix) and phase.starts_s <= r.sent_s < phase.ends_s]
