"""What the gateway costs: an instance as ``make up`` starts it before a simulated engine, against that engine bare.

    python -m tests.bench.bench_gateway [--seconds 4] [--repeats 3] [--json FILE]

The web process has one core for itself; the engine, Redis, the worker and the load generator share the others. Read
**CPU us** (the web process tree's own CPU clocks, divided by what it did meanwhile): it does not count the time that
other processes took from the core. Wall-clock figures mean something on a quiet machine only. How to read the tables:
``docs/results/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from scheduling.core.engine.step_time import load_preset
from tests.bench.load import Load, Seen, request
from tests.support.instance import ROOT, Up
from tests.support.ports import free_port

PRESET = "llama-3-8b-a100"
MODEL = "bench"
SPEED = 1000.0  # of the modelled GPU: the engine's own CPU is then its only limit
AT_ONCE = 1e-9  # ``slow`` of an engine whose steps take no time at all: its clock has milliseconds, answers need none
SLOTS = 1024  # the demo's standard tenant may use 40 % of them: more than any workload here
KV_TOKENS = 4_000_000
CHUNKS = 64  # tokens of a stream; its events are these, one for the role, one for usage and the end
EVENTS = CHUNKS + 3
STEP_S = 0.020  # between two tokens of a paced stream
PACED = 64
WORDS = "please tell me in a few words what a quartermaster does on a ship and why it matters to everyone on board"
SETTLE_S = 0.3


@dataclass(frozen=True)
class Workload:
    name: str
    connections: int
    tokens: int
    stream: bool = False
    paced: bool = False

    @property
    def events(self) -> int:
        return EVENTS if self.stream else 0

    def body(self) -> dict[str, object]:
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": WORDS}],
            "max_tokens": self.tokens,
            "ignore_eos": True,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


WORKLOADS = (
    Workload("1 connection, whole answers", 1, 16),
    Workload("32 connections, whole answers", 32, 16),
    Workload(f"16 connections, streams of {CHUNKS}", 16, CHUNKS, stream=True),
    Workload(f"{PACED} streams of {CHUNKS}, one token per 20 ms", PACED, CHUNKS, stream=True, paced=True),
)


@dataclass
class Row:
    """One measurement. Times are milliseconds, CPU is microseconds per answer (``_chunk``: per event)."""

    workload: str
    target: str  # "engine": bare; "product": through the gateway
    answers_s: float
    chunks_s: float
    p50_ms: float
    p99_ms: float
    first_p50_ms: float | None
    first_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    cpu_us: float  # of the measured server: web process tree, or engine
    cpu_us_chunk: float | None
    redis_us: float
    worker_us: float
    engine_us: float
    rss_mb: float
    own_share: float  # of one core: the measured server
    others_share: float  # of its core: everybody else
    errors: dict[str, int]

    @property
    def per_core_s(self) -> float:
        """Answers per second of one core's CPU time."""
        return 1e6 / self.cpu_us if self.cpu_us else 0.0


def tree(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_s(pids: list[int]) -> float:
    """CPU time of processes from their own clocks: exact, ended threads included."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def core_busy_s(core: int) -> float:
    """How long a core has worked since boot, for anybody."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            user, nice, system, _idle, _io, irq, soft, *_ = map(int, line.split()[1:])
            return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return 0.0


def pin(pid: int, cores: set[int]) -> None:
    """Binds a process tree, with the threads that it has."""
    for process in tree(pid):
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), cores)


