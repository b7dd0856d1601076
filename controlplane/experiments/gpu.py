"""``manage.py experiment gpu``: vLLM's orders, our plugin in it, ours in front, and both, on one engine.

A run is cut into parts: a mode, a workload and a rate. Each part that ended is kept in the ``--json`` file, and a call
ends before its time is over and says how many parts are left: the same command goes on. Engines and instance are
started and ended by it; modes that need the same engine share it. Every engine has the plugin inside; where vLLM
decides it only watches and logs.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from controlplane.experiments.gpu_engine import WATCHING, Engine, Server, logged
from controlplane.experiments.gpu_load import DRAIN_S, Answered, Promises, drive, plan, recorded, summary, tiers
from controlplane.experiments.instance import ExperimentError, Instance
from controlplane.lab.front import machine
from controlplane.lab.plot import Panel, Series, draw
from scheduling.core.engine.calibration import StepFit, fit_steps
from scheduling.core.engine.step_time import StepTime
from scheduling.core.percentiles import nearest_rank
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import late_share, served
from scheduling.tuning.traffic import Serving, Traffic

NAME: Final = "gpu"
FCFS, PRIORITY, INSIDE, FRONT, PLUGIN = "fcfs", "priority", "plugin", "front", "front+plugin"
CREDITED = "front+plugin with credit"
SHOWN: Final = 400  # steps of a part that are kept, for the drawing
PART_S: Final = 8.0  # beside load and drain: a pause, the log, the lab
WARM_S: Final = 4.0  # of load before an engine's first part: kernels are compiled, the plugin learns step times
START_S: Final = 45.0  # what an engine, or an instance, is taken to need until one was seen
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Mode:
    """Which engine, and whether our gateway stands in front of it as a pool of what kind."""

    name: str
    order: str  # vLLM's
    decides: bool  # the plugin
    kind: str = ""  # of the pool; empty: clients ask the engine
    credit: int | None = None  # prefill credit in front; None: automatic
    lab: str = ""  # the policy with which the lab stands for it; empty: it has no such mode

    @property
    def engine(self) -> tuple[str, bool]:
        """What tells its engine from those of other modes: vLLM's order, and whether the plugin decides."""
        return self.order, self.decides


