"""How much an entitlement's requests weigh now: service class, SLO, burst and debt (token pools 3.3, eq. 1-3).

One weight for everything: admission compares it with the pool's threshold, ordering uses it for who goes next. The
pool's leader calls :func:`tick` every :data:`TICK_S` seconds with what each entitlement used and wanted in between and
keeps the standings it returns; the simulator does the same on virtual time.

Where the paper leaves a gap, and what is done here:

* *Demand.* Its service gap is ``(lambda_e - allocated) / lambda_e``, so that an idle entitlement would be owed ever
  more and come back with the pool's highest weight. Here only capacity that was asked for and not given is a gap; using
  more than the baseline still counts as overservice.
* *Credit.* ``1 + alpha_debt * d_e`` turns negative below ``-1 / alpha_debt``, which would put the classes upside
  down. Below zero its reciprocal mirror ``1 / (1 - alpha_debt * d_e)`` is used: same value and slope at zero, always
  positive.
* *Bound.* A gap is at most 1 (nothing given); overservice is cut at -1, so that an hour of bursting into an idle
  pool is not held against a tenant for longer than underservice would be.
* *Period.* The paper's decay to near zero within 50 s at ``gamma_d = 0.7`` implies one update every 5 s. A tick that
  comes late (a new leader) counts as the ticks it stands for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from scheduling.core.types import Coefficients as Coefficients
from scheduling.core.types import EntitlementSpec, ServiceClass, Slo, Standing

TICK_S = 5.0  # between two updates of debt and burst
WITHOUT_DEBT = frozenset({ServiceClass.SPOT, ServiceClass.PREEMPTIBLE})  # they have no baseline to be owed


@dataclass(frozen=True, slots=True)
class Baseline:
    """What an entitlement may count on. A figure of 0 promises nothing in that dimension and is left out."""

    service_class: ServiceClass
    slo_s: float | None  # its SLO target [s]; None: taken as the pool's mean
    tokens_per_s: float  # lambda_e
    kv_tokens: float  # chi_e
    concurrency: float  # r_e


@dataclass(frozen=True, slots=True)
class Usage:
    """What an entitlement had and wanted between two ticks, as averages over that time.

    Wanted is what it had, plus what waited, plus what was refused for want of room. Refusals by its own limits do not
    count: it asked for more than it is entitled to. Retries may count again, because no gap exceeds the baseline.
    """

    tokens_per_s: float = 0.0
    kv_tokens: float = 0.0
    concurrency: float = 0.0
    wanted_tokens_per_s: float = 0.0
    wanted_concurrency: float = 0.0


@dataclass(slots=True)
class Looks:
    """An entitlement over the looks since the last tick, which come about once a second: sums."""

    running: float = 0.0
    waiting: float = 0.0
    kv_tokens: float = 0.0  # of what runs: what waits reserves KV cache, but has none yet


def usage_of(
    looks: Looks,
    count: int,
    elapsed_s: float,
    *,
    served_tokens: int,
    refused_tokens: int,
    refusals: int,
    backlog_tokens: float,
    service_s: float,
) -> Usage:
    """What an entitlement used and wanted in the ``elapsed_s`` seconds (above 0) since the last tick, from ``count``
    looks. ``served_tokens``, ``refused_tokens``, ``refusals``: in that time; ``backlog_tokens``: of what waits now;
    ``service_s``: the mean time that one of its requests holds a slot, which by Little's law each refused one would
    have held."""
    count = max(1, count)
    tokens_per_s = served_tokens / elapsed_s
    return Usage(
        tokens_per_s=tokens_per_s,
        kv_tokens=looks.kv_tokens / count,
        concurrency=looks.running / count,
        wanted_tokens_per_s=tokens_per_s + (refused_tokens + backlog_tokens) / elapsed_s,
        wanted_concurrency=(looks.running + looks.waiting) / count + refusals / elapsed_s * service_s,
    )


@dataclass(frozen=True, slots=True)
class Factors:
    """The four factors of eq. 1, to explain an entitlement's weight."""

    service_class: float
    slo: float
    burst: float
    debt: float

    @property
    def weight(self) -> float:
        return self.service_class * self.slo * self.burst * self.debt

    def __str__(self) -> str:
        return (
            f"weight {self.weight:.4g} = class {self.service_class:g} x SLO {self.slo:.3g} "
            f"x burst {self.burst:.3g} x debt {self.debt:.3g}"
        )


