"""Policies in front of four replicas, live over HTTP: traces, loads, policies, with and without prefill credit.

One instance of ``make up``'s kind serves every run, one after the other: its pool's policy and prefill credit are set,
a slice of the trace is sent at the load that was asked for, and everything is answered before the next run begins. Each
run's report is kept as soon as it ends; a run that is kept is not made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from controlplane.embedded.engines import step_tokens
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.lab import parity
from controlplane.replay.client import Progress, Replay, Sender
from controlplane.replay.instance import Instance as Client
from controlplane.replay.report import rows_as_json, summarise
from scheduling.core.engine.step_time import load_preset
from scheduling.core.percentiles import nearest_rank
from scheduling.engines import prometheus_text
from scheduling.simulator.compare import INSIDE, Case, config_of, rows_at_load
from scheduling.simulator.trace import TraceRequest

LOOK_S: Final = 0.5  # between two looks at the engines' own queues
LOOKS: Final = 10  # for requests that are not stored yet
SETTLE_S: Final = 5.0  # before a run: the policy is in force and engines are idle
SHARES: Final = dict(Case("", "").shares)  # of the tiers
TIERS: Final = tuple(SHARES)
CREDITS: Final = {"off": 0, "on": None}  # of the pool: none, and the automatic one
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One way to serve one slice of a trace."""

    trace: str  # file
    load: float  # of the replicas' capacity
    policy: str
    credit: str  # "on" or "off"
    from_minute: float
    minutes: float  # of real time
    replicas: int
    preset: str
    seed: int

    @property
    def key(self) -> str:
        return json.dumps({**asdict(self), "trace": self.name}, sort_keys=True)

    @property
    def name(self) -> str:
        return Path(self.trace).name.split(".")[0]

    def __str__(self) -> str:
        return f"{self.name} at {self.load:g}, {self.policy}, credit {self.credit}"


def rows_of(run: Run) -> list[TraceRequest]:
    """The slice as it is sent: arrivals from 0 on [s of real time]. Raises CompareError, TraceError, OSError."""
    case = Case(
        run.trace,
        "",
        replicas=run.replicas,
        preset=run.preset,
        from_minute=run.from_minute,
        load=run.load,
        token_budget=step_tokens(load_preset(run.preset)),
    )
    rows, _ = rows_at_load(case, config_of(case))
    begin = rows[0].arrival_s
    moved = (replace(row, arrival_s=row.arrival_s - begin) for row in rows)
    return [row for row in moved if row.arrival_s < 60.0 * run.minutes]


class Results:
    """A JSON file of runs that ended. What was interrupted is made again. ``reports``: a folder that is given each
    run's report with all of its requests, for `manage.py lab parity`."""

    def __init__(self, path: Path, reports: Path | None = None) -> None:
        self._path = path
        self._reports = reports
        self.runs: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                self.runs = {row["key"]: row for row in json.loads(path.read_text(encoding="utf-8"))["runs"]}
            except (ValueError, KeyError, TypeError):
                raise ExperimentError(f"{path} does not hold the runs of this experiment; name another file") from None

    def report(self, run: Run, report: dict[str, Any]) -> None:
        if self._reports is not None:
            name = f"{run.name}-{run.load:g}-{run.policy}-{run.credit}.json"
            (self._reports / name).write_text(json.dumps(report), encoding="utf-8")

    def add(self, run: Run, figures: dict[str, Any]) -> None:
        self.runs[run.key] = {"key": run.key, **asdict(run), "trace": run.name, **figures}
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps({"runs": list(self.runs.values())}, indent=1), encoding="utf-8")
        os.replace(new, self._path)