MODES: Final = (
    Mode(FCFS, "fcfs", False, lab="fifo"),
    Mode(PRIORITY, "priority", False, lab="priority"),
    Mode(FRONT, "priority", False, "vllm", lab="unified"),
    Mode(INSIDE, "priority", True),  # its clients tell it what a gateway would
    Mode(PLUGIN, "priority", True, "vllm_plugin"),
    Mode(CREDITED, "priority", True, "vllm_plugin", credit=1024),  # what an automatic one begins with
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What must be the same in all calls of a run."""

    serve: str
    model: str
    slots: int
    max_model_len: int
    workloads: tuple[str, ...]
    rates: tuple[float, ...]
    seconds: float
    promises: Promises
    seed: int
    modes: tuple[str, ...] = tuple(mode.name for mode in MODES)

    def parts(self) -> list[tuple[Mode, str, float]]:
        """Those of one engine follow each other."""
        modes = [mode for mode in MODES if mode.name in self.modes]
        return [(mode, workload, rate) for mode in modes for workload in self.workloads for rate in self.rates]


def key_of(mode: str, workload: str, rate: float) -> str:
    return f"{mode} {workload} {rate:g}/s"


class RunFile:
    """The file of a run. Raises ExperimentError where it is of another one."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self._path = path
        plain = json.loads(json.dumps(asdict(setup)))
        self.report: dict[str, Any] = {"experiment": NAME, "machine": machine(), "setup": plain, "parts": {}}
        if path.exists() and path.stat().st_size:
            before = json.loads(path.read_text(encoding="utf-8"))
            if before.get("setup") != plain:
                raise ExperimentError(f"{path} is of another setup; name another file, or repeat its options")
            self.report = before

    @property
    def parts(self) -> dict[str, Any]:
        return dict(self.report["parts"])

    def add(self, key: str, part: dict[str, Any]) -> None:
        self.report["parts"][key] = part
        draft = self._path.with_name(self._path.name + ".draft")
        draft.write_text(json.dumps(self.report, indent=1), encoding="utf-8")
        draft.replace(self._path)


def run(home: Path, server: Server, setup: Setup, path: Path, minutes: float, note: Note) -> int:
    """Parts until the time would be over. Returns how many are left. Raises ExperimentError."""
    began, starts = time.monotonic(), START_S
    kept = RunFile(path, setup)
    left = [part for part in setup.parts() if key_of(part[0].name, *part[1:]) not in kept.parts]
    each = setup.seconds + DRAIN_S + PART_S

    def needed() -> float:
        """Seconds for the next part, beside the start of an engine."""
        return each + (START_S if left[0][0].kind else 0.0)

    def fits(seconds: float) -> bool:
        return time.monotonic() - began + seconds <= 60.0 * minutes

    if left and (first := starts + needed()) > 60.0 * minutes:
        raise ExperimentError(
            f"a part takes up to {first:.0f} s with the start of its engine, and a call has {60 * minutes:.0f}"
            f" s: set --call-minutes to {math.ceil(first / 6) / 10:g} or more"
        )
    while left and fits(starts + needed()):
        wanted, at = left[0][0].engine, time.monotonic()
        order, decides = wanted
        log = home / f"engine-{order}{'-plugin' if decides else ''}.log"
        home.mkdir(parents=True, exist_ok=True)
        with Engine(server, order, {} if decides else WATCHING, log) as engine:
            _warm(setup, engine, server.model)
            starts, before = max(starts, time.monotonic() - at), len(left)
            while left and left[0][0].engine == wanted and fits(needed()):
                mode = left[0][0]
                with serving(home, server, setup, mode, engine) as (url, model, keys):
                    while left and left[0][0] == mode and fits(each):
                        _, workload, rate = left.pop(0)
                        part = _part(setup, mode, workload, rate, url, model, keys, engine)
                        key = key_of(mode.name, workload, rate)
                        kept.add(key, part)
                        note(f"{key}: {part['in_time']:.1%} in time, {len(left)} parts left")
        if len(left) == before:
            break  # it took longer to start than any before it
    return len(left)


def _warm(setup: Setup, engine: Engine, model: str) -> None:
    """Load that no part counts."""
    asked = plan(setup.workloads[0], max(setup.rates), WARM_S, setup.promises, setup.max_model_len, setup.seed, "warm")
    asyncio.run(drive(engine.url, model, asked))


@contextmanager
def serving(
    home: Path, server: Server, setup: Setup, mode: Mode, engine: Engine
) -> Iterator[tuple[str, str, Mapping[str, str] | None]]:
    """What stands in front of the engine in this mode: where to send, the model's name, keys by tier."""
    if not mode.kind:
        yield engine.url, server.model, None
        return
    options = {"ENGINE": engine.url, "QUARTERMASTER_ENGINE_SLOTS": str(setup.slots)}
    with Instance(home / f"instance-{mode.name}", **options) as instance:
        instance.apply(*catalog(instance.pool, setup, mode))
        keys = {tier.name: instance.issue_key(tier.name) for tier in tiers(setup.promises)}
        instance.await_live(set(keys))
        time.sleep(2.0)  # every process has read it
        yield instance.url, instance.model, keys


def catalog(pool: str, setup: Setup, mode: Mode) -> list[dict[str, Any]]:
    """The catalog of the experiment: three tiers with their SLOs, each of its own service class, since relegation goes
    by class. Each has a third of the slots as its baseline and may exceed it: the engine is what is scarce."""

    def item(what: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"kind": what, "metadata": {"name": name}, "spec": spec}

    items = [item("TokenPool", pool, {"engine": mode.kind, "policy": {"name": "unified", "params": {}},
                                      "limits": {"headroomSlots": 0}, "prefillCredit": mode.credit})]  # fmt: skip
    for name in ("acme", "globex", "initech"):  # the demo's own tenants stand aside
        items.append(item("TokenEntitlement", f"{name}-{pool}", {"validUntil": "2000-01-01T00:00:00Z"}))
    for tier in tiers(setup.promises):
        slo = tier.slo
        promise = {"ttltSeconds": slo.ttlt_s} if slo.ttft_s is None else {"ttftSeconds": slo.ttft_s,
                                                                        "tbtSeconds": slo.tbt_s}  # fmt: skip
        items += [
            item("Slo", f"{tier.name}-slo", promise),
            item("Tier", f"{tier.name}-tier", {
                "serviceClass": tier.service_class.value, "rank": tier.rank, "weight": 1, "slo": f"{tier.name}-slo",
                "overLimit": "wait", "queueLimit": 10_000, "maxWaitSeconds": 3600,
            }),
            item("Tenant", tier.name, {"description": "experiment gpu"}),
            item("TokenEntitlement", tier.name, {
                "tenantRef": {"name": tier.name}, "poolRef": {"name": pool}, "qos": {"tier": f"{tier.name}-tier"},
                "resources": {"concurrency": max(1, setup.slots // 3)},
            }),
        ]  # fmt: skip
    return items


def _part(
    setup: Setup, mode: Mode, workload: str, rate: float, url: str, model: str, keys: Mapping[str, str] | None,
    engine: Engine,
) -> dict[str, Any]:  # fmt: skip
    # Tokens of its own in each mode: what another left in the engine's prefix cache is of no use.
    asked = plan(workload, rate, setup.seconds, setup.promises, setup.max_model_len, setup.seed, mode.name)
    before = max((row.get("number", 0) for row in engine.steps() if row["kind"] == "step"), default=0)
    load_before = os.getloadavg()[0]
    alone = keys is None
    rows = asyncio.run(
        drive(
            url, model, asked, keys=keys, rank=alone and mode.name == PRIORITY, digest=alone and mode.decides
        )
    )  # fmt: skip
    log = [row for row in engine.steps() if row["kind"] != "step" or row["number"] > before]
    steps = [row for row in log if row["kind"] == "step"]
    fit = fit_steps(logged(steps))
    part = summary(rows, setup.seconds) | {"load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)]}
    part["steps"] = described(steps)
    part["fit"] = None if fit is None else asdict(fit.step_time) | {"error": fit.error, "steps": fit.steps}
    part["lab"] = None if fit is None or not mode.lab else lab(setup, mode, rows, fit)
    time.sleep(1.0)
    return part


def described(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How long steps took [s], how large chunks were, and some of them over time: time [s], prompt tokens allowed and
    computed, answers written, seconds."""
    if not steps:
        return {"count": 0, "over_time": []}
    seconds, chunks = [s["seconds"] for s in steps], [s["prefill"] for s in steps if s["prefill"]]
    first, every = steps[0]["ended_s"], max(1, -(-len(steps) // SHOWN))
    return {
        "count": len(steps),
        "p50_s": nearest_rank(seconds, 0.5),
        "p95_s": nearest_rank(seconds, 0.95),
        "p99_s": nearest_rank(seconds, 0.99),
        "chunk_p50": nearest_rank(chunks, 0.5),
        "chunk_p95": nearest_rank(chunks, 0.95),
        "over_time": [
            [round(s["ended_s"] - first, 3), s["budget"], s["prefill"], s["decodes"], round(s["seconds"], 5)]
            for s in steps[::every]
        ],
    }


def lab(setup: Setup, mode: Mode, rows: Sequence[Answered], fit: StepFit) -> dict[str, Any]:
    """The same requests in the lab, with step times as this part's own log says: of whom is each tier's share in time,
    and when came first tokens [s]."""
    credit = None if mode.kind else 0  # without a gateway nothing is held back
    step: StepTime = fit.step_time
    replica = Replica(step, setup.slots, 10**7, 2048, credit, "fifo" if mode.order == "fcfs" else "priority")
    traffic = Traffic(recorded(rows), tiers(setup.promises), (replica,))
    outcomes = traffic.serve(Serving(mode.lab))
    firsts = [outcome.ttft_s for outcome in served(outcomes)]
    names = sorted({outcome.tier for outcome in outcomes})
    return {
        "in_time": 1.0 - late_share(outcomes),
        "tiers": {name: 1.0 - late_share([o for o in outcomes if o.tier == name]) for name in names},
        "ttft_p50_s": nearest_rank(firsts, 0.5),
        "ttft_p95_s": nearest_rank(firsts, 0.95),
    }


# --- what is shown


def drawings(report: Mapping[str, Any]) -> dict[str, str]:
    """SVG by name (no ending)."""
    parts, setup = report["parts"], report["setup"]
    rates = tuple(setup["rates"])
    names = [*setup["modes"]]
    images: dict[str, str] = {}

    def figure(mode: str, workload: str, rate: float, name: str) -> float:
        value = parts.get(key_of(mode, workload, rate), {}).get(name)
        return float("nan") if value is None else float(value)

    panels = [
        Panel(f"{workload}: {title}", unit, rates, tuple(
            Series(mode, tuple(figure(mode, workload, rate, name) for rate in rates)) for mode in names
        ), x_label="requests/s")
        for workload in setup["workloads"]
        for title, unit, name in (("in time", "share", "in_time"), ("goodput", "1/s", "goodput_per_s"),
                                  ("throughput", "tokens/s", "tokens_per_s"))
    ]  # fmt: skip
    images["gpu-attainment"] = draw("Requests in time, goodput and tokens/s", panels, columns=3)
    over = []
    for workload in setup["workloads"]:
        for mode in names:
            rows = parts.get(key_of(mode, workload, rates[-1]), {}).get("steps", {}).get("over_time") or []
            if rows := [row for row in rows if row[2]]:
                at = tuple(float(row[0]) for row in rows)
                lines = (("allowed", 1), ("computed", 2))
                series = tuple(Series(name, tuple(float(row[n]) for row in rows)) for name, n in lines)
                title = f"{mode}, {workload} at {rates[-1]:g}/s"
                over.append(Panel(title, "prompt tokens of a step", at, series, x_label="s"))
    if over:
        images["gpu-chunks"] = draw("Chunk sizes over time", over)
    return images


def page(report: Mapping[str, Any], command: str, day: str) -> str:
    """The run as a page of docs/results."""
    setup, parts = report["setup"], report["parts"]
    toy = not setup["serve"]
    engine = "vLLM's CPU build with a tiny random model" if toy else f"`{setup['serve']}`"
    promises = "; ".join(
        f"{t.name}: " + (f"first token {t.slo.ttft_s:g} s, then {t.slo.tbt_s * 1000:g} ms a token" if t.slo.tbt_s
                         else f"whole answer {t.slo.ttlt_s:g} s")
        for t in tiers(Promises(**setup["promises"]))
    )  # fmt: skip
    lines = ["# vLLM alone, with the plugin, ours in front, and both", ""]
    if toy:
        lines += [
            "**Not a GPU.** No GPU could be had. These are the CPU build's figures at toy size: they show that the run",
            "works, and say nothing about a GPU. Clients, instance and engine share the machine with other work:",
            "compare rows of like load only. A fit's error is that of such a machine.",
            "",
        ]
    lines += [
        f"{engine}, {report['machine']}, {day}. `{command}`",
        "",
        f"Open-loop requests for {setup['seconds']:g} s, the same in every mode, a third of each tier ({promises}).",
        f"Lengths are those of QoServe's Table 2, cut at {setup['max_model_len']:,} tokens. In time: by QoServe's",
        f"deadline of every token; what is refused, fails or has not ended {DRAIN_S:g} s after the last arrival is",
        "late.",
        "Step times are fitted to the part's own log, error over held-out steps; *lab* is the same requests simulated",
        "with them (the plugin's modes have none). *plugin*: clients tell the engine what a gateway would.",
        "",
    ]
    heads = [
        "", "in time: all, q1, q2, q3 [%]", "goodput [1/s]", "tokens/s", "first token q1 p50, p95 [s]",
        "step p50, p95 [ms]", "chunk p50, p95", "fit error [%]", "lab: in time [%]", "load",
    ]  # fmt: skip
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, part in parts.items():
        by_tier, steps, fit, simulated = part["tiers"], part["steps"], part["fit"], part["lab"]
        shares = [part["in_time"], *(by_tier.get(name, {}).get("in_time") for name in ("q1", "q2", "q3"))]
        first = by_tier.get("q1", {})
        cells = [
            key,
            ", ".join(_cell(share, 100, 0) for share in shares),
            _cell(part["goodput_per_s"], 1, 1),
            _cell(part["tokens_per_s"], 1, 0),
            f"{_cell(first.get('ttft_p50_s'), 1, 2)}, {_cell(first.get('ttft_p95_s'), 1, 2)}",
            f"{_cell(steps.get('p50_s'), 1000, 1)}, {_cell(steps.get('p95_s'), 1000, 1)}",
            f"{_cell(steps.get('chunk_p50'), 1, 0)}, {_cell(steps.get('chunk_p95'), 1, 0)}",
            _cell(None if fit is None else fit["error"], 100, 1),
            _cell(None if simulated is None else simulated["in_time"], 100, 0),
            " to ".join(f"{load:g}" for load in part["load_average"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "![attainment](images/experiments/gpu-attainment.svg)", "",
              "![chunks](images/experiments/gpu-chunks.svg)", ""]  # fmt: skip
    return "\n".join(lines)


def _cell(value: float | None, times: float, digits: int) -> str:
    return "?" if value is None else f"{value * times:,.{digits}f}"
