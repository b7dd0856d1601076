"""Policies side by side on one recorded trace: the same arrivals, tiers, lengths and beliefs for each.

What a trace does not say is made up the same way for all of them, from named random streams:

* **Load.** The replicas' capacity is measured by handing one of them all requests at once (first come, first served):
  requests / makespan. Arrival times are then stretched or squeezed evenly so that the mean rate is ``load`` times that
  of all replicas; bursts keep their shape. ServeGen's clients are thinned instead, their times stay as recorded. With
  ``as_recorded`` arrivals stay what they were.
* **Tiers.** A trace without tenants: each request draws its tier by the shares. With tenants: each belongs to one tier,
  the largest tenant first, to the tier that is furthest from its share. A recording of a pool says it all itself.
* **Where the policy decides.** ``front``: one queue in front of all replicas, as this product serves
  (:mod:`scheduling.simulator.replay`): what is granted is worked on in the engine's own order, and the policy reaches
  only what was not granted yet. Unless told otherwise as live: automatic prefill credit, 5 ms until a grant follows,
  engines that are told the policy's order. ``inside``: requests are sent to a replica when they arrive, and each
  replica's engine orders its own queue by the policy, as a policy inside vLLM would; this is what the papers simulate.
* **Limits.** Without them everybody is let in. With ``limits`` requests pass the product's own admission
  (:mod:`scheduling.simulator.admission`): each tenant has an entitlement of the shipped tier it belongs to, whose
  concurrency is its share of the requests as a share of all slots, or with ``equal_limits`` the same for all tenants of
  a tier; where the class has no baseline it is all slots, as the demo's batch tenant's; automatic headroom; no token
  budgets.
* **Beliefs.** Policies never see a true length. The first tenth of the trace is history: it is not replayed, and what
  is believed of a later request is the distribution of outputs in it, of the same tenant if that has enough, else of
  prompts of similar length. EWSJF's queues are cut from the history's prompts.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from scheduling.core.capacity.pool import automatic_headroom, most_headroom
from scheduling.core.capacity.prefill_pace import TOLD_AFTER_S
from scheduling.core.engine.step_time import load_preset
from scheduling.core.percentiles import interpolated
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.partition import refine_and_prune
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.rights import RIGHTS
from scheduling.core.types import EntitlementSpec, EntitlementState, PoolSpec, TierSpec
from scheduling.simulator.admission import Admission
from scheduling.simulator.beliefs import Beliefs
from scheduling.simulator.bound import most_in_time
from scheduling.simulator.cluster import Cluster
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.contracts import SHIPPED, Contract, contract_of
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.engine_queue import Stay, stays_of, waiting
from scheduling.simulator.fairness import Service, jain_of_backlogged
from scheduling.simulator.kernel import rng
from scheduling.simulator.oracle import clairvoyant
from scheduling.simulator.prefix_cache import BlockCache, Turns
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome, by_tier, late_share, makespan_s, mean, outcomes_of, served
from scheduling.simulator.servegen import generate, is_servegen, read_mix
from scheduling.simulator.trace import TraceRequest, read_tiers, read_trace
from scheduling.simulator.workload import BLOCK_TOKENS, Belief, SimRequest, Tier, make_request, pick_tier

UNPROMISED = Tier("all")
TIERS = tuple(tier.name for tier in SHIPPED)
HISTORY = 0.1  # share of a trace that is learned from and not replayed
INSIDE, FRONT = PLACES = ("inside", "front")
ROUTING = "prefix_affinity"  # of new pools
GRANT_DELAY_S = 0.005  # from an engine's token over a gateway to the leader's next grant, where it was not measured
LONGEST_DELAY_S = 1.0  # that is believed
PROBE = 3000  # requests that capacity is measured with


# what a case says of the policy; everything else is the same for all of them
OF_POLICY = ("policy", "params", "clairvoyant", "where", "prefill_tokens", "signal_ms", "engine_order")


class CompareError(ValueError):
    """A comparison that cannot be made: what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Case:
    """One policy on one trace with one seed. ``shares``: of the tiers, in their order."""

    trace: str  # file
    policy: str
    params: tuple[tuple[str, float | int | str], ...] = ()
    lengths: str = ""  # file with ServeGen's length distributions
    replicas: int = 2
    preset: str = "llama-3-8b-a100"
    from_minute: float = 0.0
    minutes: float = 30.0
    load: float = 1.0
    shares: tuple[tuple[str, float], ...] = tuple((tier.name, tier.share) for tier in SHIPPED)
    token_budget: int = 0  # of a step; 0: the preset's
    clairvoyant: bool = False  # the policy is told true lengths: what no live policy can know, as a limit
    seed: int = 1
    as_recorded: bool = False  # arrivals at their own rate, whatever the replicas can serve
    where: str = FRONT  # the policy decides: in "front" of all replicas, or "inside" each
    # in front: prefill credit of a replica [prompt tokens]; None: found while it serves, 0: no bound
    prefill_tokens: int | None = None
    signal_ms: float | None = None  # in front: from an engine's token to the grant that follows from it; None: as live
    slots: int = 0  # of a replica; 0: the preset's
    engine_order: str = "priority"  # in front: how an engine takes what was granted, a policy by name
    promises: bool = True  # False: nobody is promised anything, and all are of one class
    limits: bool = False  # in front: entitlements and tiers refuse as live
    equal_limits: bool = False  # with limits: tenants of a tier have the same concurrency, whatever each asks for
    contracts: tuple[Contract, ...] = ()  # of shipped tiers, where they are not as shipped

    @property
    def name(self) -> str:
        return Path(self.trace).name.split(".")[0]

    @property
    def label(self) -> str:
        label = self.named
        if self.where == INSIDE:
            label = f"{label} inside"
        elif (self.prefill_tokens, self.signal_ms, self.engine_order) != (None, None, "priority"):
            label = f"{label}, {self.bounds}"
        return f"{label} knowing lengths" if self.clairvoyant else label

    @property
    def named(self) -> str:
        """The policy with its parameters."""
        params = ",".join(f"{key}={value}" for key, value in self.params)
        return f"{self.policy}:{params}" if params else self.policy

    @property
    def signal_s(self) -> float:
        """From an engine's token to the grant that follows from it [s]."""
        return GRANT_DELAY_S if self.signal_ms is None else self.signal_ms / 1e3

    @property
    def bounds(self) -> str:
        """What bounds grants of a policy in front beside slots and KV cache, in words."""
        named = {None: "automatic credit", 0: "no credit", 1: "one prompt at a time"}
        credit = named.get(self.prefill_tokens, f"credit {self.prefill_tokens}")
        order = ", engines in policy order" if self.engine_order == "priority" else f", engines by {self.engine_order}"
        return f"{credit}{f', {1e3 * self.signal_s:g} ms' if self.signal_s else ''}{order}"


