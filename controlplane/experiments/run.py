"""Runs one experiment: instance, catalog_of, keys, clients, samples, figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.experiments.clients import Drive, Sent
from controlplane.experiments.figures import summary
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.experiments.plan import OPEN_SLOTS, PRESET, Experiment, Outage, catalog_of
from controlplane.experiments.samples import Sample, sample_of

EVERY_S = 0.5  # between two looks at the live feed, which moves once a second
LOOK_S = 0.02  # between two looks for a replica that was started again: it takes much longer before it can serve
Tick = Callable[[float, Drive], None]  # seconds since the beginning, and what was sent so far


def run(experiment: Experiment, home: Path, *, admission: bool = True, seed: int = 0, on_tick: Tick) -> dict[str, Any]:
    """The experiment's figures as JSON, with the samples and requests they come from. Takes its ``length_s``."""
    settings = {
        "QUARTERMASTER_SIM_PRESET": PRESET,
        "QUARTERMASTER_SIM_REPLICAS": str(experiment.replicas),
        "QUARTERMASTER_SIM_SLOTS": str(experiment.slots // experiment.replicas),
    }
    with Instance(home, **settings) as instance:
        _set_up(instance, experiment, admission)
        keys = {member.name: instance.issue_key(member.name) for member in experiment.members}
        instance.await_live({member.name for member in experiment.members})
        drive = Drive(instance.url, instance.model, keys, experiment.crowds(admission=admission), seed)
        samples: list[Sample] = []
        asyncio.run(_drive(instance, experiment, drive, samples, on_tick))
    return result(experiment, drive.rows, samples, admission=admission, seed=seed)


def result(
    experiment: Experiment, rows: Sequence[Sent], samples: Sequence[Sample], *, admission: bool, seed: int
) -> dict[str, Any]:
    """All that is kept of a run, as JSON."""
    return {
        "experiment": experiment.name,
        "admission": "on" if admission else "off",
        "seed": seed,
        "headroom_slots": experiment.headroom_slots if admission else 0,
        **summary(experiment, rows, samples),
        "samples": [asdict(sample) for sample in samples],
        "requests": [asdict(row) for row in rows],
    }


def _set_up(instance: Instance, experiment: Experiment, admission: bool) -> None:
    instance.apply(*catalog_of(experiment, instance.pool, admission=admission))
    if admission:
        return
    with instance.api() as api:
        for number in range(experiment.replicas):
            answer = api.patch(f"/backends/engine-{number}/", json={"slots": OPEN_SLOTS}, follow_redirects=True)
            if answer.status_code != 200:
                raise ExperimentError(f"engine-{number} was not opened: {answer.status_code} {answer.text}")


async def _drive(
    instance: Instance, experiment: Experiment, drive: Drive, samples: list[Sample], on_tick: Tick
) -> None:
    drive.begin()
    sender = asyncio.create_task(drive.run())
    watcher = asyncio.create_task(_watch(instance, drive, samples, on_tick))
    breaker = asyncio.create_task(_break(instance, drive, experiment.outage))
    try:
        await sender
    finally:
        for task in (sender, watcher, breaker):
            task.cancel()
        await asyncio.gather(sender, watcher, breaker, return_exceptions=True)


async def _watch(instance: Instance, drive: Drive, samples: list[Sample], on_tick: Tick) -> None:
    seen = 0
    async with aiohttp.ClientSession(headers=instance.admin, timeout=aiohttp.ClientTimeout(total=5)) as session:
        while True:
            await asyncio.sleep(EVERY_S)
            on_tick(drive.now_s(), drive)
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{instance.url}/api/v1/live") as answer:
                    if answer.status != 200:
                        continue
                    pool = (await answer.json())["pools"].get(instance.pool)
                if pool is not None and pool["seq"] != seen:
                    seen = pool["seq"]
                    samples.append(sample_of(drive.now_s(), pool))


async def _break(instance: Instance, drive: Drive, outage: Outage | None) -> None:
    """Kills replicas: their connections break. What the supervisor starts in their place is held before it can serve,
    until the outage ends."""
    if outage is None:
        return
    await asyncio.sleep(outage.starts_s - drive.now_s())
    dead = {name: instance.pid(name) for name in outage.engines}
    for pid in dead.values():
        os.kill(pid, signal.SIGKILL)
    stopped: dict[str, int] = {}
    try:
        while len(stopped) < len(dead):
            await asyncio.sleep(LOOK_S)
            for name in dead.keys() - stopped.keys():
                pid = instance.pid(name)
                if pid not in (0, dead[name]):
                    os.kill(pid, signal.SIGSTOP)
                    stopped[name] = pid
        await asyncio.sleep(outage.ends_s - drive.now_s())
    finally:
        for pid in stopped.values():
            os.kill(pid, signal.SIGCONT)
