"""What a request and a decision cost in two checkouts, measured by turns in one run.

    python -m tests.bench.turns OLD NEW [--repeats 5] [--seconds 2] [--real-time] [--only gateway|decisions]

Two runs of different minutes cannot be compared on a shared machine; windows that alternate can. OLD and NEW are
folders (``git worktree add ../old REVISION``); both run in the environment of this checkout, before one kind of engine
and load generator (this checkout's). Read medians and ranges: what the ranges share is no difference. With
``--real-time`` the measured processes have a real-time priority during their windows, which needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.bench_gateway import WORKLOADS, Row, Stage, machine, staged, tree
from tests.support.instance import ROOT
from tests.support.older_tree import UpOf

WAITING = 16_000
STEPS = 2_000
DECISIONS = (  # ordering, modifiers, tenants
    ("priority", "-", 20),
    ("priority", "-", 1_000),
    ("priority", "fair+bands", 20),
    ("priority", "fair+bands", 1_000),
    ("unified", "-", 20),
    ("unified", "-", 1_000),
)


@contextmanager
def real_time(wanted: bool, *pids: int) -> Iterator[None]:
    """The processes of these trees before everything else on the machine, while it lasts."""
    threads = [int(t) for pid in pids for one in tree(pid) for t in os.listdir(f"/proc/{one}/task")] if wanted else []
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
        yield
    finally:
        for thread in threads:
            if Path(f"/proc/{thread}").exists():
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def by_turns(repeats: int, trees: int) -> Iterator[int]:
    """Old, new, new, old, ...: what drifts during the run meets both alike."""
    for repeat in range(repeats):
        yield from range(trees) if repeat % 2 == 0 else reversed(range(trees))


def gateway(trees: Sequence[Path], repeats: int, seconds: float, priority: bool) -> dict[str, list[list[Row]]]:
    """Workload -> the windows of each tree. Both instances run all the time; one of them is asked."""
    rows: dict[str, list[list[Row]]] = {workload.name: [[] for _ in trees] for workload in WORKLOADS}
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="qm-turns-") as folder, ExitStack() as open_stages:
        stages: list[Stage] = []
        for number, root in enumerate(trees):
            own = Path(folder) / str(number)
            own.mkdir()
            stages.append(open_stages.enter_context(staged(own, partial(UpOf, root), cores)))
        for stage in stages:
            for workload in WORKLOADS[:3]:  # lazy imports, connections, caches
                stage.pace(workload)
                stage.measure(workload, "product", 1.0)
        for workload in WORKLOADS:
            for which in by_turns(repeats, len(trees)):
                stage = stages[which]
                stage.pace(workload)
                measured = {pids[0] for pids in stage.pids.values()} | {os.getpid()}
                with real_time(priority, *measured):
                    rows[workload.name][which].append(stage.measure(workload, "product", seconds))
    return rows


def decisions(trees: Sequence[Path], repeats: int, priority: bool) -> dict[str, list[list[dict[str, float]]]]:
    """Composition and tenants -> the p50 and p99 of each tree, run by run."""
    # -P: of this checkout, the process has this one file and no module
    command = [sys.executable, "-P", str(ROOT / "tests" / "bench" / "decisions.py")]
    sides = [
        subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for root in trees
    ]
    found: dict[str, list[list[dict[str, float]]]] = {}
    try:
        for ordering, modifiers, tenants in DECISIONS:
            name = f"`{ordering}`" + ("" if modifiers == "-" else f" inside `{modifiers}`") + f", {tenants:,} tenants"
            found[name] = [[] for _ in trees]
            for which in by_turns(repeats, len(trees)):
                side = sides[which]
                assert side.stdin is not None
                assert side.stdout is not None
                with real_time(priority, side.pid):
                    side.stdin.write(f"{ordering} {modifiers} {tenants} {WAITING} {STEPS}\n")
                    side.stdin.flush()
                    answer = side.stdout.readline()
                if not answer:
                    raise SystemExit(f"{trees[which]}: the decision benchmark ended; its message stands above")
                found[name][which].append(json.loads(answer))
    finally:
        for side in sides:
            side.kill()
            side.wait()
    return found


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def tables(
    names: Sequence[str],
    requests: dict[str, list[list[Row]]],
    steps: dict[str, list[list[dict[str, float]]]],
) -> Iterator[str]:
    """Markdown, as ``docs/results/structure.md`` has it."""
    if requests:
        yield "| CPU us per answer | " + " | ".join(f"web process, {n} | Redis, {n}" for n in names) + " |"
        yield "|---" * (1 + 2 * len(names)) + "|"
        for workload, sides in requests.items():
            cells = [f"{spread([r.cpu_us for r in s])} | {spread([r.redis_us for r in s])}" for s in sides]
            yield f"| {workload} | " + " | ".join(cells) + " |"
        failed = {workload: [r.errors for s in sides for r in s if r.errors] for workload, sides in requests.items()}
        if any(failed.values()):
            yield f"\nERRORS: { {k: v for k, v in failed.items() if v} }"
        yield ""
    if steps:
        yield "| CPU us of a step | " + " | ".join(f"p50, {n} | p99, {n}" for n in names) + " |"
        yield "|---" * (1 + 2 * len(names)) + "|"
        for what, runs in steps.items():
            cells = [f"{spread([r['p50_us'] for r in s])} | {spread([r['p99_us'] for r in s])}" for s in runs]
            yield f"| {what} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the checkout before")
    parser.add_argument("new", type=Path, help="the checkout after")
    parser.add_argument("--repeats", type=int, default=5, help="windows of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a gateway's window")
    parser.add_argument("--real-time", action="store_true", help="measure under a real-time priority (needs root)")
    parser.add_argument("--only", choices=("gateway", "decisions"))
    args = parser.parse_args()
    trees = [args.old.resolve(), args.new.resolve()]
    for folder in trees:
        if not (folder / "controlplane" / "embedded").is_dir():
            raise SystemExit(f"{folder} is no checkout of this product")
    about: dict[str, Any] = machine() | {"real_time": args.real_time, "repeats": args.repeats}
    steps = decisions(trees, args.repeats, args.real_time) if args.only != "gateway" else {}
    rows = gateway(trees, args.repeats, args.seconds, args.real_time) if args.only != "decisions" else {}
    print(about | {"until": time.strftime("%H:%M"), "load_after": os.getloadavg()[0]})
    print("\n".join(tables(("old", "new"), rows, steps)))


if __name__ == "__main__":
    main()
