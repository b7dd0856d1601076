"""What the plugin does to tokens/s beyond an engine's capacity: vLLM's priority order and the plugin on the CPU engine,
in turns, so that both see the same machine.

    python -m tests.bench.bench_plugin_overload --home DIR [--before TREE] [--rounds 3]

``--home``: where vLLM for the CPU is installed, or will be (``manage.py experiment gpu`` keeps it there, too).
``--before``: another checkout, whose plugin is run beside this one's. Prints a line for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from controlplane.embedded.vllm_cpu import serve
from controlplane.experiments import gpu_engine
from controlplane.experiments.gpu_engine import WATCHING, Engine, Server
from controlplane.experiments.gpu_load import Promises, drive, plan, summary

RATE, SECONDS = 70.0, 6.0  # of Azure code lengths: about 140,000 tokens/s; the engine computes 50,000 to 65,000
WARM = (10.0, 6.0)  # rate and seconds, in which step times are learned
LOADS = {
    "promises that steps of 2,048 tokens break": Promises(1.0, 0.03, 6.0),
    "promises that hardly any step can keep": Promises(0.5, 0.01, 3.0),
}


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plugin: Mapping[str, Any]
    tree: Path


def kinds(before: Path | None) -> list[Kind]:
    found = [Kind("priority", WATCHING, gpu_engine.ROOT), Kind("plugin", {}, gpu_engine.ROOT)]
    return found if before is None else [*found, Kind("plugin before", {}, before.absolute())]


def run(engine: Engine, kind: Kind, rate: float, seconds: float, promises: Promises, seed: int) -> dict[str, Any]:
    asked = plan("azure-code", rate, seconds, promises, serve.MAX_MODEL_LEN, seed)
    decides = kind.plugin is not WATCHING
    return summary(asyncio.run(drive(engine.url, serve.MODEL_NAME, asked, rank=not decides, digest=decides)), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    home = args.home.absolute()
    server = Server("", serve.MODEL_NAME, serve.SLOTS, serve.MAX_MODEL_LEN, home)
    with ExitStack() as stack:
        engines = []
        for number, kind in enumerate(kinds(args.before)):
            with patch.object(gpu_engine, "ROOT", kind.tree):  # where it finds the plugin
                engine = stack.enter_context(Engine(server, "priority", kind.plugin, home / f"overload-{number}.log"))
            run(engine, kind, *WARM, Promises(), 9)
            engines.append((kind, engine))
        print("| load | round | engine | tokens/s | in time: all, q1, q2, q3 [%] | load average |\n|" + "---|" * 6)
        for seed in range(args.rounds):
            for load, promises in LOADS.items():
                for kind, engine in engines:
                    told = run(engine, kind, RATE, SECONDS, promises, seed)
                    shares = [told["in_time"], *(tier["in_time"] for tier in told["tiers"].values())]
                    print(
                        f"| {load} | {seed} | {kind.name} | {told['tokens_per_s']:,.0f} | "
                        f"{', '.join(f'{100 * share:.0f}' for share in shares)} | {os.getloadavg()[0]:.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
