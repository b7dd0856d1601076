"""The two experiments of the token-pools paper (section 5), on a live instance.

One simulated replica set with 16 slots and the paper's speed (Qwen3-8B on GB10: 64 output tokens take 4.27 s at 16
sequences), clients over HTTP. Experiment 1: guaranteed tenants are protected from a spot tenant. Experiment 2: elastic
tenants with different SLOs share what is left of the pool during an outage, and debt makes up for it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.experiments.clients import Crowd

PRESET = "qwen3-8b-gb10"
SLOTS = 16
SERVICE_S = 4.4  # 64 tokens in, 64 out, at 16 sequences: 64 steps of 66.7 ms and the prompt's share
OPEN_SLOTS = 10_000  # a replica's slots in the books where admission is off: its own queue takes everything


@dataclass(frozen=True, slots=True)
class Member:
    """An entitlement of an experiment, with its clients' demand."""

    name: str
    service_class: str
    concurrency: int
    ttft_s: float
    crowd: Crowd
    tokens_per_s: float = 0.0  # its baseline lambda_e, in and out; 0: none


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Outage:
    """One replica stands still, then goes on."""

    engine: str
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    title: str
    replicas: int
    members: tuple[Member, ...]
    phases: tuple[Phase, ...]
    slo_mean_s: float = 0.0  # of eq. 1; 0: the mean over bound entitlements
    coefficients: tuple[tuple[str, float], ...] = ()
    outage: Outage | None = None

    @property
    def length_s(self) -> float:
        return self.phases[-1].ends_s

    def crowds(self, *, admission: bool) -> tuple[Crowd, ...]:
        """Without admission control nobody is told to come back: clients send on their pace, come what may."""
        return tuple(m.crowd if admission else replace(m.crowd, open_loop=True) for m in self.members)


def _member(
    name: str, service_class: str, concurrency: int, ttft_s: float, starts_s: float, ends_s: float, *,
    clients: int, period_s: float, output_tokens: tuple[int, int], tokens_per_s: float = 0.0,
) -> Member:  # fmt: skip
    crowd = Crowd(name, clients, period_s, starts_s, ends_s, 64, output_tokens)
    return Member(name, service_class, concurrency, ttft_s, crowd, tokens_per_s)


POOLS_1 = Experiment(
    "pools-1",
    "Cross-class protection (5.2): two guaranteed tenants and a spot tenant on 16 slots",
    replicas=1,
    members=(
        _member("guaranteed-a", "guaranteed", 6, 1.2, 0, 90, clients=6, period_s=SERVICE_S, output_tokens=(64, 64)),
        _member("guaranteed-c", "guaranteed", 6, 1.2, 30, 60, clients=6, period_s=SERVICE_S, output_tokens=(64, 64)),
        _member("spot-b", "spot", 10, 30.0, 0, 90, clients=10, period_s=SERVICE_S, output_tokens=(64, 64)),
    ),
    phases=(Phase("1", 0, 30), Phase("2 overload", 30, 60), Phase("3", 60, 90)),
)

# Baselines of 5 slots each are 5/16 of what the pool serves, prompts counted: 16 slots * (64 + mean output) / service.
POOLS_2 = Experiment(
    "pools-2",
    "SLO-aware fair share (5.3): elastic tenants through an outage that halves 16 slots, and a newcomer",
    replicas=2,
    members=(
        _member("elastic-copilot", "elastic", 5, 0.5, 0, 300,
                clients=6, period_s=2.7, output_tokens=(24, 56), tokens_per_s=180),
        _member("elastic-synth", "elastic", 5, 30.0, 0, 300,
                clients=7, period_s=4.4, output_tokens=(32, 96), tokens_per_s=145),
        _member("elastic-reports", "elastic", 5, 5.0, 210, 300,
                clients=5, period_s=4.4, output_tokens=(32, 96), tokens_per_s=145),
    ),
    phases=(
        Phase("1", 0, 30),
        Phase("2 outage", 30, 120),
        Phase("3 recovery", 120, 210),
        Phase("4 newcomer", 210, 300),
    ),
    slo_mean_s=15.25,  # the paper's: fixed, not taken anew when a tenant joins
    coefficients=(("burst", 0.0),),  # the weights it prints contain no burst factor
    outage=Outage("engine-1", 30, 120),
)  # fmt: skip

EXPERIMENTS: Mapping[str, Experiment] = {e.name: e for e in (POOLS_1, POOLS_2)}


def books(experiment: Experiment, pool: str, *, admission: bool) -> list[dict[str, Any]]:
    """The manifest objects of an experiment. Without admission control everything is let through to the engines."""
    spec: dict[str, Any] = {"policy": {"name": "priority", "params": {}}}
    if experiment.slo_mean_s:
        spec["sloMeanSeconds"] = experiment.slo_mean_s
    if experiment.coefficients:
        spec["coefficients"] = dict(experiment.coefficients)
    items: list[dict[str, Any]] = [_object("TokenPool", pool, spec)]
    for name in ("acme", "globex", "initech"):  # the demo's own tenants stand aside
        items.append(_object("TokenEntitlement", f"{name}-{pool}", {"validUntil": "2000-01-01T00:00:00Z"}))
    for rank, member in enumerate(experiment.members):
        name = member.name
        slo, tier = f"{name}-slo", f"{name}-tier"
        items.append(_object("Slo", slo, {"ttftSeconds": member.ttft_s, "tbtSeconds": 0.2}))
        items.append(_object("Tier", tier, {
            "serviceClass": member.service_class if admission else "spot", "rank": rank, "weight": 1, "slo": slo,
            "overLimit": "refuse", "queueLimit": 1000, "maxWaitSeconds": 60,
        }))  # fmt: skip
        items.append(_object("Tenant", name, {"description": experiment.title}))
        resources: dict[str, Any] = {"concurrency": member.concurrency if admission else 1000}
        if member.tokens_per_s and admission:
            resources |= {"tokensPerSecond": member.tokens_per_s, "burstTokens": 60 * member.tokens_per_s}
        items.append(_object("TokenEntitlement", name, {
            "tenantRef": {"name": name}, "poolRef": {"name": pool}, "qos": {"tier": tier}, "resources": resources,
        }))  # fmt: skip
    return items


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}
