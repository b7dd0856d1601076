"""Queue boundaries of EWSJF: computed again when prompts have changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from controlplane.tuning import recent
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, params_of, queues_of, values_of
from scheduling.tuning.study import REFERENCE, drifted
from telemetry.models import LedgerEntry
from tenants import tuning
from tenants.models import Author, PolicyVersion, Pool, Trial, TrialState
from tenants.services import set_policy
from tenants.versions import Note, because

CUTS = "ewsjf"  # the policy that has queue boundaries
DRIFT = "repartition: prompts have changed"  # how the reason of a version begins that was made for it


def repartition(pool: Pool, settings: LoopSettings, automatic: bool, now: datetime) -> str:
    """Computes the queue boundaries where there are none yet, or where prompts have changed or the boundaries are old.
    Returns why; empty where nothing is to be done. Without ``automatic`` they are proposed only."""
    if pool.policy != CUTS:
        return ""
    since = now - timedelta(seconds=settings.window_s)
    prompts = recent.recent_lengths(pool.slug, since, most=settings.most_requests)
    if len(prompts) < settings.least_requests:
        return ""
    version = tuning.version_now(pool)
    if version.partition:
        seen = _prompts_of_cut(pool, version, settings)
        changed = drifted(seen, prompts, settings)
        if changed is not None:
            why = f"{DRIFT} (Kolmogorov-Smirnov {changed[0]:.2f}, p {changed[1]:.1g})"
        elif automatic and len(seen) >= REFERENCE and _age(version, now) >= timedelta(seconds=settings.recut_s):
            why = f"repartition: the queues are older than {settings.recut_s:g} s"
        else:
            return ""
    else:
        prompts = recent.lengths(pool.slug) or prompts  # the first queues follow the long run
        why = f"repartition: the first queues, from {len(prompts)} prompts"
    values = _values_now(pool, version)
    params = {**pool.policy_params, "partition": params_of(values, queues_of(values, prompts))["partition"]}
    if params["partition"] == version.partition:
        return ""
    if not automatic:
        return _propose(pool, version, params, values, why, now, settings)
    with because(Note(why, Author.OPTIMISER)):
        set_policy(actor=tuning.OPTIMISER, pool=pool, policy=pool.policy, params=params)
    tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason="the queue boundaries were recomputed")
    return why


def _prompts_of_cut(pool: Pool, version: PolicyVersion, settings: LoopSettings) -> list[int]:
    """Lengths of the prompts from which the serving boundaries were computed, as far as the ledger still has them."""
    cut = _version_that_cut(version)
    rows = LedgerEntry.objects.filter(
        pool=pool.slug,
        received_at__gte=cut.at - timedelta(seconds=settings.window_s),
        received_at__lt=cut.at,
        granted_at__isnull=False,
    )
    lengths = list(rows.order_by("-received_at").values_list("input_tokens", flat=True)[: settings.most_requests])
    return lengths if len(lengths) >= REFERENCE else recent.lengths(pool.slug)


def _version_that_cut(version: PolicyVersion) -> PolicyVersion:
    """The version that introduced the serving boundaries."""
    while version.parent is not None and version.parent.partition == version.partition:
        version = version.parent
    return version


def _age(version: PolicyVersion, now: datetime) -> timedelta:
    return now - _version_that_cut(version).at


def _propose(
    pool: Pool,
    base: PolicyVersion,
    params: dict[str, Any],
    values: dict[str, Any],
    why: str,
    now: datetime,
    settings: LoopSettings,
) -> str:
    if Trial.objects.filter(
        pool=pool, base=base, number=0, state=TrialState.PROPOSED, reason__startswith="rep"
    ).exists():
        return ""  # it was proposed before
    Trial.objects.create(
        pool=pool, at=now, study=now, number=0, base=base, values=values, params=params, reason=why[:300],
        window_from=now - timedelta(seconds=settings.window_s), window_until=now,
    )  # fmt: skip
    return why


def _values_now(pool: Pool, version: PolicyVersion) -> dict[str, float]:
    """The values of EWSJF's queues. How boundaries are computed is no parameter of the policy: the last kept trial has
    it."""
    values = values_of(SPACES[pool.policy], version.policy_params)
    kept = Trial.objects.filter(pool=pool, state=TrialState.PROMOTED, version__number__lte=version.number)
    last = kept.order_by("-version__number").first()
    if last is not None:
        for name in ("split_alpha", "max_queues"):
            value = last.values.get(f"{pool.policy}.{name}", last.values.get(name))
            values[name] = values[name] if value is None else value
    return values


def traffic_changed_at(pool: Pool) -> datetime | None:
    """From when on traffic is compared: since prompts changed, or new queue boundaries were advised."""
    return max((row.at for row in (_cut_for_drift(pool), _proposed(pool).first()) if row is not None), default=None)


def drifted_at(pool: Pool) -> datetime | None:
    """When prompts were last seen to have changed. The proposal of a pool's first boundaries does not count."""
    advised = _proposed(pool).filter(reason__startswith=DRIFT).first()
    return max((row.at for row in (_cut_for_drift(pool), advised) if row is not None), default=None)


def _cut_for_drift(pool: Pool) -> PolicyVersion | None:
    return PolicyVersion.objects.filter(pool=pool, author_kind=Author.OPTIMISER, reason__startswith=DRIFT).first()


def _proposed(pool: Pool) -> QuerySet[Trial]:
    """Proposals of boundaries (:func:`_propose`), the latest first."""
    return Trial.objects.filter(pool=pool, reward=None).exclude(values={})
