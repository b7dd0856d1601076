"""Which vLLM this stands on. Its scheduler's interface is not public: other versions are not tried, but left alone."""

from __future__ import annotations

import inspect
import re
from typing import Any

LOWEST, BELOW = (0, 32), (0, 33)
SUPPORTED = "vllm>=0.32,<0.33"

# What is called or replaced, with the names of what it is called with.
METHODS = {
    "schedule": ("self", "throttle_prefills"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "add_request": ("self", "request"),
    "shutdown": ("self",),
    "_preempt_request": ("self", "request", "timestamp", "drop_stale_output"),
    "_reserve_prefill_lookahead": ("self", "request", "num_computed_tokens", "num_new_tokens"),
}


def supported(version: str) -> bool:
    """Whether a version such as ``0.32.1+cpu`` is one of :data:`SUPPORTED`."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and LOWEST <= (int(match[1]), int(match[2])) < BELOW


def unlike(scheduler: type[Any]) -> str:
    """What of vLLM's scheduler is not as this expects it; empty: nothing."""
    for name, expected in METHODS.items():
        method = getattr(scheduler, name, None)
        if method is None:
            return f"its scheduler has no {name}"
        parameters = tuple(inspect.signature(method).parameters)
        if parameters != expected:
            return f"its {name} takes {', '.join(parameters)}, not {', '.join(expected)}"
    return ""