def perform(runs: Sequence[Run], home: Path, results: Results, note: Note, on_tick: Callable[[Progress], None]) -> None:
    """Makes the runs that ``results`` does not hold yet, each kept when it ends. Raises ExperimentError."""
    missing = [run for run in runs if run.key not in results.runs]
    if not missing:
        return
    settings = {
        "QUARTERMASTER_SIM_REPLICAS": str(missing[0].replicas),
        "QUARTERMASTER_SIM_PRESET": missing[0].preset,
    }
    with Instance(home, **settings) as instance:
        for number, run in enumerate(missing):
            note(f"{len(runs) - len(missing) + number + 1} of {len(runs)}: {run}")
            figures, report = asyncio.run(_one(instance, run, on_tick))
            results.report(run, report)
            results.add(run, figures)


async def _one(
    instance: Instance, run: Run, on_tick: Callable[[Progress], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run came to, and its report."""
    with instance.api() as api:
        path = f"/pools/{instance.pool}/"
        _expect(api.patch(path, json={"prefill_credit": CREDITS[run.credit]}, follow_redirects=True))
        _expect(api.post(f"{path}policy", json={"policy": run.policy, "params": {}}, follow_redirects=True))
    demo = instance.demo
    client = Client(instance.url, str(demo["admin"]["token"]))
    try:
        senders = [Sender(name, name, key, SHARES[name]) for name, key in demo["keys"].items() if name in SHARES]
        client.check_keys(senders, instance.model)
        targets, served_by = client.targets(), client.served_by(senders, instance.model)
        await asyncio.sleep(SETTLE_S)
        replay = Replay(instance.url, instance.model, senders, rows_of(run), seed=run.seed)
        waiting: list[float] = []
        engines = [instance.engine_url(f"engine-{number}") for number in range(run.replicas)]
        watcher = asyncio.create_task(watch_engines(engines, waiting))
        try:
            await replay.run(on_tick)
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        report = summarise(replay.rows, targets, replay.duration_s)
        served_by["turnaround_ms"] = client.turnaround_ms(instance.pool)
        report |= {"served_by": served_by, "requests": rows_as_json(replay.rows)}
        ended = {row.request_id for row in replay.rows if row.request_id}
        for _ in range(LOOKS):  # the last that ended is stored half a second later
            if ended <= (ledger := client.ledger(senders)).keys():
                break
            await asyncio.sleep(LOOK_S)
    finally:
        client.close()
    figures = {
        "tiers": {name: _of_tier(row) for name, row in report["tiers"].items()},
        "tokens_per_s": report["total"]["tokens_per_s"],
        "sent": report["total"]["sent"],
        "completed": report["total"]["completed"],
        "late_p99_s": report["total"]["late_s"]["p99"],
        "in_ledger": sum(row.request_id in ledger for row in replay.rows),
        "engine_waiting_mean": sum(waiting) / len(waiting) if waiting else None,
        "engine_waiting_p99": nearest_rank(waiting, 0.99),
        "lab": _lab(report, run),
    }
    return figures, report


def _of_tier(row: dict[str, Any]) -> dict[str, Any]:
    share = row["slo_attainment"]
    return {
        "sent": row["sent"],
        "in_time": None if share is None else 100.0 * share,
        "refused": sum(row["refused"].values()),
        "failed": sum(row["failed"].values()),
        "ttft_s": row["ttft_s"],
        "queue_s": row["queue_s"],
    }


def _lab(report: dict[str, Any], run: Run) -> dict[str, Any]:
    """The same requests in the lab, with the policy in front of the same replicas, and inside each of them."""
    setup = parity.Setup(run.preset, CREDITS[run.credit], engine_order="priority")
    in_front, inside = parity.compare(report, setup), parity.compare(report, replace(setup, where=INSIDE))
    return {
        "tiers": _shares(in_front),
        "ttft_s": {line.tier: line.simulated_ttft_s for line in in_front.lines[1:]},  # p50, p95
        "tokens_per_s": in_front.simulated_tokens_per_s,
        "live_tokens_per_s": in_front.live_tokens_per_s,
        "engine_waiting_p99": in_front.waiting_p99,
        "inside": {"tiers": _shares(inside), "tokens_per_s": inside.simulated_tokens_per_s},
    }


def _shares(in_front: parity.Parity) -> dict[str, float]:
    return {line.tier: line.simulated for line in in_front.lines[1:]}


async def watch_engines(engines: Iterable[str], waiting: list[float]) -> None:
    """``vllm:num_requests_waiting`` of every engine."""
    async with httpx.AsyncClient(timeout=5.0) as client:
        while True:
            for engine in engines:
                with contextlib.suppress(httpx.HTTPError):
                    page = (await client.get(f"{engine}/metrics")).text
                    waiting.extend(prometheus_text.samples(page, "vllm:num_requests_waiting"))
            await asyncio.sleep(LOOK_S)


def _expect(answer: httpx.Response) -> None:
    if answer.status_code >= 400:
        raise ExperimentError(f"{answer.request.url.path}: {answer.status_code} {answer.text[:300]}")


# --- the page

HEAD: Final = """# Policies in front of replicas, live

Each row is one run over HTTP against one instance with simulated engines (`--scheduling-policy priority`). Three
figures in a cell are: live / the same requests in the lab with the policy in front of the same replicas / the same
requests in the lab with the policy inside each engine, which this product does not do. Tier columns: the share of
requests that met the tier's SLO [%], of those that were not refused. TTFT: live / in the lab, in front. Waiting:
`vllm:num_requests_waiting` of an engine, live, read twice a second. Tokens/s are those of prompts and answers, from
a tenth of the time in which requests were sent to its end. In the lab, the delay from a first token to the
next grant is the one that the leader measured during the run (5 ms where it measured none), the automatic credit
follows the product's rule, and true lengths are known in both places. More lab results: [front.md](front.md).
"""


def page(runs: Iterable[dict[str, Any]], command: str, machine: str, day: str) -> str:
    """The runs as a page of docs/results."""
    runs = list(runs)
    parts = [HEAD]
    for trace, load in dict.fromkeys((run["trace"], run["load"]) for run in runs):
        mine = [run for run in runs if (run["trace"], run["load"]) == (trace, load)]
        tiers = [tier for tier in TIERS if any(tier in run["tiers"] for run in mine)]
        first_tokens = [f"{tiers[0]} TTFT {share} s" for share in ("p50", "p95")]
        head = ["policy", "credit", *tiers, *first_tokens, "refused", "tokens/s while sending", "waiting mean / p99"]
        lines = [head, ["---"] * len(head)]
        for run in mine:
            lab, first = run["lab"], run["tiers"][tiers[0]]["ttft_s"]
            inside = lab["inside"]
            shares = [
                _cell(run["tiers"].get(tier, {}).get("in_time"), lab["tiers"].get(tier), inside["tiers"].get(tier))
                for tier in tiers
            ]
            speeds = _cell(lab["live_tokens_per_s"], lab["tokens_per_s"], inside["tokens_per_s"], digits=0)
            refused = str(sum(tier["refused"] for tier in run["tiers"].values()))
            queued = _cell(run["engine_waiting_mean"], run["engine_waiting_p99"])
            simulated = lab.get("ttft_s", {}).get(tiers[0], (None, None))  # runs that are kept may be older
            times = [
                _cell(first[share], of_lab, digits=2) for share, of_lab in zip(("p50", "p95"), simulated, strict=True)
            ]
            lines.append([run["policy"], run["credit"], *shares, *times, refused, speeds, queued])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        one = mine[0]
        parts.append(
            f"## {trace} at {load:g} of capacity\n\n{one['replicas']} x {one['preset']}, {one['minutes']:g} minutes "
            f"from minute {one['from_minute']:g} of the trace on.\n\n{table}\n"
        )
    parts.append(f"Made on {day} on {machine} by\n\n```\n{command}\n```\n")
    return "\n".join(parts)


def _cell(*values: float | None, digits: int = 1) -> str:
    return " / ".join("-" if value is None else f"{value:.{digits}f}" for value in values)
