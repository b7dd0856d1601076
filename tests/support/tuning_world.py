"""Traffic, trials and canaries of one pool, for tests of the loop that tunes it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime

from django.utils import timezone

from telemetry.ledger import writer
from telemetry.models import Calibration
from tenants import tuning
from tenants.audit import Actor
from tenants.models import Pool, Trial
from tests.support.telemetry_world import record

ANN = Actor("ann", "cli")
FAST = {"trials": 3, "pairs": 3, "least_requests": 100, "most_requests": 600, "interval_s": 60, "window_s": 3600}


def traffic(
    count: int, until: datetime, *, wait: Callable[[int], float] = lambda n: 0.5, met: float = 1.0, first: int = 0,
    rate: float = 8.0, long_share: float = 0.2,
) -> None:  # fmt: skip
    """A mix of short and long prompts that ended by ``until``, as the ledger has it."""
    draw, rows, at = random.Random(first), [], until.timestamp() - count / rate
    for n in range(first, first + count):
        at += 1 / rate
        given = draw.randint(2000, 4000) if draw.random() < long_share else draw.randint(20, 200)
        out, waited = draw.randint(20, 60), wait(n)
        rows.append(
            record(
                n, pool="llama", tier="premium", tenant="acme", entitlement="", input_tokens=given, output_tokens=out,
                output_tokens_est=40.0, output_bound=64, received_s=at, queued_s=at, granted_s=at + waited,
                first_token_s=at + waited + 0.1, done_s=at + waited + 1.0, slo_met=draw.random() < met,
            )
        )  # fmt: skip
    writer.write(rows)


def tuned(pool: Pool, mode: str = "automatic", **settings: float) -> Pool:
    tuning.set_tuning(actor=ANN, pool=pool, mode=mode, settings={**FAST, **settings})
    pool.refresh_from_db()
    return pool


def trusted(pool: Pool, at: datetime | None = None, **worth: float) -> None:
    """The pool's simulated figures were compared with live ones just now, and are near, or as far as ``worth`` says."""
    trust = {"requests": 900, "figures": {}, "worst": 0.04, "points": 1.0, "trusted": True, **worth}
    step = {"t0": 0.015, "a": 8e-5, "b": 1e-4, "c": 1e-7, "e": 0.0, "knee": 0.0, "a2": 0.0}
    Calibration.objects.create(
        pool=pool.slug, at=at or timezone.now(), step_time=step, overhead_s=0.01, error=0.1, requests=900, trust=trust
    )


def candidate(pool: Pool, **params: float) -> Trial:
    """A proposed trial, as a study leaves it in advise mode."""
    now = timezone.now()
    return Trial.objects.create(
        pool=pool, at=now, study=now, number=1, base=tuning.version_now(pool), values={}, reward=0.9,
        params={**pool.policy_params, **params}, window_from=now, window_until=now, gate={"passed": True},
    )  # fmt: skip


def canary(pool: Pool, **params: float) -> Trial:
    return tuning.start_canary(actor=ANN, trial=candidate(pool, **(params or {"urgency": 7.0})), reason="try it")
