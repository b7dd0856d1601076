"""An experiment: which tenants share the pool, what they send and when, what breaks, and the catalog for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.experiments.clients import Crowd, Sent
from controlplane.experiments.samples import Sample

PRESET = "qwen3-8b-gb10"
SLOTS = 16
SERVICE_S = 4.4  # 64 tokens in, 64 out, at 16 sequences: 64 steps of 66.7 ms and the prompt's share
RANKS = {"dedicated": 0, "guaranteed": 0, "elastic": 1, "spot": 2, "preemptible": 3}
OPEN_SLOTS = 10_000  # a replica's slots in the catalog where admission is off: its own queue takes everything


@dataclass(frozen=True, slots=True)
class Member:
    """An entitlement of an experiment, with its clients' demand. Targets in seconds; 0: none of that kind."""

    name: str
    service_class: str
    concurrency: int
    crowd: Crowd
    ttft_s: float = 0.0
    ttlt_s: float = 0.0
    over_limit: str = "refuse"


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Outage:
    """Replicas are killed, stay down, and return."""

    engines: tuple[str, ...]
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """``findings`` makes figures of its own from what clients and the feed saw."""

    name: str
    title: str
    replicas: int
    members: tuple[Member, ...]
    phases: tuple[Phase, ...]
    slo_mean_s: float = 0.0  # of eq. 1; 0: the mean over bound entitlements
    coefficients: tuple[tuple[str, float], ...] = ()
    headroom_slots: int | None = 0  # None: automatic
    outage: Outage | None = None
    slots: int = SLOTS  # of all replicas
    policy: str = "unified"
    findings: Callable[[Experiment, Sequence[Sent], Sequence[Sample]], Mapping[str, Any]] | None = None

    @property
    def length_s(self) -> float:
        return self.phases[-1].ends_s

    def crowds(self, *, admission: bool) -> tuple[Crowd, ...]:
        """The clients. Without admission control they send at their own pace, since nobody tells them to come back
        later."""
        return tuple(m.crowd if admission else replace(m.crowd, open_loop=True) for m in self.members)


def catalog_of(experiment: Experiment, pool: str, *, admission: bool) -> list[dict[str, Any]]:
    """The manifest objects of an experiment. Without admission control everything is let through to the engines."""
    spec: dict[str, Any] = {
        "policy": {"name": experiment.policy, "params": {}},
    }
    if not admission:
        spec["limits"] = {"headroomSlots": 0}
    elif experiment.headroom_slots is not None:
        spec["limits"] = {"headroomSlots": experiment.headroom_slots}
    if experiment.slo_mean_s:
        spec["sloMeanSeconds"] = experiment.slo_mean_s
    if experiment.coefficients:
        spec["coefficients"] = dict(experiment.coefficients)
    items: list[dict[str, Any]] = [_object("TokenPool", pool, spec)]
    for name in ("acme", "globex", "initech"):  # the demo's own tenants stand aside
        items.append(_object("TokenEntitlement", f"{name}-{pool}", {"validUntil": "2000-01-01T00:00:00Z"}))
    for member in experiment.members:
        name = member.name
        slo, tier = f"{name}-slo", f"{name}-tier"
        promise = {"ttftSeconds": member.ttft_s, "tbtSeconds": 0.2}
        if member.ttlt_s:
            promise = {"ttltSeconds": member.ttlt_s}
        items.append(_object("Slo", slo, promise))
        items.append(_object("Tier", tier, {
            "serviceClass": member.service_class if admission else "spot", "rank": RANKS[member.service_class],
            "weight": 1, "slo": slo, "overLimit": member.over_limit, "queueLimit": 1000, "maxWaitSeconds": 60,
        }))  # fmt: skip
        items.append(_object("Tenant", name, {"description": experiment.title}))
        items.append(_object("TokenEntitlement", name, {
            "tenantRef": {"name": name}, "poolRef": {"name": pool}, "qos": {"tier": tier},
            "resources": {"concurrency": member.concurrency if admission else 1000},
        }))  # fmt: skip
    return items


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}
