"""``curl -s HOST:PORT/steps | python -m scheduling.engines.vllm_plugin.fit``: the step-time model behind a log.

Prints the ``[step_time]`` table of a lab's preset (``scheduling/core/engine/presets``), with the error over the steps
that it was not fitted to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from scheduling.core.engine.calibration import LEAST_STEPS, LoggedStep, fit_steps
from scheduling.core.engine.step_time import UNITS

MAX_LINES = 1_000_000


def steps_of(lines: Iterable[str]) -> list[LoggedStep]:
    """The steps among a log's lines. Raises ``ValueError`` that names the line."""
    steps: list[LoggedStep] = []
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            raise ValueError(f"more than {MAX_LINES} lines")
        try:
            row = json.loads(line)
            if row["kind"] == "step":
                names = ("prefill", "decodes", "kv_dec", "pp", "seconds")
                figures = [float(row[name]) for name in names]
                if not all(0 <= figure < 1e15 for figure in figures) or figures[-1] == 0:
                    raise ValueError("a figure cannot be")
                prefill, decodes, kv_dec, pp, seconds = figures
                steps.append(LoggedStep(int(prefill), int(decodes), int(kv_dec), pp, seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} is not one of /steps: {error!r}") from error
    return steps


def main(lines: Iterable[str], out: TextIO) -> int:
    try:
        steps = steps_of(lines)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    fit = fit_steps(steps)
    if fit is None:
        few = f"at least {LEAST_STEPS} are needed" if len(steps) < LEAST_STEPS else "they do not tell"
        print(f"No model in {len(steps)} steps: {few}. Load the engine with prompts and answers.", file=sys.stderr)
        return 1
    print(f"# {fit.steps} steps; median error over those held out: {fit.error:.1%}", file=out)
    print("[step_time]", file=out)
    for name, unit in UNITS.items():
        print(f"{name} = {getattr(fit.step_time, name.rsplit('_', 1)[0]) / unit:.6g}", file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
