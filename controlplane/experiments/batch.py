"""A large batch beside people who talk: is each result there once, whatever is killed, and what do people notice?

An interactive tier asks on its own pace, first alone, then beside the batch, then alone again. On the way, half a
minute beside the batch takes turns with half a minute in which the batch's tenant is paused, and with one in which it
is paused and other processes take as much of the processors as the batch did: so what else the machine does is the same
with and without, and the machine's share can be told from the engines'. After each such round nobody may ask anything
for a while, as at night: then the batch runs as fast as the replicas can. The executor of the batch, a web process and
the worker are killed on the way. What was measured and done is kept in a file after every slice, so that a run
which was stopped goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from controlplane.experiments.clients import Crowd, Drive, Sent
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.experiments.processors import between, burners, children, taken
from scheduling.core.percentiles import nearest_rank

NAME: Final = "batch"
SLICE_S: Final = 30.0
ALONE_SLICES: Final = 4  # before the batch, and as many after it
CHATS_PER_S: Final = 4.0
CHAT: Final = "premium"
NIGHT: Final = "standard"
ENDPOINT: Final = "/v1/chat/completions"
ENDED: Final = ("completed", "failed", "expired", "cancelled")
KILLED: Final = ("executor", "web", "worker")
AFTER_KILL_S: Final = 15.0  # a request sent so soon after a kill is counted apart
BESIDE, PAUSED, MACHINE = "beside", "paused", "machine"
TURNS: Final = (BESIDE, PAUSED, BESIDE, MACHINE)  # while the batch has lines left
SETTLE_S: Final = 4.0  # lines that run come to their end
LOOK_S: Final = 1.0
PATIENCE_S: Final = 120.0  # for an answer of processes that may be starting again
SIDES: Final = ("before", BESIDE, PAUSED, MACHINE, "after")
Note = Callable[[str], None]


@dataclass(slots=True)
class Slice:
    """Half a minute of the interactive tier."""

    side: str  # one of ``SIDES``
    load: float  # of the machine, when it began
    requests: list[list[Any]] = field(default_factory=list)  # [TTFT [s] or null, reason, soon after a kill]
    took_s: float = 0.0
    lines: int = 0  # that got their result in it
    processors: dict[str, float] = field(default_factory=dict)  # seconds of them, by process

    def add(self, rows: Iterable[Sent], kills_s: Iterable[float]) -> None:
        kills = list(kills_s)
        for row in rows:
            # one that was open when something was killed counts as soon after it, too
            soon = any(row.sent_s - AFTER_KILL_S <= at <= row.done_s for at in kills)
            self.requests.append([row.ttft_s if row.completed else None, row.reason, soon])


@dataclass(slots=True)
class RunState:
    """All that a run has come to, as its file keeps it."""

    lines: int
    seed: int
    batch_id: str = ""
    kills: list[str] = field(default_factory=list)  # what was killed, at how many results
    starts: int = 0
    took_s: float = 0.0  # of the batch, over all starts
    nights: int = 0  # stretches without anybody
    slices: list[Slice] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, lines: int, seed: int) -> RunState:
        """What the file says, or a run that begins. Raises ExperimentError where it is of another run."""
        if not path.exists():
            return cls(lines, seed)
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["slices"] = [Slice(**one) for one in stored["slices"]]
        kept = cls(**stored)
        if (kept.lines, kept.seed) != (lines, seed):
            raise ExperimentError(
                f"{path} is of a run with {kept.lines} lines and seed {kept.seed}: give the same, or another --home"
            )
        return kept

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    def count(self, side: str) -> int:
        return sum(one.side == side for one in self.slices)


def line(number: int, model: str) -> dict[str, Any]:
    """One line of the input. Lengths differ, so that lines do not end together."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Describe item {number} in a few words."}],
        "max_tokens": 4 + number % 13,
    }
    return {"custom_id": f"item-{number}", "method": "POST", "url": ENDPOINT, "body": body}


def reconciled(custom_ids: Iterable[str], statuses: Iterable[int | None], lines: int) -> dict[str, int]:
    """Results against lines: how many there are, and how many are missing, double, foreign, or no answer."""
    counts = Counter(custom_ids)
    expected = {f"item-{number}" for number in range(lines)}
    return {
        "lines": lines,
        "results": counts.total(),
        "missing": len(expected - counts.keys()),
        "double": sum(n - 1 for n in counts.values()),
        "foreign": len(counts.keys() - expected),
        "not_answered": sum(status != 200 for status in statuses),
    }