class Stage:
    """The running parts, and which process is which."""

    def __init__(self, up: Up, engine: subprocess.Popen[bytes], engine_port: int, core: int) -> None:
        self.up = up
        self.engine_port = engine_port
        self.core = core
        self.key = up.demo()["keys"]["standard"]
        self.pids = {
            "engine": tree(engine.pid),
            "product": tree(up.pid("web")),
            "redis": tree(up.pid("redis")),
            "worker": tree(up.pid("worker")),
        }

    def pace(self, workload: Workload) -> None:
        """Whole answers come at once, streams token by token, or one token of each of ``PACED`` every ``STEP_S``."""
        slow = 1.0 if workload.stream else AT_ONCE
        if workload.paced:
            context = PACED * (len(WORDS.split()) + CHUNKS / 2)
            slow = SPEED * STEP_S / load_preset(PRESET).step_time.step(0, PACED, context)
        body = json.dumps({"slow": slow})
        http_ = http.client.HTTPConnection("127.0.0.1", self.engine_port, timeout=10)
        http_.request("POST", "/sim/fault", body)
        assert http_.getresponse().status == 200
        http_.close()

    def measure(self, workload: Workload, target: str, seconds: float) -> Row:
        port, key = (self.up.port, self.key) if target == "product" else (self.engine_port, "")
        load = Load(port, request(port, workload.body(), key), workload.connections, workload.events)
        marks: list[tuple[dict[str, float], float]] = []

        def mark() -> None:
            marks.append(({name: cpu_s(pids) for name, pids in self.pids.items()}, core_busy_s(self.core)))

        warm_s = CHUNKS * STEP_S + 0.5 if workload.paced else 0.7
        seen = uvloop.run(load.run(warm_s, seconds, mark))
        time.sleep(SETTLE_S)  # cancelled requests end before the next window
        (before, busy_before), (after, busy_after) = marks
        used = {name: after[name] - before[name] for name in before}
        return self._row(workload, target, seen, used, busy_after - busy_before)

    def _row(self, workload: Workload, target: str, seen: Seen, used: dict[str, float], busy_s: float) -> Row:
        # half-done streams count by their events
        answers = seen.events / workload.events if workload.stream else float(seen.answers)
        each = 1e6 / answers if answers else 0.0
        own = used[target]
        on_core = used["product"]
        return Row(
            workload=workload.name,
            target=target,
            answers_s=answers / seen.seconds,
            chunks_s=seen.events / seen.seconds,
            p50_ms=_ms(seen.whole, 50),
            p99_ms=_ms(seen.whole, 99),
            first_p50_ms=_ms(seen.first, 50) if workload.stream else None,
            first_p99_ms=_ms(seen.first, 99) if workload.stream else None,
            gap_p50_ms=_ms(seen.gaps, 50) if workload.stream else None,
            gap_p99_ms=_ms(seen.gaps, 99) if workload.stream else None,
            cpu_us=own * each,
            cpu_us_chunk=own * 1e6 / seen.events if workload.stream and seen.events else None,
            redis_us=used["redis"] * each,
            worker_us=used["worker"] * each,
            engine_us=used["engine"] * each,
            rss_mb=sum(psutil.Process(pid).memory_info().rss for pid in self.pids[target]) / 1e6,
            own_share=own / seen.seconds,
            others_share=max(0.0, busy_s - on_core) / seen.seconds,
            errors=dict(seen.errors),
        )


