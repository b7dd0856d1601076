"""Decisions with everything that they followed from, one JSON object a line, so that others can decide them again.

For tests: ``tests/support/recorded_steps.py`` hands them to the simulator. Off unless a file is named; the file ends
after ``most`` lines.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import IO, Any

from scheduling.core.types import QueuedRequest


class Recording:
    """Writes to ``path``, which is begun anew."""

    def __init__(self, path: str, most: int) -> None:
        self._left = most
        self._file: IO[str] | None = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # open while it serves
        self._arrived: list[dict[str, Any]] = []
        self._running: set[str] = set()

    def arrived(self, request: QueuedRequest, pace_s: float) -> None:
        self._arrived.append(_said(request) | {"pace_s": None if pace_s == inf else pace_s})

    def step(self, engine: Any, plan: Any, tokens: list[tuple[str, int]]) -> None:
        """``tokens``: what vLLM gave to each prompt, in order."""
        running = {request.request_id for request in engine.running}
        planner = engine.qm_learning.planner
        self._write(
            {
                "kind": "step",
                "now_s": plan.now_s,
                "arrived": self._arrived,
                "ended": sorted(name for name in self._running if name not in engine.requests),
                "decodes": plan.decodes,
                "kv_dec": plan.kv_dec,
                "dues": plan.dues,
                "slack_s": None if plan.slack_s == inf else plan.slack_s,
                "rate": engine.qm_rate,
                "measured": engine.qm_engine.prefill_per_s,
                "token_s": engine.qm_view.token_s,
                "planner": None if planner is None else asdict(planner),
                "seats": engine.max_num_active_reqs,
                "most": max(0, min(engine.qm_most, engine.max_num_scheduled_tokens - plan.decodes)),
                "room": plan.room,
                "tokens": tokens,
            }
        )
        self._arrived = []
        self._running = running

    def victim(self, name: str, running: list[tuple[QueuedRequest, int]]) -> None:
        """``running``: with the order of admission, the victim among them."""
        rows = [_said(request) | {"order": order} for request, order in running]
        self._write({"kind": "victim", "victim": name, "running": rows})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._left -= 1
        if self._left <= 0:
            self.close()


_FIELDS = (
    "id", "seq", "arrival_s", "entitlement", "rank", "weight", "service_class", "input_tokens", "output_bound",
    "output_tokens", "ttft_deadline_s", "ttlt_deadline_s", "prefilled", "generated", "output_lengths",
    "output_probabilities",
)  # fmt: skip


def _said(request: QueuedRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in _FIELDS}
