"""Prefill credit where nobody sees a first token: clients that ask for whole answers, with and without it.

So many clients, each with one request at a time and a length of its own, saturate simulated replicas with prompts. The
same clients twice: the pool grants without prefill credit, then with the automatic one. What is compared is what the
engines did, and how many requests stood in their own queues, where no policy reaches them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from controlplane.experiments.clients import Crowd, Drive, Sent
from controlplane.experiments.credit import CREDITS
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.experiments.plan import Experiment, Member, Phase, catalog_of
from controlplane.experiments.policies import watch_engines
from scheduling.core.percentiles import nearest_rank

NAME: Final = "whole-answers"
CLIENTS: Final = 72
REPLICAS: Final = 2
PRESET: Final = "llama-3-8b-a100"
PROMPTS: Final = (200, 600, 1000, 2000, 4000, 7000)  # tokens; as many clients send each
LENGTH_S: Final = 60.0
LEARN_S: Final = 15.0  # of each half: not counted
Note = Callable[[str], None]


def experiment() -> Experiment:
    each = CLIENTS // len(PROMPTS)
    members = tuple(
        Member(
            f"whole-{tokens}",
            "spot",
            each,
            Crowd(f"whole-{tokens}", each, 0.0, 0, LENGTH_S, tokens, (8, 64), stream=False),
            ttlt_s=60.0,
            over_limit="wait",
        )
        for tokens in PROMPTS
    )
    title = f"{CLIENTS} clients that ask for whole answers, with and without prefill credit, on {REPLICAS} replicas"
    return Experiment(NAME, title, replicas=REPLICAS, members=members, phases=(Phase("all", 0, LENGTH_S),))


def run(home: Path, note: Note, *, seed: int = 0) -> dict[str, Any]:
    """Both halves' figures as JSON. Takes about two minutes and a half. Raises ExperimentError."""
    plan = experiment()
    report: dict[str, Any] = {"experiment": plan.name, "clients": CLIENTS, "replicas": REPLICAS, "preset": PRESET}
    settings = {"QUARTERMASTER_SIM_PRESET": PRESET, "QUARTERMASTER_SIM_REPLICAS": str(REPLICAS)}
    with Instance(home, **settings) as instance:
        instance.apply(*catalog_of(plan, instance.pool, admission=True))
        keys = {member.name: instance.issue_key(member.name) for member in plan.members}
        instance.await_live(set(keys))
        engines = [instance.engine_url(f"engine-{number}") for number in range(REPLICAS)]
        for name, credit in CREDITS.items():
            with instance.api() as api:
                answer = api.patch(f"/pools/{instance.pool}/", json={"prefill_credit": credit}, follow_redirects=True)
            if answer.status_code >= 400:
                raise ExperimentError(f"the pool's prefill credit was not set: {answer.status_code} {answer.text}")
            time.sleep(2.0)  # it is in force
            drive = Drive(instance.url, instance.model, keys, plan.crowds(admission=True), seed)
            report[name] = summary(drive.rows, asyncio.run(_drive(drive, engines)))
            note(f"credit {name}: {report[name]}")
    return report


async def _drive(drive: Drive, engines: Sequence[str]) -> list[float]:
    """Requests in the engines' own queues, from when the run has settled until clients leave."""
    drive.begin()
    sender = asyncio.create_task(drive.run())
    await asyncio.sleep(LEARN_S)
    waiting: list[float] = []
    watcher = asyncio.create_task(watch_engines(engines, waiting))
    try:
        await asyncio.sleep(LENGTH_S - LEARN_S)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    await sender
    return waiting


def summary(rows: Sequence[Sent], waiting: Sequence[float]) -> dict[str, Any]:
    """Of what ended after the run had settled: requests and prompt tokens a second, times [s], and what waited in an
    engine's own queue."""
    done = [row for row in rows if row.completed and LEARN_S <= row.done_s <= LENGTH_S]
    took = sorted(row.done_s - row.sent_s for row in done)
    span_s = LENGTH_S - LEARN_S
    return {
        "completed": len(done),
        "failed": sum(not row.completed for row in rows),
        "prompt_tokens_per_s": sum(int(row.entitlement.rpartition("-")[2]) for row in done) / span_s,
        "total_p50_s": nearest_rank(took, 0.5),
        "total_p95_s": nearest_rank(took, 0.95),
        "engine_waiting_mean": sum(waiting) / len(waiting) if waiting else None,
        "engine_waiting_p99": nearest_rank(sorted(waiting), 0.99),
    }
