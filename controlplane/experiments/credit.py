"""Prefill credit in front of an engine that already runs: do short questions wait behind other tenants' prompts?

One tenant keeps the engine full with long prompts, as many at once as it has slots; another asks short questions that
its tier answers first. The same clients twice: the pool grants without prefill credit, then with the automatic one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from controlplane.experiments.clients import Crowd, Drive, Sent
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.experiments.plan import Experiment, Member, Phase, catalog_of
from scheduling.core.percentiles import nearest_rank
from scheduling.engines.kinds import VLLM

LENGTH_S: Final = 60.0
LEARN_S: Final = 10.0  # of each half: not counted
CREDITS: Final = {"off": 0, "on": None}
Note = Callable[[str], None]


def experiment(slots: int, prompt_tokens: int) -> Experiment:
    """``slots``: long prompts at once. ``prompt_tokens``: of each."""
    chat = Crowd("chat", 1, 0.5, 0, LENGTH_S, 64, (4, 8), open_loop=True)
    docs = Crowd("docs", slots, 0.0, 0, LENGTH_S, prompt_tokens, (2, 4))
    return Experiment(
        "credit",
        "Short questions beside long prompts, with and without prefill credit, on engines that run",
        replicas=1,
        slots=slots,
        members=(
            Member("chat", "guaranteed", slots, chat, ttft_s=1.0),
            Member("docs", "spot", slots, docs, ttft_s=60.0, over_limit="wait"),
        ),
        phases=(Phase("all", 0, LENGTH_S),),
    )


def run(
    home: Path, engine: str, note: Note, *, slots: int, prompt_tokens: int, seed: int = 0, kind: str = VLLM
) -> dict[str, Any]:
    """What both halves' clients saw, as JSON. Takes about two minutes and a half. ``kind``: of the engine, such as one
    with our scheduler inside. Raises ExperimentError."""
    plan = experiment(slots, prompt_tokens)
    report: dict[str, Any] = {"experiment": plan.name, "slots": slots, "prompt_tokens": prompt_tokens, "engine": kind}
    with Instance(home, ENGINE=engine, QUARTERMASTER_ENGINE_SLOTS=str(slots)) as instance:
        instance.apply(*catalog_of(plan, instance.pool, admission=True))
        keys = {member.name: instance.issue_key(member.name) for member in plan.members}
        instance.await_live(set(keys))
        for name, credit in CREDITS.items():
            with instance.api() as api:
                settings = {"prefill_credit": credit, "engine": kind}
                answer = api.patch(f"/pools/{instance.pool}/", json=settings, follow_redirects=True)
            if answer.status_code >= 400:
                raise ExperimentError(
                    f"the pool's prefill credit and kind of engine were not set: {answer.status_code} {answer.text}"
                )
            time.sleep(2.0)  # it is in force
            drive = Drive(instance.url, instance.model, keys, plan.crowds(admission=True), seed)
            drive.begin()
            asyncio.run(drive.run())
            report[name] = {member.name: summary(drive.rows, member.name) for member in plan.members}
            note(f"credit {name}: {report[name]}")
    return report


def summary(rows: Sequence[Sent], entitlement: str) -> dict[str, Any]:
    """Of what was sent after the engine filled up: counts, first tokens [s], completed requests/s."""
    mine = [row for row in rows if row.entitlement == entitlement and row.sent_s >= LEARN_S]
    firsts = [row.ttft_s for row in mine if row.completed and row.ttft_s is not None]
    ends = [row.done_s for row in rows if row.entitlement == entitlement and row.completed]
    done = [end for end in ends if LEARN_S <= end <= LENGTH_S]
    return {
        "sent": len(mine),
        "completed": sum(row.completed for row in mine),
        "ttft_p50_s": nearest_rank(firsts, 0.5),
        "ttft_p95_s": nearest_rank(firsts, 0.95),
        "per_s": len(done) / (LENGTH_S - LEARN_S),
    }
