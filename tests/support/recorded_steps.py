"""Decisions that the plugin wrote down inside a vLLM, decided again by the simulator's engine.

The recording says what was known before each step (arrivals, ends, the clock, who decodes, the prefill rate, the model
of step times); prompts in progress, queues and their order are the simulator's own, carried from step to step.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scheduling.core.engine.step_time import StepTime
from scheduling.core.inside_engine.chunking import DecodeSlack
from scheduling.core.policies.registry import make_ordering
from scheduling.core.types import BackendView, QueuedRequest, ServiceClass, Slo
from scheduling.engines.vllm_plugin.settings import Settings
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import DECODE, PREFILL, EngineConfig, Sequence
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.workload import SimRequest

FOR_EVER = 10**9  # tokens: when a request ends is what the recording says
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a recording, packed or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was decided: prompt tokens allowed, whose they were, and who was admitted, in order."""

    room: int
    tokens: dict[str, int]
    admitted: list[str]


class _Engine(ContinuousEngine):
    room = 0

    def _room(self, sequence: Sequence, slack: DecodeSlack) -> int:
        self.room = super()._room(sequence, slack)
        return self.room


class Replayed:
    """One engine of the simulator that is handed a recording, row by row. ``settings``: the plugin's."""

    def __init__(self, settings: Settings, first: Row) -> None:
        self._settings = settings
        self._config = EngineConfig(
            truth=StepTime(**first["planner"]),
            max_seqs=first["seats"],
            preempt_prefills=settings.preempt_prefills,
            selective=True,
            dynamic_chunks=True,
            max_chunk=first["most"],
            min_chunk=settings.least,
            margin=settings.margin,
            ttlt_pace_s=settings.pace_s,
            bucket_tokens=settings.bucket_tokens,
        )
        self._engine = _Engine(self._config, settings.make_policy())
        self._engine.decisions = []
        self._count = 0
        self._sent_fs = 0

    def step(self, row: Row) -> tuple[Step, Step]:
        """What was decided there, and what is decided here."""
        engine = self._engine
        self._be_as(row)
        before = {name: sequence.prefilled for name, sequence in engine.live.items()}
        for request in engine.inbox[engine.taken :]:
            before[request.queued.id] = 0
        assert engine.decisions is not None
        engine.decisions.clear()
        engine.room = 0
        if row["tokens"] or engine.next_arrival <= engine.clock or engine.decodes:
            engine.stretch(engine.clock)
        tokens = {
            name: sequence.prefilled - before[name]
            for name, sequence in engine.live.items()
            if sequence.prefilled != before[name]
        }
        here = Step(engine.room, tokens, [name for _, name, what in engine.decisions if what == "admit"])
        there = dict(map(tuple, row["tokens"]))
        new = [name for name, _ in row["tokens"] if not before[name]]
        return Step(row["room"], there, new), here

    def slack_s(self) -> float:
        """Until the first token is due that a decoding sequence waits for: by the simulator's heaps."""
        assert self._engine._slack is not None
        return self._engine._slack.slack_s(self._engine.step_no, self._engine.clock / 1e15)

    def _be_as(self, row: Row) -> None:
        engine = self._engine
        for name in row["ended"]:
            engine.cancel(engine.live[name])
        engine.clock = to_fs(row["now_s"])
        for said in row["arrived"]:
            queued = queued_of(said)
            self._sent_fs = min(engine.clock, max(self._sent_fs, to_fs(queued.arrival_s)))
            self._count += 1
            slo = Slo(
                None if queued.ttft_deadline_s is None else queued.ttft_deadline_s - queued.arrival_s,
                said["pace_s"],
                None if queued.ttlt_deadline_s is None else queued.ttlt_deadline_s - queued.arrival_s,
            )
            engine.offer(SimRequest(self._count, self._sent_fs, queued.input_tokens, FOR_EVER, slo, queued))
        engine.config = replace(
            self._config, max_chunk=max(1, row["most"]), min_chunk=min(self._settings.least, max(1, row["most"]))
        )
        engine._planner = StepTime(**row["planner"])
        engine.rate = row["rate"]
        engine._view.backends["engine"] = BackendView("engine", row["seats"], 0, prefill_per_s=row["measured"])
        engine._view.token_s = row.get("token_s", 0.0)  # recordings of before have none
        engine.decodes, engine.kv_dec = row["decodes"], row["kv_dec"]
        engine._slack = DecodeSlack()
        for at, (due, pace, tokens) in enumerate(row["dues"]):
            engine._slack.join(at, due, pace, engine.step_no, tokens)


def victim_of(row: Row, policy: str, params: dict[str, Any]) -> str:
    """Whom the simulator's engine preempts of those that ran."""
    config = EngineConfig(truth=StepTime(0.01, 0, 0, 0, 0, 0, 0), victims="policy")
    engine = ContinuousEngine(config, make_ordering(policy, params))
    for said in row["running"]:
        queued = queued_of(said)
        sim = SimRequest(0, 0, queued.input_tokens, FOR_EVER, Slo(), queued)
        sequence = engine.admitted[queued.id] = Sequence(sim, queued)
        sequence.state = DECODE if queued.generated else PREFILL
        sequence.prefilled, sequence.generated, sequence.order = queued.prefilled, queued.generated, said["order"]
    return engine._victim().queued.id


def queued_of(said: Row) -> QueuedRequest:
    values = {name: value for name, value in said.items() if name not in ("pace_s", "order")}
    values["service_class"] = ServiceClass(values["service_class"])
    for name in ("output_lengths", "output_probabilities"):
        values[name] = tuple(values[name])
    return QueuedRequest(tenant="", tier="", kv_tokens=values["input_tokens"] + values["output_bound"], **values)


def differing(rows: Iterable[Row], settings: Settings) -> tuple[int, list[str]]:
    """How many steps there are, and those that were decided otherwise, each in a line."""
    steps = [row for row in rows if row["kind"] == "step"]
    replayed, found = Replayed(settings, steps[0]), list[str]()
    for at, row in enumerate(steps):
        there, here = replayed.step(row)
        if (there.tokens, there.admitted) != (here.tokens, here.admitted):
            found.append(f"step {at}: vLLM gave {there.tokens}, the simulator {here.tokens}")
        elif there.tokens and there.room != here.room:
            found.append(f"step {at}: {there.room} tokens were allowed, by the simulator {here.room}")
    return len(steps), found
