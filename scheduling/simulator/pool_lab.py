"""Token pools' experiments in the lab: from a scenario's words to a pool on virtual time, and the figures of a run.

Figures of one phase and entitlement are ``<phase>.<entitlement>.<figure>``:

* ``sent completed`` (by arrival in the phase), ``refused refused_low_priority``, ``refused_within`` (for another reason
  than its own concurrency), ``refused_share`` [%, of attempts];
* ``lost`` (what clients gave up on: refused or cut off after the last retry), ``lost_share`` [%, of what they wanted];
* ``ttft_p50_s ttft_p99_s wait_p99_s e2e_p99_s`` of what was served, ``slots_mean``, ``slots_last`` (of its last half);
* ``debt_peak debt_last weight_min weight_max`` from the leader's ticks; ``settled_s``: until the debt was below 0.05
  and stayed there; ``regained_s``: until it first had 90 % of its slots again.

Without a phase they are over the whole run. ``<phase>.queue_max``, ``<phase>.utilization`` [%] and the same without a
phase are the pool's.

For drawings by the clock, in each of 48 equal windows: ``window`` [s], ``clock.queue.<k>``, ``clock.slots.<k>``,
``clock.running.<entitlement>.<k>``, ``clock.debt.<entitlement>.<k>``, ``clock.weight.<entitlement>.<k>``, and
``clock.e2e.<entitlement>.<k>`` [s], the longest of what arrived in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scheduling.core.admission import entitlement as standing
from scheduling.core.outcomes import Reason
from scheduling.core.percentiles import interpolated
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.types import (
    BackendSpec,
    Coefficients,
    EntitlementSpec,
    EntitlementState,
    PoolSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.pools import Attempt, Client, PoolModel, Service, Story
from scheduling.simulator.result import mean
from scheduling.simulator.timeline import WINDOWS

SETTLED = 0.05  # a debt that no longer counts
REGAINED = 0.9  # of an entitlement's slots
Phase = tuple[str, float, float]


def run_pool(
    config: EngineConfig, ordering: OrderingPolicy, workload: Mapping[str, Any], seed: int
) -> dict[str, float]:
    """One run's figures. ``config``: mode ``slots``; ``max_seqs`` slots. Raises KeyError, TypeError or ValueError for
    a setting that is missing or wrong."""
    story, phases, clients = play(config, ordering, workload, seed)
    figures: dict[str, float] = {}
    whole = ("", phases[0][1], phases[-1][2])
    for phase in (whole, *phases):
        name = f"{phase[0]}." if phase[0] else ""
        figures |= {f"{name}{key}": value for key, value in _of_pool(story, phase).items()}
        for client in clients:
            own = _of_entitlement(story, phase, client)
            figures |= {f"{name}{client.spec.id}.{key}": value for key, value in own.items()}
    return figures | _by_the_clock(story, clients, phases[-1][2])


def play(
    config: EngineConfig, ordering: OrderingPolicy, workload: Mapping[str, Any], seed: int
) -> tuple[Story, list[Phase], list[Client]]:
    """Runs a pool and returns what happened, with its phases and clients (for plots and tests)."""
    values = dict(workload)
    values.pop("kind", None)
    values.pop("tiers", None)
    if config.mode != "slots":
        raise ValueError("a pool needs an engine of mode 'slots'")
    starts = [(str(name), float(begin)) for name, begin in values.pop("phases")]
    end_s = float(values.pop("end_s"))
    phases = [(name, a, b) for (name, a), b in zip(starts, [*(begin for _, begin in starts[1:]), end_s], strict=True)]
    clients = [_client(raw, end_s) for raw in values.pop("clients")]
    replicas = int(values.pop("replicas", 1))
    pool = PoolSpec(
        id="pool",
        model="model",
        upstream_model="model",
        backends=tuple(
            BackendSpec(f"replica-{n + 1}", "pool", "", config.max_seqs // replicas, config.kv_tokens or 1 << 40)
            for n in range(replicas)
        ),
        coefficients=Coefficients(**values.pop("coefficients", {})),
        slo_mean_s=values.pop("slo_mean_s", None),
        headroom_slots=int(values.pop("headroom_slots", 0)),
    )
    model = PoolModel(
        pool,
        clients,
        Service(config.truth.a, config.truth.t0),
        ordering,
        capacity=[(float(when), int(slots)) for when, slots in values.pop("capacity", [])],
        admission=bool(values.pop("admission", True)),
        retry_s=values.pop("retry_s", None),
        seed=seed,
    )
    if values:
        raise ValueError(f"workload has unknown entries: {', '.join(sorted(values))}")
    return model.run(end_s), phases, clients


def _client(raw: Mapping[str, Any], end_s: float) -> Client:
    values = dict(raw)
    name, service_class = str(values.pop("entitlement")), ServiceClass(values.pop("class"))
    slots = int(values.pop("slots"))
    tier = TierSpec(
        name=name,
        service_class=service_class,
        rank=int(values.pop("rank", 0)),
        weight=1.0,
        slo=Slo(values.pop("ttft_s", None), values.pop("tbt_s", None), values.pop("ttlt_s", None)),
        max_wait_s=float(values.pop("max_wait_s", 30.0)),
    )
    low, high = values.pop("output")
    return Client(
        spec=EntitlementSpec(name, name, "pool", tier, EntitlementState.BOUND, 0.0, 0.0, 0, slots),
        begin_s=float(values.pop("begin_s", 0.0)),
        end_s=float(values.pop("end_s", end_s)),
        demand=float(values.pop("demand", slots)),
        even=bool(values.pop("even", True)),
        input_tokens=int(values.pop("input")),
        output_tokens=(int(low), int(high)),
        **values,
    )


def _of_pool(story: Story, phase: Phase) -> dict[str, float]:
    _, begin, end = phase
    looks = [look for look in story.looks if begin < look.at_s <= end]
    busy = sum(sum(look.running.values()) for look in looks)
    return {
        "queue_max": float(max((waiting for at, waiting in story.queue if begin < at <= end), default=0)),
        "utilization": 100 * busy / max(1, sum(look.slots for look in looks)),
    }


def _of_entitlement(story: Story, phase: Phase, client: Client) -> dict[str, float]:
    _, begin, end = phase
    name = client.spec.id
    mine = [a for a in story.attempts if a.client.spec.id == name and begin <= a.arrival_s < end]
    served = [a for a in mine if a.end_s is not None]
    refused = [a for a in mine if a.refused is not None]
    given_up = [a for a in mine if a.given_up]
    wanted = len(served) + len(given_up)
    looks = [look for look in story.looks if begin < look.at_s <= end]
    late = looks[len(looks) // 2 :]
    ticks = [tick for tick in story.ticks if begin < tick.at_s <= end and name in tick.standings]
    debts = [(tick.at_s, tick.standings[name].debt) for tick in ticks]
    weights = [tick.standings[name].weight for tick in ticks]
    indebted = [at for at, debt in debts if debt >= SETTLED]
    back = [look.at_s for look in looks if look.running[name] >= REGAINED * client.spec.concurrency]
    return {
        "sent": float(len(mine)),
        "completed": float(len(served)),
        "refused": float(len(refused)),
        "refused_low_priority": float(sum(a.refused is Reason.LOW_PRIORITY for a in refused)),
        "refused_within": float(sum(a.refused is not Reason.CONCURRENCY for a in refused)),
        "refused_share": 100 * len(refused) / max(1, len(mine)),
        "lost": float(len(given_up)),
        "lost_share": 100 * len(given_up) / max(1, wanted),
        "ttft_p50_s": interpolated([_since(a, a.first_s) for a in served], 0.5),
        "ttft_p99_s": interpolated([_since(a, a.first_s) for a in served], 0.99),
        "wait_p99_s": interpolated([_since(a, a.start_s) for a in served], 0.99),
        "e2e_p99_s": interpolated([_since(a, a.end_s) for a in served], 0.99),
        "slots_mean": mean([float(look.running[name]) for look in looks]),
        "slots_last": mean([float(look.running[name]) for look in late]),
        "debt_peak": max((debt for _, debt in debts), default=math.nan),
        "debt_last": debts[-1][1] if debts else math.nan,
        "weight_min": min(weights, default=math.nan),
        "weight_max": max(weights, default=math.nan),
        "settled_s": (indebted[-1] if indebted else begin) - begin,
        "regained_s": (back[0] if back else math.inf) - begin,
    }


def _by_the_clock(story: Story, clients: Sequence[Client], end_s: float) -> dict[str, float]:
    window = end_s / WINDOWS
    figures = {"window": window}
    for k in range(WINDOWS):
        middle = (k + 0.5) * window
        look = min(story.looks, key=lambda look: abs(look.at_s - middle))
        tick = min(story.ticks, key=lambda tick: abs(tick.at_s - middle))
        queued = [waiting for at, waiting in story.queue if k * window <= at < (k + 1) * window]
        figures[f"clock.queue.{k}"] = float(max(queued, default=look.waiting))
        figures[f"clock.slots.{k}"] = float(look.slots)
        for client in clients:
            name = client.spec.id
            standing = tick.standings.get(name) if client.begin_s <= middle <= client.end_s else None
            took = [
                _since(a, a.end_s)
                for a in story.attempts
                if a.client.spec.id == name and a.end_s is not None and k * window <= a.arrival_s < (k + 1) * window
            ]
            figures[f"clock.running.{name}.{k}"] = float(look.running[name])
            figures[f"clock.debt.{name}.{k}"] = standing.debt if standing else math.nan
            figures[f"clock.weight.{name}.{k}"] = standing.weight if standing else math.nan
            figures[f"clock.e2e.{name}.{k}"] = max(took, default=math.nan)
    return figures


def _since(attempt: Attempt, instant_s: float | None) -> float:
    assert instant_s is not None
    return instant_s - attempt.arrival_s


def weights() -> dict[str, float]:
    """Token pools 5.3 by eq. 1-2 alone: weights without and at the paper's peak debts, and how debt decays."""
    coefficients = Coefficients()
    average = standing.slo_mean([0.5, 30.0])

    def weigh(target_s: float, debt: float = 0.0) -> float:
        ratio = standing.slo_ratio(target_s, average)
        return standing.weight(ServiceClass.ELASTIC, ratio, debt, 0.0, coefficients)

    debts = [0.775]
    while debts[-1] >= SETTLED:
        debts.append(standing.next_debt(debts[-1], 0.0, coefficients))
    assert all(a > b for a, b in pairwise(debts))
    peak = weigh(30.0, 0.775)
    return {
        "slo_mean_ms": 1000 * average,
        "weight.copilot": weigh(0.5),
        "weight.synth": weigh(30.0),
        "weight.reports": weigh(5.0),
        "gap": weigh(0.5) / weigh(30.0),
        "weight.synth.peak": peak,
        "gap.peak": weigh(0.5, 0.607) / peak,
        "settled_s": (len(debts) - 1) * standing.TICK_S,
    }
