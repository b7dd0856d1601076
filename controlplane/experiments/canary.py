"""The strategic loop's guard rails on a live instance: poison, a canary on an engine that grows slow, a killed worker.

Four slots that short and long prompts share, in order of arrival at first. Then

1. somebody proposes parameters under which long prompts starve: the replay has to reject them;
2. somebody proposes short prompts first: the replay lets it pass, it is started, and the engine is made slower. The
   guard rails have to take it back within its interval, and every request meanwhile has to end with a reason;
3. it is started once more, and the worker that watches it is killed: the trial has to be aborted, and what served
   before has to serve.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from controlplane.experiments.clients import Crowd, Drive, Sent
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.experiments.plan import Experiment, Member, Phase, catalog_of
from scheduling.core.percentiles import nearest_rank

INTERVAL_S = 60.0
SLOW = 4.0  # times as long for every step
LOOK_S = 0.25
ATTEMPTS = 5  # to get the good candidate past the replay: it is better by little, and needs traffic that shows it
LONG = 1500  # tokens of a long prompt; short ones have 64
BASE: Final = {"partition": "1-9000"}  # one queue: in order of arrival
QUEUES: Final = {"partition": "1-300,301-9000"}
GOOD: Final = {**QUEUES, "urgency": 0.01, "urgency_slope": 10.0}  # the longer, the more its wait counts
POISON: Final = {**QUEUES, "urgency": 0.01, "urgency_slope": -10.0, "base": 100.0}
SETTINGS: Final = {"interval_s": INTERVAL_S, "window_s": 600, "least_requests": 200, "most_requests": 600,
                   "starvation_s": 2.0}  # fmt: skip

CANARY: Final = Experiment(
    "canary",
    "A poisoned candidate, a canary on an engine that grows slow, and a worker killed in mid-trial",
    replicas=1,
    members=(
        Member("chat", "spot", 200, Crowd("chat", 1, 1 / 3.9, 0, 1e9, 64, (16, 48), open_loop=True, even=False),
               ttft_s=1.0, over_limit="wait"),
        Member("docs", "spot", 200, Crowd("docs", 1, 1 / 1.2, 0, 1e9, LONG, (32, 64), open_loop=True, even=False),
               ttft_s=8.0, over_limit="wait"),
    ),
    phases=(Phase("all", 0, 600),),
    slots=4,
    policy="ewsjf",
)  # fmt: skip
Note = Callable[[str], None]


def run(home: Path, note: Note, *, seed: int = 0) -> dict[str, Any]:
    """What happened, as JSON. Takes about five minutes."""
    settings = {"QUARTERMASTER_SIM_REPLICAS": "1", "QUARTERMASTER_SIM_SLOTS": str(CANARY.slots)}
    with Instance(home, **settings) as instance:
        instance.apply(*catalog_of(CANARY, instance.pool, admission=True))
        keys = {member.name: instance.issue_key(member.name) for member in CANARY.members}
        instance.await_live(set(keys))
        drive = Drive(instance.url, instance.model, keys, CANARY.crowds(admission=True), seed)
        return asyncio.run(_Play(instance, drive, note).run())


class _Play:
    def __init__(self, instance: Instance, drive: Drive, note: Note) -> None:
        self._instance, self._drive, self._note = instance, drive, note
        self._report: dict[str, Any] = {"experiment": CANARY.name, "interval_s": INTERVAL_S}
        url = f"{instance.url}/api/v1/pools/{instance.pool}/"
        self._api = httpx.AsyncClient(base_url=url, headers=instance.admin, timeout=30, follow_redirects=True)

    async def run(self) -> dict[str, Any]:
        self._drive.begin()
        sender = asyncio.create_task(self._drive.run())
        try:
            async with self._api:
                await self._ask("POST", "policy", {"policy": "ewsjf", "params": BASE})
                await self._ask("PUT", "tuning", {"mode": "off", "settings": SETTINGS})
                await self._poison()
                await self._slow_engine()
                await self._killed_worker()
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return self._report

    # --- the three acts

    async def _poison(self) -> None:
        trial = await self._propose(POISON, "long prompts go last, however long they wait")
        begun = self._drive.now_s()
        ended = await self._until(trial, lambda row: row["state"] != "proposed" or bool(row["gate"]), 400)
        self._report["poison"] = {"state": ended["state"], "reason": ended["reason"], "serving": await self._params()}
        self._note(f"poison: {ended['state']} after {self._drive.now_s() - begun:.0f} s: {ended['reason']}")

    async def _slow_engine(self) -> None:
        trial = await self._pass(GOOD, "short prompts first")
        await self._ask("POST", f"trials/{trial}/start", None)
        begun = self._drive.now_s()
        await self._fault(slow=SLOW)
        self._note(f"canary started, the engine is {SLOW:g} times slower")
        ended = await self._until(trial, lambda row: row["state"] != "canary", 3 * INTERVAL_S)
        over = self._drive.now_s()
        await self._fault(slow=1.0)
        serving = await self._params()
        self._note(f"{ended['state']} after {over - begun:.0f} s: {ended['reason']}")
        await self._drained(begun, over)
        self._report["slow engine"] = {
            "state": ended["state"],
            "reason": ended["reason"],
            "after_s": over - begun,
            "serving": serving,
            "requests": _outcomes([row for row in self._drive.rows if begun <= row.sent_s < over]),
        }

    async def _killed_worker(self) -> None:
        await asyncio.sleep(30)  # what the slow engine left behind is over
        trial = await self._propose(GOOD, "once more")
        await self._ask("POST", f"trials/{trial}/start", None)
        begun = self._drive.now_s()
        await self._until(trial, lambda row: bool(row["guard"]) or row["state"] != "canary", INTERVAL_S)
        os.kill(self._instance.leader_pid(), signal.SIGKILL)
        killed = self._drive.now_s()
        self._note("the process that led and watched the canary was killed")
        ended = await self._until(trial, lambda row: row["state"] != "canary", 3 * INTERVAL_S)
        over = self._drive.now_s()
        self._note(f"{ended['state']} {over - killed:.0f} s after the kill: {ended['reason']}")
        await asyncio.sleep(5)
        await self._drained(begun, over)
        self._report["killed worker"] = {
            "state": ended["state"],
            "reason": ended["reason"],
            "after_s": over - killed,
            "serving": await self._params(),
            "requests": _outcomes([row for row in self._drive.rows if begun <= row.sent_s < over]),
        }

    # --- how

    async def _pass(self, params: dict[str, Any], reason: str) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            trial = await self._propose(params, reason)
            row = await self._until(trial, lambda row: bool(row["gate"]) or row["state"] != "proposed", 400)
            self._note(f"the replay of the good candidate: {row['state']}: {row['reason']}")
            if row["state"] == "proposed":
                self._report["good candidate"] = {"state": row["state"], "reason": row["reason"], "attempt": attempt}
                return trial
            await asyncio.sleep(30)  # for other traffic
        raise ExperimentError(f"the replay rejected the good candidate {ATTEMPTS} times: {row['reason']}")

    async def _propose(self, params: dict[str, Any], reason: str) -> int:
        return int((await self._ask("POST", "trials", {"params": params, "reason": reason}))["id"])

    async def _until(self, trial: int, true: Callable[[dict[str, Any]], bool], limit_s: float) -> dict[str, Any]:
        end = self._drive.now_s() + limit_s
        while self._drive.now_s() < end:
            row = await self._ask("GET", f"trials/{trial}", None)
            if true(row):
                return row
            await asyncio.sleep(LOOK_S)
        raise ExperimentError(f"after {limit_s:g} s trial {trial} is still {row['state']}: {row['reason']}")

    async def _drained(self, since_s: float, until_s: float) -> None:
        """Waits for the answers to what was sent meanwhile."""
        end = self._drive.now_s() + 120
        while self._drive.now_s() < end:
            if all(row.done_s for row in self._drive.rows if since_s <= row.sent_s < until_s):
                return
            await asyncio.sleep(LOOK_S)

    async def _params(self) -> dict[str, Any]:
        """Of the version that serves."""
        rows = (await self._ask("GET", "versions", None))["results"]
        now = next(row for row in rows if row["serving"])
        return {"version": now["number"], "restores": now["restores"], "params": now["policy_params"]}

    async def _fault(self, **faults: float) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            (await client.post(f"{self._instance.engine_url('engine-0')}/sim/fault", json=faults)).raise_for_status()

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        answer = await self._api.request(method, path, json=body)
        if answer.status_code >= 400:
            raise ExperimentError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        result: dict[str, Any] = answer.json()
        return result


def _outcomes(rows: Sequence[Sent]) -> dict[str, Any]:
    """How each request ended for its client, by entitlement: in time, late, or the reason it was given."""
    outcomes: dict[str, Any] = {}
    for member in CANARY.members:
        mine = [row for row in rows if row.entitlement == member.name]
        ends = Counter(_end(row, member.ttft_s) for row in mine)
        waits = sorted(row.queue_s for row in mine if row.queue_s is not None)
        outcomes[member.name] = {"sent": len(mine), **ends, "wait_p95_s": nearest_rank(waits, 0.95)}
    return outcomes


def _end(row: Sent, ttft_s: float) -> str:
    if row.completed:
        return "in time" if row.ttft_s is not None and row.ttft_s <= ttft_s else "late"
    return row.reason or "no answer"