def grant_delay_s(turnaround_ms: object) -> float:
    """From an engine's token to the grant that follows from it [s], by the ``turnaround_ms`` that a pool's leader
    measured (``docs/reference/feed.md``): its gateway tells of it, the leader grants, and the grant reaches the engine.
    :data:`GRANT_DELAY_S` where nobody has measured it."""
    if not isinstance(turnaround_ms, int | float) or not 0 <= turnaround_ms <= 1e3 * LONGEST_DELAY_S:
        return GRANT_DELAY_S
    return TOLD_AFTER_S + turnaround_ms / 1e3


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every policy is handed, and what was done to the trace."""

    requests: tuple[SimRequest, ...]
    config: EngineConfig
    weights: Mapping[str, float]  # of tenants
    partition: str  # EWSJF's
    history: tuple[int, ...]  # prompt lengths [tokens] of the part that is learned from
    notes: Mapping[str, float] = field(default_factory=dict)


def parse_policy(text: str) -> tuple[str, tuple[tuple[str, float | int | str], ...]]:
    """``name`` or ``name:key=value,key=value``; ``bands+fair+name`` has modifiers around it.

    Raises CompareError for what is no such pair, PolicyError for a policy or parameter that does not exist.
    """
    name, _, rest = text.partition(":")
    params: dict[str, float | int | str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CompareError(f"policy {text!r}: {pair!r} is not PARAMETER=VALUE")
        params[key] = _value(value)
    make_named(name, params)
    return name, tuple(params.items())


def _value(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_shares(text: str) -> tuple[tuple[str, float], ...]:
    """``premium=20,standard=50,batch=30``: a share for each tier that takes part. Raises CompareError."""
    names = TIERS
    shares: dict[str, float] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if name not in names or not (math.isfinite(share) and share >= 0):
            raise CompareError(
                f"tiers: {pair!r} is not TIER=SHARE with a TIER of {', '.join(names)} and a SHARE from 0"
            )
        shares[name] = share
    if sum(shares.values()) <= 0:
        raise CompareError("tiers: one share at least has to be above 0")
    return tuple((name, shares[name]) for name in names if shares.get(name, 0.0) > 0)


def run_case(case: Case) -> dict[str, float]:
    """The figures of one policy. Raises CompareError, TraceError, PolicyError or OSError."""
    prepared = prepare(bare(case))
    params = dict(case.params)
    if case.policy.endswith("ewsjf"):
        step = prepared.config.truth
        params.setdefault("partition", prepared.partition)
        params.setdefault("prefill_t0_ms", step.t0 * 1e3)
        params.setdefault("prefill_us", step.a * 1e6)
    ordering = make_named(case.policy, params)
    requests = (
        [replace(request, queued=clairvoyant(request)) for request in prepared.requests]
        if case.clairvoyant
        else prepared.requests
    )
    served_by = serve(case, prepared.config, ordering, requests)
    outcomes = served_by.outcomes
    figures = {**prepared.notes, **_figures(outcomes)}
    figures |= _of_bound(figures, bounds(bare(case)))
    figures["preemptions"] = float(sum(engine.counters.preemptions for engine in served_by.engines))
    queued = waiting(served_by.stays, case.replicas)
    figures["engine_waiting"], figures["engine_waiting.p99"] = queued.mean, queued.p99
    worked = [
        Service(request.queued.tenant, outcome)
        for request, outcome in zip(prepared.requests, outcomes, strict=True)
        if not outcome.refused
    ]
    figures["jain"] = jain_of_backlogged(worked, prepared.weights)
    figures |= _least_kept(prepared.requests, outcomes)
    return figures


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that ended, in order of arrival, and the engines that worked on them."""

    outcomes: list[Outcome]
    engines: Sequence[ContinuousEngine]
    stays: Sequence[Stay]  # in the engines' own queues