def processors(slices: Iterable[Slice], side: str) -> dict[str, float]:
    """How many processors each process took on average in the slices of a side."""
    mine = [one for one in slices if one.side == side and one.took_s > 0]
    seconds = sum(one.took_s for one in mine)
    names = sorted({name for one in mine for name in one.processors})
    return {name: sum(one.processors.get(name, 0.0) for one in mine) / seconds for name in names}


def of_the_batch(slices: Sequence[Slice]) -> dict[str, float]:
    """How many processors each process took for the batch: beside it, by what it takes while it is paused."""
    beside, paused = processors(slices, BESIDE), processors(slices, PAUSED)
    return {name: max(0.0, share - paused.get(name, 0.0)) for name, share in beside.items()} if paused else {}


def figures(slices: Iterable[Slice]) -> dict[str, Any]:
    """By side: requests, how many failed, and first tokens [s]; of those soon after a kill apart. ``ratio``: p95 beside
    the batch by p95 of the half minutes in between in which it was paused, kills left out; ``ratio_machine``: likewise,
    of those in which only the processors were taken; ``ratio_all``: by all without the batch."""
    by_side: dict[str, Any] = {}
    chosen = list(slices)
    for side in (*SIDES, "without"):
        mine = [s for s in chosen if s.side == side or (side == "without" and s.side not in (BESIDE, MACHINE))]
        for name, after_kill in ((side, False), (f"{side}_kills", True)):
            rows = [row for s in mine for row in s.requests if row[2] == after_kill]
            if after_kill and not rows:
                continue
            firsts = [row[0] for row in rows if row[0] is not None]
            by_side[name] = {
                "requests": len(rows),
                "failed": sum(bool(row[1]) for row in rows),
                "ttft_p50_s": nearest_rank(firsts, 0.5),
                "ttft_p95_s": nearest_rank(firsts, 0.95),
                "ttft_p99_s": nearest_rank(firsts, 0.99),
                "load_average": [round(min(s.load for s in mine), 1), round(max(s.load for s in mine), 1)]
                if mine else None,
            }  # fmt: skip
    p95 = {side: by_side[side]["ttft_p95_s"] for side in (*SIDES, "without")}
    for name, side, base in (("ratio", BESIDE, PAUSED), ("ratio_machine", MACHINE, PAUSED),
                             ("ratio_all", BESIDE, "without")):  # fmt: skip
        by_side[name] = p95[side] / p95[base] if p95[side] is not None and p95[base] else None
    lines_per_s = sum(s.lines for s in chosen) / (sum(s.took_s for s in chosen if s.side == BESIDE) or 1.0)
    by_side["processors"] = {side: _rounded(processors(chosen, side)) for side in SIDES}
    cost = of_the_batch(chosen) if lines_per_s else {}
    by_side["cpu_ms_per_line"] = {name: round(share / lines_per_s * 1000, 3) for name, share in cost.items()}
    return by_side


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {name: round(share, 4) for name, share in shares.items()}


