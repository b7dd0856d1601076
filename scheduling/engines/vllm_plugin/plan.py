"""What the scheduler inside vLLM keeps of a request while it is there, and of a step while it is not over."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.policies.contracts import Key
from scheduling.core.types import QueuedRequest
from scheduling.engines.vllm_plugin.order import EngineRequest


class RequestState:
    """What we know of one of the engine's requests beside what the engine knows."""

    __slots__ = ("added_s", "bucket", "due_s", "in_time_by", "order", "pace_s", "priority", "queued", "standing")

    def __init__(self, queued: QueuedRequest, pace_s: float, due_s: float, priority: int) -> None:
        self.queued = queued
        self.pace_s = pace_s  # per token while it decodes; inf: nothing is promised
        self.due_s = due_s  # of its prefill
        self.priority = priority  # that vLLM was given
        self.added_s = queued.arrival_s
        self.in_time_by = -1  # token by which it has to have caught up; 0: its first came late; -1: it has not come
        self.order = queued.seq  # of admission
        self.bucket = -1  # of generated tokens, when it was placed among the running
        self.standing: tuple[Key, int, str] | None = None  # among them: place, order of admission, id


@dataclass(slots=True)
class Plan:
    """One step that is decided and not yet over."""

    now_s: float
    room: int  # prompt tokens
    budget: int  # tokens
    decodes: int
    kv_dec: int
    slack_s: float
    shortened: bool
    waiting: int
    began: list[tuple[EngineRequest, int]]  # prompts in progress, with what was computed of them
    wants: bool  # room was left for something that waits
    late: int  # answers that are behind and cannot catch up: they do not limit the step
    predicted_s: float | None = None
    prefill: int = 0
    pp: float = 0.0
    began_s: float = 0.0
    dues: list[tuple[float, float, int]] | None = None  # of who decodes, where it is recorded: next, pace, tokens left