def serve(case: Case, config: EngineConfig, ordering: OrderingPolicy, requests: Sequence[SimRequest]) -> Served:
    """Requests under a policy, where the case puts it. Raises CompareError or PolicyError."""
    if case.where not in PLACES:
        raise CompareError(f"where is {' or '.join(PLACES)}, not {case.where!r}")
    if (case.prefill_tokens or 0) < 0 or not case.signal_s >= 0:
        raise CompareError("the prefill credit and the signal's delay must be at least 0")
    if case.where == INSIDE and (case.prefill_tokens is not None or case.signal_ms is not None):
        raise CompareError("prefill credit and the signal's delay are of a policy in front: leave out --where inside")
    if case.where == INSIDE and case.limits:
        raise CompareError("limits are of a pool's admission, in front: leave out --where inside")
    routing = make_routing(ROUTING)
    if case.where == INSIDE:
        return serve_inside([config] * case.replicas, ordering, requests)
    replica = Replica(
        config.truth, config.max_seqs, config.kv_tokens, config.token_budget, case.prefill_tokens, case.engine_order
    )
    # As a gateway does, which cuts a bound to what the model still takes: none is larger than a replica.
    bounded = [_within(request, config.kv_tokens) for request in requests]
    slots = case.replicas * config.max_seqs
    admission = None
    if case.limits:
        limits = limits_of(bounded, slots, equal=case.equal_limits, contracts=case.contracts)
        admission = partial(Admission, *limits)
    replay = Replay([replica] * case.replicas, ordering, routing, signal_s=case.signal_s, admission=admission)
    return Served(replay.run(bounded), replay.engines, replay.stays)


