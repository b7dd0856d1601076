"""How many replicas should a pool have?

Token pools decide admission and scaling from one capacity model (token pools 1, 3.1): what was promised has to be
there, and what those with a right to it use, wait for and were refused for want of capacity has to find room, plus
headroom. Spot and preemptible entitlements live on surplus: they neither call replicas nor hold them.

A pool that may have no replica sleeps once nobody has asked for anything for ``idle_s``, unless a reserved share there
has to be answered sooner than a replica comes (:func:`keeps_awake`). Any request wakes it, to what was promised.

Pure: measured facts and what was remembered in, a proposal and what to remember out. Growing and shrinking look at
different thresholds (headroom against headroom + hysteresis), growing has a short cooldown, and shrinking needs a whole
down-cooldown in which fewer would have done at every look; a constant demand is therefore followed at most once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduling.core.capacity.pool import DIMENSIONS, RESERVING, Amounts, of_backend, of_entitlement
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, ScalingSpec, ServiceClass

ENTITLED = frozenset({ServiceClass.DEDICATED, ServiceClass.GUARANTEED, ServiceClass.ELASTIC})
HYSTERESIS = 0.15  # share of the demand by which it has to fall before fewer replicas are thought of
SLO_TARGET = 0.95  # attainment under which a busy pool gets one replica more
SLO_SAMPLES = 20  # fewer ended requests say nothing
SLO_BUSY = 0.5  # share of a pool in use under which misses have another cause than want of replicas
PROVEN_SHARE = 0.8  # while the load stays above this share of what it was, a growth for the SLO is not taken back
_ALMOST = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """What was seen of a pool over a window. Amounts are means over the window, of entitled classes only."""

    at_s: float
    window_s: float
    replicas: int  # there are, without those that leave; one that still starts counts
    replica: Amounts  # what one adds; a dimension that is 0 or endless is not known and not planned by
    entitled: Amounts  # reserved and elastic baselines of entitlements that are in force
    used: Amounts = field(default_factory=Amounts)
    waiting: Amounts = field(default_factory=Amounts)
    refused: Amounts = field(default_factory=Amounts)  # for want of capacity, as the room it would have taken
    slo_met: int = 0
    slo_total: int = 0
    idle_s: float = 0.0  # since anybody, of any class, last ran, waited or was refused
    wanted: bool = False  # a request waits, or came lately, and no replica serves
    fixed: int = 0  # of the replicas: people made them, and only people end them
    awake_for: str = ""  # a reserved share that could not wait until a replica comes; empty: none


@dataclass(frozen=True, slots=True)
class Memory:
    """What a planner has to remember of a pool between looks."""

    grown_s: float = -math.inf
    changed_s: float = -math.inf
    lows: tuple[tuple[float, int], ...] = ()  # (when, replicas that would have done), over one down-cooldown
    proven: tuple[int, float] | None = None  # replicas that an SLO needed, at what load [replicas]


@dataclass(frozen=True, slots=True)
class Proposal:
    """``wanted`` equals ``current`` where nothing should change; ``reason`` is one line for people."""

    at_s: float
    current: int
    wanted: int
    reason: str


def keeps_awake(entitlements: Iterable[EntitlementSpec], wakes_in_s: float) -> str:
    """A share for which a pool must not sleep: reserved, in force, of a tier that waits less long than a wake takes.
    Empty where there is none."""
    held = (
        e.id
        for e in entitlements
        if e.tier.service_class in RESERVING
        and e.state is not EntitlementState.EXPIRED
        and not e.paused
        and e.tier.max_wait_s < wakes_in_s
    )
    return min(held, default="")


def promised(entitlements: Iterable[EntitlementSpec]) -> Amounts:
    """What entitlements with a baseline were promised together; those that have ended are left out."""
    total = Amounts()
    for e in entitlements:
        if e.tier.service_class in ENTITLED and e.state is not EntitlementState.EXPIRED:
            total += of_entitlement(e)
    return total


def one_replica(spec: ScalingSpec, backends: Iterable[BackendSpec]) -> Amounts:
    """What one more replica adds: as the driver's parameters say, else as much as the smallest there is."""
    there = [of_backend(b) for b in backends if b.leaving_since_s is None]
    least = {name: min((getattr(amounts, name) for amounts in there), default=0.0) for name in DIMENSIONS}
    parameters = {name: float(spec.params[name]) for name in ("slots", "kv_tokens") if name in spec.params}
    return Amounts(**least | parameters)


def provisionable(spec: ScalingSpec, backends: Iterable[BackendSpec]) -> Amounts:
    """What a planner may bring a pool to: the replicas that people made, which it never removes, and its own up to
    ``max_replicas``, none of them counted as more than a new one has. A dimension that is 0 is not known."""
    there = [b for b in backends if b.leaving_since_s is None]
    one = one_replica(spec, there)
    total, left = Amounts(), spec.max_replicas
    for backend in sorted(there, key=lambda b: b.managed):
        own = of_backend(backend)
        if backend.managed and left <= 0:
            break
        total += Amounts(**{n: min(getattr(own, n), getattr(one, n)) for n in DIMENSIONS}) if backend.managed else own
        left -= 1
    return total + one * left if left > 0 else total


def replicas_for(amounts: Amounts, replica: Amounts) -> tuple[float, str]:
    """How many replicas (a fraction) hold these amounts, and the dimension that decides it; (0, "") if none does."""
    shares = [
        (getattr(amounts, name) / getattr(replica, name), name) for name in DIMENSIONS if getattr(replica, name) > 0
    ]
    return max(shares, default=(0.0, ""))