def run(
    home: Path, note: Note, *, lines: int, minutes: float, seed: int = 0, kills: tuple[str, ...] = KILLED,
    slice_s: float = SLICE_S, alone: int = ALONE_SLICES, nobody_s: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Runs the experiment, or goes on with it; the results so far, as JSON. ``complete``: everything is done.
    ``minutes``: it stops after these, and the next call with the same ``home`` goes on. ``nobody_s``: pause without
    people after each round. Raises ExperimentError."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "run.json"
    kept = RunState.read(path, lines, seed)
    ends = time.monotonic() + minutes * 60
    kept.starts += 1
    complete = False
    with Instance(home / "instance", QUARTERMASTER_BATCH_LINES=str(max(lines, 100_000))) as instance:
        asyncio.run(_Run(instance, kept, path, note, ends, kills, slice_s, alone, nobody_s).whole())
        complete = bool(kept.results) and kept.count("after") >= alone
    return {
        "experiment": NAME, "lines": lines, "seed": seed, "complete": complete, "starts": kept.starts,
        "batch": kept.batch_id, "took_s": round(kept.took_s, 1),
        "lines_per_s": round(lines / kept.took_s, 1) if kept.results and kept.took_s else None,
        "killed": kept.kills, "results": kept.results or None, **figures(kept.slices),
    }  # fmt: skip


class _Run:
    """One start of the experiment on an instance that is ready."""

    def __init__(
        self, instance: Instance, kept: RunState, path: Path, note: Note, ends: float, kills: tuple[str, ...],
        slice_s: float, alone: int, nobody_s: float,
    ) -> None:  # fmt: skip
        self._instance, self._kept, self._path, self._note, self._ends = instance, kept, path, note, ends
        self._kills, self._slice_s, self._alone, self._nobody_s = kills, slice_s, alone, nobody_s
        self._keys = {tier: str(instance.demo["keys"][tier]) for tier in (CHAT, NIGHT)}
        # one for all that is asked on the way: a new one takes 25 ms of the loop in which first tokens are measured
        self._http = httpx.AsyncClient(base_url=instance.url, timeout=60)

    def _late(self) -> bool:
        return time.monotonic() >= self._ends

    async def whole(self) -> None:
        async with self._http:
            await self._sides()

    async def _sides(self) -> None:
        kept = self._kept
        await self._slice("")  # the first requests of fresh processes are not counted
        while not self._late() and not kept.batch_id and kept.count("before") < self._alone:
            await self._slice("before")
        if not kept.batch_id and not self._late():
            await self._begin()
        await self._pause(False)  # a run that was stopped may have left it so
        while not self._late() and not kept.results and kept.batch_id:
            turns = sum(kept.count(one) for one in set(TURNS))
            side = TURNS[turns % len(TURNS)]
            if self._nobody_s and turns // len(TURNS) > kept.nights:
                await self._night()
            elif side == BESIDE:
                await self._slice(BESIDE)
            else:
                await self._without(side)
            if (batch := await self._batch())["status"] in ENDED:
                kept.results = await self._reconcile(batch)
                self._keep(f"the batch is {batch['status']}: {kept.results}")
        while not self._late() and kept.results and kept.count("after") < self._alone:
            await self._slice("after")

    async def _without(self, side: str) -> None:
        """Half a minute in which the batch is paused; for ``MACHINE`` others take the processors that it took."""
        await self._pause(True)
        await asyncio.sleep(SETTLE_S)
        shares = of_the_batch(self._kept.slices) if side == MACHINE else {}
        with burners(shares):
            await self._slice(side)
        await self._pause(False)

    async def _night(self) -> None:
        """Nobody asks anything."""
        began, before, done = time.monotonic(), await self._done(), 0
        while (took_s := time.monotonic() - began) < self._nobody_s and not self._late():
            await asyncio.sleep(LOOK_S)
            if (done := await self._done()) >= self._kept.lines:
                break
        self._kept.nights += 1
        self._kept.took_s += took_s
        rate = (done - before) / took_s
        self._keep(f"nobody there for {took_s:.0f} s: {done} of {self._kept.lines} lines, {rate:.1f} a second")

    def _keep(self, text: str) -> None:
        self._kept.write(self._path)
        self._note(text)

    async def _slice(self, side: str) -> None:
        """Half a minute of the interactive tier; ``side`` empty: not kept. Beside a batch, what is to be killed is;
        while there is one, its progress is asked for on each side."""
        crowd = Crowd(CHAT, 1, 1 / CHATS_PER_S, 0, self._slice_s, 48, (12, 20), open_loop=True, even=False)
        seed = self._kept.seed * 1_000_003 + len(self._kept.slices)
        drive = Drive(self._instance.url, self._instance.model, self._keys, (crowd,), seed)
        one = Slice(side, round(os.getloadavg()[0], 1))
        killed: list[float] = []
        lines_before = await self._done() if side == BESIDE else 0
        before = taken(self._instance)
        drive.begin()
        watch = asyncio.create_task(self._watch(drive, killed, side == BESIDE)) if side in TURNS else None
        try:
            await drive.run()
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        one.took_s = drive.now_s()
        one.processors = between(before, taken(self._instance))
        if not side:
            return
        if side == BESIDE:
            one.lines = await self._done() - lines_before
            self._kept.took_s += one.took_s
            if (await self._batch())["status"] in ENDED:  # it ended on the way: neither beside it nor without
                return
        one.add(drive.rows, killed)
        self._kept.slices.append(one)
        p95 = nearest_rank([row.ttft_s for row in drive.rows if row.ttft_s is not None], 0.95)
        text = f"{side}, load {one.load}: {len(one.requests)} requests, TTFT p95 {p95 and round(p95, 4)} s"
        if side == BESIDE:
            done, rate = lines_before + one.lines, one.lines / one.took_s
            left = (self._kept.lines - done) / rate * len(TURNS) / TURNS.count(BESIDE) / 60 if rate else None
            left = None if self._nobody_s else left  # mostly done in between
            text += f"; {done} of {self._kept.lines} lines, {rate:.1f} a second"
            text += "" if left is None else f", all in about {left:.0f} minutes"
        self._keep(text)

    async def _watch(self, drive: Drive, killed: list[float], kills: bool) -> None:
        """Asks how far the batch is, as its owner does, and kills what is next once it has got so far."""
        while True:
            done = await self._done()
            number = len(self._kept.kills)
            if (
                kills
                and number < len(self._kills)
                and done >= self._kept.lines * (number + 1) // (len(self._kills) + 1)
            ):
                name = self._kills[number]
                if kill(self._instance, name):
                    killed.append(drive.now_s())
                    self._kept.kills.append(f"{name} at {done}")
                    self._keep(f"killed {name} at {done} of {self._kept.lines} results")
            await asyncio.sleep(LOOK_S)

    async def _pause(self, pause: bool) -> None:
        """Pauses the batch's tenant, or lets it go on."""
        key = self._keys[NIGHT].removeprefix("qm-").partition(".")[0]
        headers = self._instance.admin
        tenant = (await self._asked("GET", f"/api/v1/keys/{key}", headers=headers)).json()["tenant"]
        path = f"/api/v1/tenants/{tenant}/{'pause' if pause else 'resume'}"
        await self._asked("POST", path, headers=headers, json={})

    async def _asked(self, method: str, path: str, **options: Any) -> httpx.Response:
        """An answer of processes that may be starting again; as the batch's owner, unless ``headers`` say otherwise.
        Raises ExperimentError."""
        end = time.monotonic() + PATIENCE_S
        error = ""
        options = {"headers": {"Authorization": f"Bearer {self._keys[NIGHT]}"}} | options
        while time.monotonic() < end:
            try:
                answer = await self._http.request(method, path, **options)
                if answer.status_code == 200:
                    return answer
                error = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            except httpx.HTTPError as problem:
                error = type(problem).__name__
            await asyncio.sleep(0.5)
        raise ExperimentError(f"{method} {path} was not answered: {error}. What was done is kept; start it again.")

    async def _begin(self) -> None:
        """Brings the file and creates the batch. One that was created before and not noted is found by its name."""
        name = f"lines-{self._kept.lines}-{self._kept.seed}"
        page = (await self._asked("GET", "/v1/batches", params={"limit": "100"})).json()
        earlier = [row["id"] for row in page["data"] if (row["metadata"] or {}).get("run") == name]
        if not earlier:
            rows = (json.dumps(line(n, self._instance.model)) for n in range(self._kept.lines))
            data = "\n".join(rows).encode()
            form = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", data)}}
            file = (await self._asked("POST", "/v1/files", **form)).json()
            body = {
                "input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "7d",
                "metadata": {"run": name},
            }  # fmt: skip
            earlier = [(await self._asked("POST", "/v1/batches", json=body)).json()["id"]]
        self._kept.batch_id = earlier[0]
        self._keep(f"batch {earlier[0]} of {self._kept.lines} lines")

    async def _batch(self) -> dict[str, Any]:
        batch: dict[str, Any] = (await self._asked("GET", f"/v1/batches/{self._kept.batch_id}")).json()
        return batch

    async def _done(self) -> int:
        """How many lines have their result."""
        counts = (await self._batch())["request_counts"]
        return int(counts["completed"] + counts["failed"])

    async def _reconcile(self, batch: dict[str, Any]) -> dict[str, int]:
        ids, statuses, tokens = list[str](), list[int | None](), 0
        for file_id in (batch["output_file_id"], batch["error_file_id"]):
            if not file_id:
                continue
            text = (await self._asked("GET", f"/v1/files/{file_id}/content")).text
            for row in map(json.loads, text.splitlines()):
                ids.append(row["custom_id"])
                answer = row["response"]
                statuses.append(answer and answer["status_code"])
                if answer and answer["status_code"] == 200:
                    tokens += answer["body"]["usage"]["completion_tokens"]
        result = reconciled(ids, statuses, self._kept.lines)
        result["output_tokens_of_results"] = tokens
        result["output_tokens_of_the_batch"] = batch["usage"]["output_tokens"] if batch.get("usage") else -1
        with self._instance.api() as api:
            entitlement = api.get(f"/keys/{self._keys[NIGHT].removeprefix('qm-').partition('.')[0]}").json()["opens"][0]
            answer = api.get("/usage", params={"group_by": "entitlement", "entitlement": entitlement})
        rows = answer.json()["rows"] if answer.status_code == 200 else []
        result["ledger_completed"] = sum(row["completed"] for row in rows)
        result["ran_again"] = result["ledger_completed"] - sum(status == 200 for status in statuses)
        return result


def kill(instance: Instance, name: str) -> bool:
    """SIGKILL to a process of the instance; ``executor``: the worker's processes of tasks, which it replaces. Whether
    there was one."""
    pid = instance.pid("worker" if name == "executor" else name)
    pids = children(pid) if name == "executor" else [pid]
    done = False
    for one in pids:
        with contextlib.suppress(ProcessLookupError):
            if one > 0:
                os.kill(one, signal.SIGKILL)
                done = True
    return done