def limits_of(
    requests: Sequence[SimRequest], slots: int, *, equal: bool = False, contracts: Sequence[Contract] = ()
) -> tuple[PoolSpec, tuple[EntitlementSpec, ...]]:
    """A pool of so many slots and an entitlement for each tenant, as :attr:`Case.limits` and :attr:`Case.equal_limits`
    have them."""
    counts: Mapping[str, float] = Counter(request.queued.entitlement for request in requests)
    if equal:
        tiers = Counter(request.tier for request in requests)
        tier_of = {request.queued.entitlement: request.tier for request in requests}
        tenants = Counter(tier_of.values())
        counts = {name: tiers[tier] / tenants[tier] for name, tier in tier_of.items()}
    firsts = {request.queued.entitlement: request for request in reversed(requests)}
    specs = []
    for name, first in firsts.items():
        queued = first.queued
        contract = contract_of(queued.tier, contracts)
        over, waiting, longest_s = contract.over_limit, contract.queue_limit, contract.max_wait_s
        tier = TierSpec(
            queued.tier, queued.service_class, queued.rank, queued.weight, first.slo, over, waiting, longest_s
        )
        share = counts[name] / len(requests) if RIGHTS[queued.service_class].baseline else 1.0
        concurrency = math.ceil(slots * share)
        state = EntitlementState.BOUND
        specs.append(EntitlementSpec(name, queued.tenant, "pool", tier, state, 0.0, 0.0, 0, concurrency))
    pool = PoolSpec("pool", "model", "model", ())
    kept, most = automatic_headroom(slots, specs), most_headroom(slots, specs)
    return replace(pool, headroom_slots=kept, headroom_most=most), tuple(specs)