def shortage(promise: Amounts, limit: Amounts) -> str:
    """One line about the first dimension in which a promise exceeds a limit; empty where it fits."""
    for name, words in DIMENSIONS.items():
        most = getattr(limit, name)
        if most > 0 and getattr(promise, name) > most * (1 + _ALMOST):
            return f"{getattr(promise, name):g} {words} would be promised, {most:g} can be provisioned"
    return ""


def plan(spec: ScalingSpec, demand: Demand, memory: Memory) -> tuple[Proposal, Memory]:
    """The proposal for now, and the memory for the next call.

    The caller reports carried-out changes by :func:`changed`. The proposal is within ``min_replicas`` and
    ``max_replicas``, and never falls when the demand rises while everything else is the same.
    """
    now_s, current = demand.at_s, demand.replicas
    wish = demand.used + demand.waiting + demand.refused
    load, tight = replicas_for(wish, demand.replica)
    base, base_tight = replicas_for(demand.entitled, demand.replica)
    high = _whole(max(base, load * (1 + spec.headroom)))
    low = _whole(max(base, load * (1 + spec.headroom + HYSTERESIS)))
    tight = base_tight if base >= load * (1 + spec.headroom) else tight

    proven = memory.proven
    if proven is not None:
        if load < proven[1] * PROVEN_SHARE:
            proven = None
        else:
            low = max(low, proven[0])
    attained = demand.slo_met / demand.slo_total if demand.slo_total else 1.0
    late = (
        demand.slo_total >= SLO_SAMPLES
        and attained < SLO_TARGET
        and load >= SLO_BUSY * current
        and now_s - memory.grown_s >= spec.up_cooldown_s + demand.window_s  # what is counted ran after the growth
    )
    if late and high <= current < spec.max_replicas:
        high = current + 1
        proven = (high, load)
        low = max(low, high)
    low = _within(spec, max(low, 1))
    horizon_s = now_s - spec.down_cooldown_s
    lows = (*memory.lows, (now_s, low))
    while len(lows) > 1 and lows[1][0] <= horizon_s:  # one look from before the horizon stays: it covers it
        lows = lows[1:]
    memory = replace(memory, lows=lows, proven=proven)
    asleep = _asleep(spec, demand, memory)
    if asleep is not None:
        return Proposal(now_s, current, 0, asleep), memory

    wanted, why = _decide(spec, demand, memory, _within(spec, max(high, 1)), horizon_s)
    about = (
        f"SLO met by {attained:.0%} of {demand.slo_total} under load"
        if late and wanted > current
        else _because(demand, wish, tight)
    )
    if current == 0 and demand.wanted and wanted > 0:
        about = f"a request came; {about}"
    elif demand.awake_for and spec.min_replicas == 0 and wanted == current:
        about += f"; awake, as the reserved share of {demand.awake_for} cannot wait for a replica"
    return Proposal(now_s, current, wanted, f"{why}: {about}"), memory


def changed(memory: Memory, now_s: float, before: int, after: int) -> Memory:
    """What to remember after a change was begun. Who went to sleep may wake at once."""
    grown_s = now_s if after > before else -math.inf if after == 0 else memory.grown_s
    return replace(memory, changed_s=now_s, grown_s=grown_s, lows=())


def _asleep(spec: ScalingSpec, demand: Demand, memory: Memory) -> str | None:
    """Why the pool should have no replica now; None where it should have some."""
    if spec.min_replicas or not spec.idle_s or demand.wanted or demand.awake_for or demand.fixed:
        return None
    if demand.replicas == 0:
        return "asleep: the first request brings a replica"
    if demand.idle_s < spec.idle_s or demand.at_s - memory.changed_s < spec.idle_s:
        return None
    return f"down from {demand.replicas} to 0: nothing ran or waited for {demand.idle_s:.0f} s"


def _decide(spec: ScalingSpec, demand: Demand, memory: Memory, high: int, horizon_s: float) -> tuple[int, str]:
    now_s, current = demand.at_s, demand.replicas
    if current < spec.min_replicas:
        return spec.min_replicas, f"up from {current} to the minimum of {spec.min_replicas}"
    if current > spec.max_replicas:
        return spec.max_replicas, f"down from {current} to the maximum of {spec.max_replicas}"
    if high > current:
        left_s = memory.grown_s + spec.up_cooldown_s - now_s
        if left_s > 0:
            return current, f"stay at {current}, {high} wanted, cooldown {left_s:.0f} s"
        return high, f"up from {current} to {high}"
    enough = max(n for _, n in memory.lows)
    if enough < current:
        left_s = memory.changed_s + spec.down_cooldown_s - now_s
        if left_s > 0:
            return current, f"stay at {current}, {enough} would do, cooldown {left_s:.0f} s"
        if memory.lows[0][0] > horizon_s:
            return current, f"stay at {current}, {enough} would do, but not for {spec.down_cooldown_s:.0f} s yet"
        return enough, f"down from {current} to {enough}"
    return current, f"stay at {current}" + (" (the maximum)" if current == spec.max_replicas else "")


def _because(demand: Demand, wish: Amounts, tight: str) -> str:
    if not tight:
        return "nothing is known of what a replica holds"
    used, waiting, refused, entitled, one = (
        getattr(amounts, tight)
        for amounts in (demand.used, demand.waiting, demand.refused, demand.entitled, demand.replica)
    )
    return (
        f"{DIMENSIONS[tight]} used {used:.4g}, waiting {waiting:.4g}, refused {refused:.4g}, "
        f"entitled {entitled:.4g}, a replica has {one:.4g}"
    )


def _whole(replicas: float) -> int:
    return math.ceil(replicas - _ALMOST)


def _within(spec: ScalingSpec, replicas: int) -> int:
    return min(max(replicas, spec.min_replicas), spec.max_replicas)