def _ms(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return float("nan")
    return statistics.quantiles(values, n=100)[percent - 1] * 1000


@contextmanager
def staged(folder: Path, instance: Callable[..., Up] = Up, cores: Sequence[int] = ()) -> Iterator[Stage]:
    """Engine and instance, on their cores. This process goes to the cores of everybody but the web process."""
    cores = cores or sorted(os.sched_getaffinity(0))
    own, rest = cores[-1], set(cores[:-1]) or set(cores)
    os.sched_setaffinity(0, rest)
    port = free_port()
    command = [
        *(sys.executable, "-m", "scheduling.engines.simulated", "--model", MODEL, "--preset", PRESET),
        *("--port", str(port), "--speed", str(SPEED), "--slots", str(SLOTS), "--kv-tokens", str(KV_TOKENS)),
    ]
    with (folder / "engine.out").open("wb") as output:
        engine = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    up = instance(folder / "home", ENGINE=f"http://127.0.0.1:{port}", QUARTERMASTER_ENGINE_SLOTS=str(SLOTS))
    try:
        up.start().wait_ready()
        pin(up.pid("web"), {own})
        yield Stage(up, engine, port, own)
    finally:
        up.stop()
        engine.terminate()
        engine.wait()
        os.sched_setaffinity(0, set(cores))


def run(seconds: float, repeats: int) -> list[Row]:
    """All workloads, bare and through the product by turns; every measurement is a row."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="qm-bench-") as folder, staged(Path(folder)) as stage:
        for workload in WORKLOADS[:3]:  # lazy imports, connections, caches
            stage.pace(workload)
            stage.measure(workload, "product", 1.0)
        for repeat in range(repeats):
            for workload in WORKLOADS:
                stage.pace(workload)
                for target in ("engine", "product") if repeat % 2 == 0 else ("product", "engine"):
                    rows.append(stage.measure(workload, target, seconds))
    return rows


def medians(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """One row per (workload, target): the median of each figure over the repeats, all errors together."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.workload, row.target), []).append(row)
    middle = {}
    for place, group in found.items():
        values: dict[str, Any] = {}
        for name, value in asdict(group[0]).items():
            if isinstance(value, float):
                values[name] = statistics.median(getattr(row, name) for row in group)
        errors: dict[str, int] = {}
        for row in group:
            for what, count in row.errors.items():
                errors[what] = errors.get(what, 0) + count
        middle[place] = Row(**(asdict(group[0]) | values | {"errors": errors}))
    return middle


def table(rows: list[Row]) -> str:
    """Markdown, as docs/results/benchmarks.md has it."""
    middle = medians(rows)
    spread = {place: sorted(r.cpu_us for r in rows if (r.workload, r.target) == place and r.cpu_us) for place in middle}
    lines = [
        "| workload | CPU us per answer (min-max) | per core-second | CPU us per chunk | answers/s | chunks/s | "
        "p50 / p99 ms | added p50 / p99 ms | added to the first chunk p50 / p99 ms | Redis us | worker us | RSS MB |",
        "|" + "---|" * 12,
    ]
    for workload in WORKLOADS:
        bare, ours = middle[workload.name, "engine"], middle[workload.name, "product"]
        low, *_, high = [*spread[workload.name, "product"], spread[workload.name, "product"][-1]]
        first = "-"
        if ours.first_p50_ms is not None and bare.first_p50_ms is not None:
            first = f"{ours.first_p50_ms - bare.first_p50_ms:.2f} / {ours.first_p99_ms - bare.first_p99_ms:.2f}"
        chunk = f"{ours.cpu_us_chunk:.1f}" if ours.cpu_us_chunk is not None else "-"
        lines.append(
            f"| {workload.name} | {ours.cpu_us:.0f} ({low:.0f}-{high:.0f}) | {ours.per_core_s:,.0f} | {chunk} | "
            f"{ours.answers_s:,.0f} | {f'{ours.chunks_s:,.0f}' if workload.stream else '-'} | "
            f"{ours.p50_ms:.2f} / {ours.p99_ms:.2f} | {ours.p50_ms - bare.p50_ms:.2f} / "
            f"{ours.p99_ms - bare.p99_ms:.2f} | {first} | {ours.redis_us:.0f} | {ours.worker_us:.0f} | "
            f"{ours.rss_mb:.0f} |"
        )
    lines += ["", "| bare engine | CPU us per answer | answers/s | chunks/s | p50 / p99 ms |", "|---|---|---|---|---|"]
    for workload in WORKLOADS:
        bare = middle[workload.name, "engine"]
        lines.append(
            f"| {workload.name} | {bare.cpu_us:.0f} | {bare.answers_s:,.0f} | "
            f"{f'{bare.chunks_s:,.0f}' if workload.stream else '-'} | {bare.p50_ms:.2f} / {bare.p99_ms:.2f} |"
        )
    others = max(row.others_share for row in rows if row.target == "product")
    lines += ["", f"Others took at most {others:.0%} of the web process's core in any window."]
    failed = {what: count for row in middle.values() for what, count in row.errors.items()}
    if failed:
        lines += ["", f"ERRORS: {failed}"]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    return {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every measurement there")
    args = parser.parse_args()
    about = machine()
    rows = run(args.seconds, args.repeats)
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": about, "rows": [asdict(row) for row in rows]}, indent=1))
    silent = [f"{row.workload} ({row.target}): {row.errors}" for row in rows if not row.cpu_us]
    if silent:
        raise SystemExit("nothing was answered in " + "; ".join(silent))
    print(about)
    print(table(rows))


if __name__ == "__main__":
    main()