def serve_inside(configs: Sequence[EngineConfig], ordering: OrderingPolicy, requests: Sequence[SimRequest]) -> Served:
    """Requests that are sent to an engine when they arrive, by the routing of new pools. Each engine orders its own
    queue by the policy."""
    engines = [ContinuousEngine(config, ordering) for config in configs]
    caches = [BlockCache(config.kv_tokens // BLOCK_TOKENS) for config in configs]

    def cached(number: int, request: SimRequest) -> int:
        return min(caches[number].take(request.blocks) * BLOCK_TOKENS, request.input_tokens - 1)

    lives = Cluster(engines, make_routing(ROUTING), cached=cached).run(requests)
    return Served(outcomes_of(lives), engines, stays_of(lives))


def _within(request: SimRequest, kv_tokens: int) -> SimRequest:
    queued = request.queued
    return request if queued.kv_tokens <= kv_tokens else replace(request, queued=replace(queued, kv_tokens=kv_tokens))


def bare(case: Case) -> Case:
    """The same recording for every policy, its parameters and where it decides."""
    plain = Case(case.trace, "")
    return replace(case, **{name: getattr(plain, name) for name in OF_POLICY})


def fingerprint(case: Case, code: str) -> str:
    """Names a case's figures for keeping: settings, the files' contents, and the ``code`` that runs it."""
    digest = hashlib.sha256(f"{code}{asdict(case)}".encode())
    for name in filter(None, (case.trace, case.lengths)):
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()[:24]


@cache
def prepare(case: Case) -> Prepared:
    """Everything but the policy: requests with their tiers and beliefs, at the load that was asked for."""
    if case.replicas < 1 or not case.load > 0 or not case.minutes > 0 or case.from_minute < 0:
        raise CompareError("replicas must be at least 1, load and minutes above 0, the first minute at least 0")
    if case.slots < 0:
        raise CompareError("slots must be at least 1, or 0 for the preset's")
    config = config_of(case)
    rows, notes = rows_at_load(case, config)
    kept = [row for row in rows if _fits(row, config)]
    notes["left_out"] = float(len(rows) - len(kept))
    begun = math.ceil(HISTORY * len(kept))
    history, replayed = kept[:begun], kept[begun:]
    if not history or not replayed:
        raise CompareError(f"{case.trace}: {len(kept)} requests are too few to learn from some and replay the others")
    recorded = {} if is_servegen(Path(case.trace)) else {tier.name: tier for tier in read_tiers(case.trace)}
    recorded |= {c.tier.name: c.tier for c in case.contracts if c.tier.name in recorded}
    asked = dict(case.shares)
    tiers = [replace(contract_of(name, case.contracts).tier, share=asked[name]) for name in TIERS if name in asked]
    if not case.promises:
        recorded, tiers = {}, [UNPROMISED]
    tier_of = {} if recorded else _tiers_of_tenants(kept, tiers)
    random = rng(case.seed, "tiers")
    believe, turns = Beliefs(history), Turns()
    requests = []
    for index, row in enumerate(replayed):
        tier = recorded.get(row.tier) or tier_of.get(row.tenant) or pick_tier(random, tiers)
        at = row.arrival_s - replayed[0].arrival_s
        sim = make_request(index, at, row.input_tokens, row.output_tokens, tier, believe(row), tenant=row.tenant)
        if row.blocks:
            queued = replace(sim.queued, prefixes=turns.prefixes_of(row.blocks, row.input_tokens))
            sim = replace(sim, queued=queued, blocks=row.blocks)
        requests.append(sim)
    weights = {request.queued.tenant: request.queued.weight for request in requests}
    lengths = tuple(row.input_tokens for row in history)
    partition = ",".join(f"{i.low}-{i.high}" for i in refine_and_prune(lengths))
    notes["requests"], notes["tenants"] = float(len(requests)), float(len(weights))
    return Prepared(tuple(requests), config, weights, partition, lengths, notes)


def config_of(case: Case) -> EngineConfig:
    """A replica of the case."""
    preset = load_preset(case.preset)
    return EngineConfig(
        preset.step_time,
        token_budget=case.token_budget or preset.token_budget,
        max_seqs=case.slots or preset.slots,
        kv_tokens=preset.kv_tokens,
        preempt_prefills=True,
    )


def rows_at_load(case: Case, config: EngineConfig) -> tuple[list[TraceRequest], dict[str, float]]:
    """The trace's requests at the load that was asked for, and the ``capacity`` [requests/s of a replica] and ``speed``
    that this takes. Raises CompareError, TraceError or OSError."""
    path, from_s, span_s = Path(case.trace), case.from_minute * 60, case.minutes * 60
    if is_servegen(path):
        if not case.lengths:
            raise CompareError(f"{path} holds rates only: name ServeGen's file of length distributions with --lengths")
        mix = read_mix(path, Path(case.lengths))
        span = (mix.start_s + from_s, mix.start_s + from_s + span_s)
        recorded, left_out = mix.rate(*span), mix.left_out(*span)
        if recorded <= 0:
            raise CompareError(f"{path}: nothing arrives in the {case.minutes:g} minutes from {case.from_minute:g} on")
        draw = partial(generate, mix, case.seed, from_s=mix.start_s + from_s, span_s=span_s)
        capacity = capacity_of(draw(scale=PROBE / recorded / span_s), config)
        scale = case.load * case.replicas * capacity / recorded
        rows = draw(scale=scale)
        share = 100.0 * sum(left_out) / (recorded + sum(left_out))
        left = {"clients_left_out": float(len(left_out)), "clients_left_out_share": share}
        return rows, {"capacity": capacity, "speed": scale, **left}
    rows = read_trace(path, until_s=from_s + span_s)
    rows = [row for row in rows if row.arrival_s >= from_s]
    if len(rows) < 2 or rows[-1].arrival_s <= rows[0].arrival_s:
        raise CompareError(f"{path}: nothing arrives in the {case.minutes:g} minutes from {case.from_minute:g} on")
    rows = [
        replace(row, input_tokens=max(1, row.input_tokens), output_tokens=max(1, row.output_tokens)) for row in rows
    ]
    capacity = capacity_of(rows, config)
    recorded = len(rows) / (rows[-1].arrival_s - rows[0].arrival_s)
    speed = 1.0 if case.as_recorded else case.load * case.replicas * capacity / recorded
    rows = [replace(row, arrival_s=row.arrival_s / speed) for row in rows]
    return rows, {"capacity": capacity, "speed": speed}


def capacity_of(rows: Sequence[TraceRequest], config: EngineConfig) -> float:
    """Requests/s that one replica serves when all are there at once."""
    rows = [row for row in rows[:: max(1, len(rows) // PROBE)] if _fits(row, config)]
    if not rows:
        raise CompareError("no request of the trace fits into the KV cache of the preset")
    engine = ContinuousEngine(config, make_ordering("fifo"))
    belief, tier = Belief(1.0), SHIPPED[0]
    requests = (make_request(n, 0.0, row.input_tokens, row.output_tokens, tier, belief) for n, row in enumerate(rows))
    return len(rows) / makespan_s(outcomes_of(engine.run(requests)))


def _fits(row: TraceRequest, config: EngineConfig) -> bool:
    """Whether an idle engine could run it."""
    return row.input_tokens + row.output_tokens + config.block <= config.kv_tokens * (1.0 - config.watermark)


def _tiers_of_tenants(rows: Sequence[TraceRequest], tiers: Sequence[Tier]) -> dict[str, Tier]:
    """Whole tenants to tiers so that the tiers' requests come near their shares; empty without tenants."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.tenant:
            counts[row.tenant] = counts.get(row.tenant, 0) + 1
    total = sum(tier.share for tier in tiers)
    missing = {tier.name: tier.share / total * len(rows) for tier in tiers}
    tier_of: dict[str, Tier] = {}
    for tenant in sorted(counts, key=lambda name: (-counts[name], name)):
        tier = max(tiers, key=lambda tier: (missing[tier.name], -tier.rank))
        tier_of[tenant] = tier
        missing[tier.name] -= counts[tenant]
    return tier_of


@cache
def bounds(case: Case) -> Mapping[str, float]:
    """What no scheduler exceeds [% in time], of all ("") and of each tier (".premium"), as if it had the replicas to
    itself. The same for every policy."""
    prepared = prepare(case)
    by_trace = {}
    for suffix in ("", *(f".{tier}" for tier in dict.fromkeys(request.tier for request in prepared.requests))):
        mine = [request for request in prepared.requests if not suffix or request.tier == suffix[1:]]
        by_trace[suffix] = 100.0 * most_in_time(mine, prepared.config, case.replicas) / len(mine)
    return by_trace


def _least_kept(requests: Sequence[SimRequest], outcomes: Sequence[Outcome]) -> dict[str, float]:
    """``kept_least`` [% in time of what it asked for] of the tenant that has least, of all and of each tier."""
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for request, outcome in zip(requests, outcomes, strict=True):
        rows.setdefault((request.tier, request.queued.tenant), []).append(outcome)
    least: dict[str, float] = {}
    for (tier, _), theirs in rows.items():
        kept = 100.0 * (1.0 - late_share(theirs))
        for suffix in ("", f".{tier}"):
            least[f"kept_least{suffix}"] = min(kept, least.get(f"kept_least{suffix}", 100.0))
    return least


def _of_bound(figures: Mapping[str, float], most: Mapping[str, float]) -> dict[str, float]:
    """``bound`` [% in time that no scheduler exceeds] of all and of each tier, and ``of_bound`` [%]: what of it was
    reached. nan where nothing can be in time."""
    row: dict[str, float] = {}
    for suffix, share in most.items():
        row[f"bound{suffix}"] = share
        row[f"of_bound{suffix}"] = 100.0 * figures[f"kept{suffix}"] / share if share else math.nan
    return row


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """``slo`` [% of what was served in time], ``kept`` [% of all that was asked for], ``refused`` [%], ``ttft.*`` and
    ``ttlt.*`` [s] of what was served, of all and per tier (``slo.premium``), ``refused_why.*`` [%], and throughput."""
    figures: dict[str, float] = {}
    for suffix, asked in [("", outcomes), *((f".{tier}", rows) for tier, rows in by_tier(outcomes).items())]:
        rows = served(asked)
        figures[f"slo{suffix}"] = 100.0 * (1.0 - late_share(rows)) if rows else math.nan
        figures[f"kept{suffix}"] = 100.0 * (1.0 - late_share(asked))
        figures[f"refused{suffix}"] = 100.0 * (1.0 - len(rows) / len(asked))
        for name, values in (("ttft", [o.ttft_s for o in rows]), ("ttlt", [o.ttlt_s for o in rows])):
            for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                figures[f"{name}.{label}{suffix}"] = interpolated(values, share)
            figures[f"{name}.mean{suffix}"] = mean(values)
    for reason, count in Counter(o.refused for o in outcomes if o.refused).items():
        figures[f"refused_why.{reason}"] = 100.0 * count / len(outcomes)
    span, ended = makespan_s(outcomes), served(outcomes)
    figures["tokens_per_s"] = sum(o.input_tokens + o.output_tokens for o in ended) / span if span else 0.0
    figures["requests_per_s"] = len(ended) / span if span else 0.0
    return figures