def read_coefficients(values: object) -> Coefficients:
    """Coefficients from what a person wrote, by name; what is left out keeps its default.

    Raises ValueError that names what is wrong and what would be right.
    """
    if not isinstance(values, Mapping):
        raise ValueError('write coefficients by name, such as {"debt": 4.0}')
    standard = Coefficients()
    scalars = {f.name: getattr(standard, f.name) for f in fields(Coefficients) if f.name != "class_weights"}
    classes = values.get("class_weights", {})
    if not isinstance(classes, Mapping):
        raise ValueError('class_weights are by class, such as {"elastic": 100}')
    _refuse_unknown("coefficient", values, [*scalars, "class_weights"])
    _refuse_unknown("service class", list(classes), [c.value for c in ServiceClass])
    for name in scalars:
        decays = name.startswith("gamma")
        scalars[name] = _number(name, values.get(name, scalars[name]), 0.0, 0.999 if decays else 1000.0)
    weights = {
        c: _number(f"class_weights.{c.value}", classes.get(c.value, standard.class_weights[c]), 1e-6, 1e9)
        for c in ServiceClass
    }
    return Coefficients(**scalars, class_weights=weights)


def _refuse_unknown(kind: str, names: Iterable[object], allowed: list[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"there is no {kind} {name!r}; there are: {', '.join(allowed)}")


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return float(value)


def factors(
    service_class: ServiceClass, slo_ratio: float, debt: float, burst: float, coefficients: Coefficients
) -> Factors:
    """Eq. 1 factor by factor. ``slo_ratio`` is the SLO target over the pool's mean."""
    swing = coefficients.debt * debt
    return Factors(
        service_class=coefficients.class_weights[service_class],
        slo=1.0 / (1.0 + coefficients.slo * slo_ratio),
        burst=1.0 / (1.0 + coefficients.burst * burst),
        debt=1.0 + swing if swing >= 0 else 1.0 / (1.0 - swing),
    )


def weight(
    service_class: ServiceClass, slo_ratio: float, debt: float, burst: float, coefficients: Coefficients
) -> float:
    """``w_e``, eq. 1: positive, falling in SLO target and burst, rising in debt."""
    return factors(service_class, slo_ratio, debt, burst, coefficients).weight


def slo_target(slo: Slo) -> float | None:
    """The one figure of a promise that eq. 1 compares [s]: time to the first token, or to the last."""
    return slo.ttft_s if slo.interactive else slo.ttlt_s


def slo_mean(targets: Iterable[float | None], setting: float | None = None) -> float:
    """What targets are compared with [s]: the pool's setting, else the mean over its bound entitlements, else 1."""
    if setting is not None:
        return setting
    stated = [target for target in targets if target is not None]
    return sum(stated) / len(stated) if stated else 1.0


def slo_ratio(target: float | None, mean: float) -> float:
    """An unknown target weighs like the mean."""
    return 1.0 if target is None else target / mean


def service_gap(baseline: float, allocated: float, wanted: float) -> float:
    """``g_e`` in [-1, 1]: the part of the baseline that was wanted and not given, or minus what was had beyond it.

    Arguments in one unit (tokens/s or sequences). Nothing promised is no gap.
    """
    if baseline <= 0:
        return 0.0
    due = max(allocated, wanted)
    return max(-1.0, (min(baseline, due) - allocated) / baseline)


def next_debt(debt: float, gap: float, coefficients: Coefficients, ticks: float = 1.0) -> float:
    """``d_e`` after ``ticks`` ticks with this gap (eq. 2); above zero it was underserved."""
    kept = math.pow(coefficients.gamma_debt, ticks)
    return kept * debt + (1.0 - kept) * gap


def burst_excess(baseline: Baseline, usage: Usage) -> float:
    """``delta_e``, eq. 3: how far it was above its baseline, summed over tokens, KV cache and sequences."""
    pairs = (
        (usage.tokens_per_s, baseline.tokens_per_s),
        (usage.kv_tokens, baseline.kv_tokens),
        (usage.concurrency, baseline.concurrency),
    )
    return sum(max(0.0, used / promised - 1.0) for used, promised in pairs if promised > 0)


def next_burst(burst: float, excess: float, coefficients: Coefficients, ticks: float = 1.0) -> float:
    """``b_e`` after ``ticks`` ticks with this excess: brief bursts cost little, lasting ones ever more."""
    kept = math.pow(coefficients.gamma_burst, ticks)
    return kept * burst + (1.0 - kept) * excess


def shares_of(baselines: Mapping[str, Baseline], usage: Mapping[str, Usage]) -> dict[str, float]:
    """What each entitlement that had or wanted tokens got of those that its class got, as a multiple of what its
    concurrency is of theirs: 1 is its part. ``baselines``: of one pool."""
    had: dict[ServiceClass, float] = defaultdict(float)
    places: dict[ServiceClass, float] = defaultdict(float)
    active = [n for n, used in usage.items() if n in baselines and used.wanted_tokens_per_s > 0]
    for name in active:
        its = baselines[name].service_class
        had[its] += usage[name].tokens_per_s
        places[its] += baselines[name].concurrency
    found = {}
    for name in active:
        its = baselines[name].service_class
        if had[its] > 0:
            part = had[its] * max(1.0, baselines[name].concurrency) / max(1.0, places[its])
            found[name] = usage[name].tokens_per_s / part
    return found


def gap_of(baseline: Baseline, usage: Usage) -> float:
    """``g_e`` in tokens per second where they are promised (the paper's unit), else in sequences."""
    if baseline.tokens_per_s > 0:
        return service_gap(baseline.tokens_per_s, usage.tokens_per_s, usage.wanted_tokens_per_s)
    return service_gap(baseline.concurrency, usage.concurrency, usage.wanted_concurrency)


def baseline_of(spec: EntitlementSpec) -> Baseline:
    return Baseline(
        service_class=spec.tier.service_class,
        slo_s=slo_target(spec.tier.slo),
        tokens_per_s=spec.tokens_per_s,
        kv_tokens=spec.kv_tokens,
        concurrency=spec.concurrency,
    )


def tick(
    baselines: Mapping[str, Baseline],
    usage: Mapping[str, Usage],
    before: Mapping[str, Standing],
    coefficients: Coefficients,
    slo_mean_s: float | None = None,
    elapsed_s: float = TICK_S,
) -> dict[str, Standing]:
    """The standings of the bound entitlements after ``elapsed_s`` seconds.

    One without usage had and wanted nothing; one without a standing is new and starts with no debt and no burst, so
    that newcomers are not privileged (token pools 5.3).
    """
    ticks = max(0.0, elapsed_s) / TICK_S
    mean = slo_mean((baseline.slo_s for baseline in baselines.values()), slo_mean_s)
    shares = shares_of(baselines, usage)
    kept = math.pow(coefficients.gamma_burst, ticks)
    after = {}
    for name, baseline in baselines.items():
        standing = before.get(name)
        used = usage.get(name, Usage())
        debt = 0.0
        if baseline.service_class not in WITHOUT_DEBT:
            debt = next_debt(standing.debt if standing else 0.0, gap_of(baseline, used), coefficients, ticks)
        burst = next_burst(standing.burst if standing else 0.0, burst_excess(baseline, used), coefficients, ticks)
        ratio = slo_ratio(baseline.slo_s, mean)
        share = kept * (standing.share if standing else 1.0) + (1.0 - kept) * shares.get(name, 1.0)
        after[name] = Standing(weight(baseline.service_class, ratio, debt, burst, coefficients), debt, burst, share)
    return after
