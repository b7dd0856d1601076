"""How well step times are predicted that were fitted to a real vLLM's own steps (CPU, tiny model).

    chrt -f 2 python -m tests.bench.bench_step_times [--seconds 30]

Long prompts beside chats, on an engine with the plugin; then a fit to every 1,024 steps of its log, with the median
error over the half that was held out, and over the 256 steps that followed. ``make test-vllm`` installs what it needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

from scheduling.core.engine.calibration import LoggedStep, fit_steps
from scheduling.core.engine.step_time import StepTime
from scheduling.core.types import Slo
from scheduling.engines.vllm_plugin.learning import EVERY, KEPT
from tests.support.plugged_vllm import MODEL, plugged
from tests.support.plugin_load import CHAT, drive

engine_of = contextmanager(plugged)


def errors(model: StepTime, steps: Sequence[LoggedStep]) -> list[float]:
    predicted = [model.step(step.prefill, step.decodes, step.kv_dec, step.pp) for step in steps]
    return [abs(guess - step.seconds) / step.seconds for guess, step in zip(predicted, steps, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        engine_of(Path(folder), {"log_steps": 1_000_000, "record": ""}) as engine,
    ):
        before = os.getloadavg()[0]
        chat = replace(CHAT, slo=Slo(ttft_s=1.0, tbt_s=0.08))
        asyncio.run(drive(engine.url, MODEL, args.seconds, long=6, chats_per_s=8, chat=chat))
        names = ("prefill", "decodes", "kv_dec", "pp", "seconds")
        steps = [LoggedStep(*(row[name] for name in names)) for row in engine.rows("step")]
    held, prompts, later = list[float](), list[float](), list[float]()
    for at in range(0, len(steps) - KEPT - EVERY + 1, EVERY):
        fit = fit_steps(steps[at : at + KEPT])
        if fit is None:
            continue
        following = steps[at + KEPT : at + KEPT + EVERY]
        held.append(fit.error)
        later.append(median(errors(fit.step_time, following)))
        if any(step.prefill for step in following):
            prompts.append(median(errors(fit.step_time, [step for step in following if step.prefill])))
    print(f"{date.today()} load {before:.0f} to {os.getloadavg()[0]:.0f}: {len(steps)} steps, {len(held)} fits")
    for name, found in (("held out", held), ("next 256", later), ("... with prompt tokens", prompts)):
        print(f"{name}: median {median(found):.1%}, least {min(found):.1%}, most {max(found):.1%}")


if __name__ == "__main__":
    main()
