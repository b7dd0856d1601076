"""A person's draft, replayed on a window of traffic against what serves."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError

from controlplane.tuning import recent, replicas
from scheduling.core.policies.registry import PolicyError
from scheduling.tuning.gate import Gate
from scheduling.tuning.settings import LoopSettings
from tenants import tuning
from tenants.drafts import as_if
from tenants.models import Pool, Trial


def judge(pool: Pool, trial: Trial, settings: LoopSettings, since: datetime, until: datetime) -> dict[str, Any] | None:
    """What the replay says, as JSON; None without enough traffic. The pool's engines and limits are as they are now,
    and as they would be: the draft is made, read and taken back."""
    recording = recent.record(pool.slug, since, until, most=2 * settings.most_requests)
    before = replicas.as_traffic(pool, recording, most=settings.most_requests)
    if before is None or len(before.rows) < settings.least_requests:
        return None
    try:
        with as_if(tuning.OPTIMISER, pool, trial.setting or {"policy_params": trial.params}) as drafted:
            tiers = recent.tiers_of({tier.name for tier in recording.tiers})
            changed = replace(recording, tiers=tiers)
            after = replicas.as_traffic(drafted, changed, most=settings.most_requests)
            candidate = replicas.serving_of(drafted)
    except ValidationError as error:
        return _no(f"it does not fit any more: {' '.join(error.messages)}")
    if after is None:
        return _no("it leaves the pool without a backend")
    try:
        verdict = Gate(before, replicas.serving_of(pool), settings).judge(candidate, after)
    except PolicyError as error:
        return _no(f"invalid policy: {error}")
    return {**verdict.as_json(), "requests": len(before.rows)}


def _no(reason: str) -> dict[str, Any]:
    return {"passed": False, "hurts": True, "reason": reason}
