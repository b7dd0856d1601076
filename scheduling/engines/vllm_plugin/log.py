"""What the plugin did, for others to read: counters, and the last steps and requests.

Everything is kept in memory and bounded; a step costs one append. Reading happens in another thread: what it reads is
copied first, and a copy that fails because a step was just added is taken again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

PREFIX = "quartermaster_plugin_"
PAGE = 2000  # steps that are told at once


class Step(NamedTuple):
    """One step of the engine. Times are seconds of its monotonic clock."""

    ended_s: float
    seconds: float  # since the step before ended, or since it was scheduled where the engine stood idle
    budget: int  # prompt tokens that it was allowed
    prefill: int  # prompt tokens computed
    decodes: int
    kv_dec: int  # tokens of context of the decoding requests
    pp: float  # sum of chunk * (context + chunk / 2)
    slack_s: float | None  # until the first decoding request's next token was due; None: nothing was promised
    predicted_s: float | None  # None: step times were not known yet
    waiting: int
    kv_used: float  # 0..1
    late: int  # answers that were behind and could not catch up: they did not limit it


class Admitted(NamedTuple):
    """One request that left the engine's queue."""

    at_s: float
    id: str
    queued_s: float  # in the engine's queue
    prompt: int  # tokens
    cached: int  # ... found in the prefix cache


@dataclass(slots=True)
class Counters:
    """Sums since the start."""

    steps: int = 0
    shortened: int = 0  # steps whose prompt tokens were limited by slack
    gave_way: int = 0  # steps in which a prompt that was begun waited for another
    victims: int = 0  # running requests whose KV cache was taken
    digests: int = 0  # requests that came with a digest
    digests_refused: int = 0  # ... that could not be read
    own_seconds: float = 0.0  # spent in our decisions
    errors: dict[str, int] = field(default_factory=dict)  # by where


class Log:
    """Bounded memory of steps and requests."""

    def __init__(self, most: int, every: int, began: str = "") -> None:
        self.began = began  # tells this log from that of the process before; its numbers begin at 1 again
        self.counters = Counters()
        self.off = ""  # why vLLM's own order and budget hold; empty: ours do
        self.refused = ""  # why the last digest could not be read
        self.model: dict[str, float] = {}  # step-time coefficients in use [s], with ``error`` where it is known
        self.facts: dict[str, str] = {}
        self.limits: dict[str, int] = {}  # of the engine: requests it runs, tokens of a step
        self._steps: deque[tuple[int, Step]] = deque(maxlen=most)  # with its number among all steps
        self._admitted: deque[Admitted] = deque(maxlen=most)
        self._every = every

    def step(self, step: Step) -> None:
        self.counters.steps += 1
        if self.counters.steps % self._every == 0:
            self._steps.append((self.counters.steps, step))

    def admitted(self, admitted: Admitted) -> None:
        self._admitted.append(admitted)

    def steps(self) -> list[Step]:
        return [step for _, step in _copied(self._steps)]

    def requests(self) -> list[Admitted]:
        return _copied(self._admitted)

    def since(self, after: int, began: str) -> Iterator[str]:
        """For who comes again and again: a line of this log's state, then the steps with numbers above ``after``, at
        most :data:`PAGE` of them, the newest. All that there are, where ``began`` is not this log's."""
        first = after if began == self.began else 0
        rows = [row for row in _copied(self._steps) if row[0] > first][-PAGE:]
        head = {"kind": "log", "began": self.began, "last": rows[-1][0] if rows else first, **self.state()}
        return chain(
            [json.dumps(head)],
            (json.dumps({"kind": "step", "number": number, **step._asdict()}) for number, step in rows),
        )

    def lines(self) -> Iterator[str]:
        """Steps and requests as JSON, one a line, in order of time."""
        rows: list[tuple[float, dict[str, Any]]] = [
            *((s.ended_s, {"kind": "step", "number": n, **s._asdict()}) for n, s in _copied(self._steps)),
            *((one.at_s, {"kind": "admitted", **one._asdict()}) for one in self.requests()),
        ]
        return (json.dumps(row) for _, row in sorted(rows, key=lambda pair: pair[0]))

    def metrics(self) -> str:
        """A Prometheus page."""
        counters = self.counters
        last = _copied(self._steps)[-1:]
        rows: list[tuple[str, str, str, float]] = [
            ("steps_total", "counter", "Steps of the engine.", counters.steps),
            ("shortened_steps_total", "counter", "Steps with fewer prompt tokens, for time.", counters.shortened),
            ("prefills_gave_way_total", "counter", "Steps in which a begun prompt waited.", counters.gave_way),
            ("victims_total", "counter", "Running requests preempted for KV cache.", counters.victims),
            ("digests_total", "counter", "Requests that came with a digest.", counters.digests),
            ("digests_refused_total", "counter", "Digests that could not be read.", counters.digests_refused),
            ("decision_seconds_total", "counter", "Time spent in the plugin's decisions.", counters.own_seconds),
            ("degraded", "gauge", "1: vLLM's own order and budget hold.", float(bool(self.off))),
        ]
        if last:
            rows.append(("budget_tokens", "gauge", "Prompt tokens that the last step was allowed.", last[0][1].budget))
        if "error" in self.model:
            rows.append(("step_time_error", "gauge", "Error of step times over held-out steps.", self.model["error"]))
        lines: list[str] = []
        for name, kind, help_text, value in rows:
            lines += [*_head(name, kind, help_text), f"{PREFIX}{name} {value:.10g}"]
        lines += _head("errors_total", "counter", "Errors of the plugin, by where.")
        for where, count in sorted(counters.errors.items()):
            lines.append(f'{PREFIX}errors_total{{where="{where}"}} {count}')
        labels = ",".join(f'{name}="{_label(value)}"' for name, value in sorted(self.facts.items()))
        lines += [*_head("info", "gauge", "What runs."), f"{PREFIX}info{{{labels}}} 1"]
        return "\n".join(lines) + "\n"

    def state(self) -> dict[str, Any]:
        return {
            "degraded": self.off,
            "last_refused_digest": self.refused,
            "step_time": dict(self.model),
            "limits": dict(self.limits),
            **self.facts,
        }


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"]


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _copied(rows: Iterable[Any]) -> list[Any]:
    for _ in range(100):
        try:
            return list(rows)
        except RuntimeError:  # changed meanwhile by the engine's thread
            continue
    return []
