"""What an experiment showed: figures per phase and entitlement, from its clients and from the live feed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from controlplane.experiments.clients import Sent
from controlplane.experiments.plan import Experiment, Phase
from controlplane.experiments.samples import Sample
from scheduling.core.percentiles import nearest_rank

LOW_PRIORITY = "low_priority"
SETTLED = 0.05  # a debt that no longer counts


def summary(experiment: Experiment, rows: Sequence[Sent], samples: Sequence[Sample]) -> dict[str, Any]:
    """The figures as JSON."""
    phases = [
        _line(phase, member.name, member.service_class, rows, samples)
        for phase in experiment.phases
        for member in experiment.members
        if member.crowd.starts_s < phase.ends_s and member.crowd.ends_s > phase.starts_s
    ]
    inside = [s for s in samples if s.at_s < experiment.length_s]
    # until the first answers are due the pool fills up
    steady = [s for s in inside if s.at_s >= experiment.members[0].crowd.period_s]
    used = [min(s.running, experiment.slots) / _serving(experiment, s) for s in steady]
    report = {
        "phases": phases,
        "pool": {
            "queue_max": max((s.waiting + s.engine_waiting for s in inside), default=0),
            "utilization": _mean(used),
        },
    }
    if experiment.findings is not None:
        report["findings"] = dict(experiment.findings(experiment, rows, inside))
    return report


def _serving(experiment: Experiment, sample: Sample) -> int:
    """The slots of the replicas that serve at that time."""
    outage = experiment.outage
    if outage is not None and outage.starts_s <= sample.at_s < outage.ends_s:
        return experiment.slots * (experiment.replicas - len(outage.engines)) // experiment.replicas
    return experiment.slots


def _line(
    phase: Phase, name: str, service_class: str, rows: Sequence[Sent], samples: Sequence[Sample]
) -> dict[str, Any]:
    sent = [row for row in rows if row.entitlement == name and phase.starts_s <= row.sent_s < phase.ends_s]
    refused = [row for row in sent if row.status in (429, 503)]
    seen = [s.entitlements[name] for s in samples if phase.starts_s <= s.at_s < phase.ends_s and name in s.entitlements]
    first = [row.ttft_s for row in sent if row.ttft_s is not None]
    waits = [row.queue_s for row in sent if row.queue_s is not None and row.status == 200]
    weights = [s["weight"] for s in seen if "weight" in s]
    owed = [
        s.at_s - phase.starts_s
        for s in samples
        if phase.starts_s <= s.at_s < phase.ends_s and s.entitlements.get(name, {}).get("debt", 0.0) >= SETTLED
    ]
    return {
        "phase": phase.name,
        "entitlement": name,
        "class": service_class,
        "sent": len(sent),
        "completed": sum(row.completed for row in sent),
        "refused": len(refused),
        "refused_low_priority": sum(row.reason == LOW_PRIORITY for row in refused),
        "ttft_p50_s": nearest_rank(first, 0.50),
        "ttft_p95_s": nearest_rank(first, 0.95),
        "ttft_p99_s": nearest_rank(first, 0.99),
        "queue_p95_s": nearest_rank(waits, 0.95),
        "slots_mean": _mean([s["running"] for s in seen if "running" in s]),
        "debt_settled_s": max(owed, default=0.0) if seen else None,
        "debt_peak": max((s["debt"] for s in seen if "debt" in s), default=None),
        "weight_min": min(weights, default=None),
        "weight_max": max(weights, default=None),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
