"""Continuous batching as vLLM V1 does it, without a clock and without sockets: which tokens go into which step.

A step takes one token of every decoding sequence first, then chunks of prompts, within a token budget. Sequences hold
KV blocks; when one that runs needs a block and none is free, the tail of the batch gives its blocks back and is
computed again later (recompute preemption). Nothing waiting is admitted in a step that preempted, and nothing waiting
ever takes a seat or a block from what runs. Source: vLLM's documentation and behaviour of version 0.32 with
``fcfs`` and ``priority`` scheduling.

Times are seconds on the caller's clock. Not thread-safe: one owner.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from scheduling.core.capacity.kv import BLOCK_TOKENS, SharedBlocks, blocks
from scheduling.core.engine.step_time import StepTime
from scheduling.engines.simulated.metrics import EngineTotals


class State(Enum):
    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What fits into the engine."""

    slots: int  # sequences at once
    kv_tokens: int  # KV cache [tokens], in whole blocks
    token_budget: int  # tokens per step
    max_model_len: int  # prompt and output of one sequence [tokens]
    priority_scheduling: bool = False  # False: first come, first served, and ``priority`` is ignored
    max_queued: int | None = None  # sequences that may wait; None: no limit

    def __post_init__(self) -> None:
        for name in ("slots", "kv_tokens", "token_budget", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_model_len > self.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit into {self.kv_tokens} KV tokens (blocks of "
                f"{BLOCK_TOKENS}): one request could never finish. Lower it, or raise kv_tokens."
            )


class QueueFull(Exception):
    """As many sequences wait as may."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation. Its owner sets the first block of fields, the engine all others."""

    prompt_tokens: int
    output_tokens: int  # it ends after so many; 0: its prompt is read and nothing generated
    stops: bool = False  # whether it ends by itself (finish_reason "stop") or at its bound ("length")
    priority: int = 0  # lower is sooner
    cached: int = 0  # of the prompt's tokens, found in a prefix cache: not computed at its first admission
    cached_blocks: list[int] = field(default_factory=list)  # hashes of its prompt's in a prefix cache
    on_token: Callable[[Sequence], None] | None = None  # after each token but the last
    on_end: Callable[[Sequence], None] | None = None  # after the last token; not when aborted

    state: State = State.NEW
    arrived_s: float = 0.0
    order: tuple[int, int] = (0, 0)
    admissions: int = 0
    total: int = 0  # tokens known: prompt and generated
    computed: int = 0  # of these, in the KV cache
    generated: int = 0
    blocks: int = 0  # that hold it; ``held`` of them, from its beginning, may be others' as well
    held: int = 0
    decoding: bool = False
    last_token_s: float = 0.0
    last_step: int = -1

    def __lt__(self, other: Sequence) -> bool:
        return self.order < other.order


@dataclass(slots=True)
class Step:
    """What one step computes."""

    started_s: float
    prefill_tokens: int = 0
    kv_decoding: int = 0  # sum of the decoding sequences' contexts, with the tokens whose keys this step computes
    prefill_products: float = 0.0  # sum of chunk * (context + chunk / 2)
    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)

    def seconds(self, model: StepTime) -> float:
        return model.step(self.prefill_tokens, len(self.decodes), self.kv_decoding, self.prefill_products)


class Engine:
    """The batch, the waiting queue and the KV blocks of one replica."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.total_blocks = limits.kv_tokens // BLOCK_TOKENS
        self.free_blocks = self.total_blocks
        self.running: list[Sequence] = []  # in order of admission
        self.totals = EngineTotals()
        self._shared = SharedBlocks()  # of prompts, by their hashes in a prefix cache
        self._waiting: list[Sequence] = []  # heap by ``order``; aborted ones are dropped when they come up
        self._aborted_waiting = 0
        self._arrivals = 0
        self._steps = 0
        self.left_waiting = 0  # by the latest step: what vLLM shows, where arrivals wait outside until a step begins

    @property
    def waiting(self) -> int:
        return len(self._waiting) - self._aborted_waiting

    @property
    def kv_usage(self) -> float:
        return 1.0 - self.free_blocks / self.total_blocks

    @property
    def steps(self) -> int:
        """Steps planned since the start."""
        return self._steps

    def add(self, seq: Sequence, now_s: float) -> None:
        """Takes a sequence into the waiting queue. Raises :class:`QueueFull`."""
        if self.limits.max_queued is not None and self.waiting >= self.limits.max_queued:
            self.totals.rejections += 1
            raise QueueFull
        seq.state = State.WAITING
        seq.arrived_s = now_s
        seq.total = seq.prompt_tokens
        seq.computed = seq.cached
        seq.order = (seq.priority if self.limits.priority_scheduling else 0, self._arrivals)
        self._arrivals += 1
        heapq.heappush(self._waiting, seq)

    def abort(self, seq: Sequence) -> None:
        """Ends a sequence: its slot and its KV are free at once, whether or not a step is under way."""
        if seq.state is State.RUNNING:
            self._release(seq)
            self.running.remove(seq)
        elif seq.state is State.WAITING:
            self._aborted_waiting += 1
        else:
            return
        seq.state = State.ABORTED
        self.totals.aborted += 1

    def plan(self, now_s: float) -> Step | None:
        """Chooses what the next step computes, or None when there is nothing to do."""
        step = Step(now_s)
        budget, preempted = self._plan_running(step)
        if not preempted:
            self._admit(step, budget, now_s)
        self.left_waiting = self.waiting
        if not step.decodes and not step.chunks:
            return None
        self._steps += 1
        return step

    def complete(self, step: Step, now_s: float) -> list[Sequence]:
        """Books a step that took until ``now_s``; returns the sequences that got a token.

        Those whose state is FINISHED got their last one; their slot and KV are free already.
        """
        number = self._steps
        totals = self.totals
        emitted: list[Sequence] = []
        finished = 0
        steady, gap = 0, 0.0  # decodes that also had a token in the step before share one gap
        for seq in step.decodes:
            if seq.state is not State.RUNNING:
                continue
            seq.computed += 1
            seq.total += 1
            seq.generated += 1
            if seq.last_step == number - 1:
                steady += 1
                gap = now_s - seq.last_token_s
            else:
                totals.inter_token.observe(now_s - seq.last_token_s)
            seq.last_step = number
            seq.last_token_s = now_s
            emitted.append(seq)
            if seq.generated >= seq.output_tokens:
                finished += 1
        if steady:
            totals.inter_token.observe(gap, steady)
        for seq, chunk in step.chunks:
            if seq.state is not State.RUNNING:
                continue
            seq.computed += chunk
            self.free_blocks += self._hold(seq)
            if seq.computed < seq.total:
                continue
            seq.decoding = True
            if seq.generated == 0:
                totals.prompt_tokens += seq.prompt_tokens
                totals.cached_tokens += seq.cached
                totals.first_token.observe(now_s - seq.arrived_s)
            else:  # computed again after a preemption
                totals.inter_token.observe(now_s - seq.last_token_s)
            seq.total += 1
            seq.generated += 1
            seq.last_step = number
            seq.last_token_s = now_s
            emitted.append(seq)
            if seq.generated >= seq.output_tokens:
                finished += 1
        totals.generation_tokens += len(emitted)
        if finished:
            self._finish(emitted, now_s)
        return emitted

    def _finish(self, emitted: list[Sequence], now_s: float) -> None:
        for seq in emitted:
            if seq.generated >= seq.output_tokens:
                self._release(seq)
                seq.state = State.FINISHED
                if seq.stops:
                    self.totals.finished_stop += 1
                else:
                    self.totals.finished_length += 1
                self.totals.latency.observe(now_s - seq.arrived_s)
                if not seq.output_tokens:  # only read: what it seems to have generated is its vector
                    self.totals.generation_tokens -= 1
        self.running = [seq for seq in self.running if seq.state is State.RUNNING]

    def _plan_running(self, step: Step) -> tuple[int, bool]:
        """Decodes first, then the prompts under way. Returns the budget left and whether anything was preempted."""
        budget = self.limits.token_budget
        before = self.totals.preemptions
        prefilling: list[Sequence] = []
        for seq in tuple(self.running):
            if not seq.decoding:
                prefilling.append(seq)
            elif budget == 0:
                break
            elif seq.state is State.RUNNING and (
                seq.computed < seq.blocks * BLOCK_TOKENS or self._grow(seq, seq.computed + 1, step)
            ):
                step.decodes.append(seq)
                step.kv_decoding += seq.computed + 1
                budget -= 1
        budget = self.limits.token_budget - len(step.decodes)  # a preemption may have taken one out again
        for seq in prefilling:
            if budget <= 0:
                break
            if seq.state is not State.RUNNING:
                continue
            chunk = min(seq.total - seq.computed, budget)
            if self._grow(seq, seq.computed + chunk, step):
                self._take_chunk(step, seq, chunk)
                budget = self.limits.token_budget - len(step.decodes) - step.prefill_tokens
        return budget, self.totals.preemptions > before

    def _admit(self, step: Step, budget: int, now_s: float) -> None:
        while budget > 0 and self._waiting and len(self.running) < self.limits.slots:
            seq = self._waiting[0]
            if seq.state is State.ABORTED:
                heapq.heappop(self._waiting)
                self._aborted_waiting -= 1
                continue
            chunk = min(seq.total - seq.computed, budget)
            need = blocks(seq.computed + chunk)
            if need - self._shared.held(self._known(seq)) > self.free_blocks:
                return  # strictly in order: nobody overtakes the head
            heapq.heappop(self._waiting)
            self.free_blocks -= need - self._hold(seq)
            seq.blocks = need
            seq.state = State.RUNNING
            if seq.admissions == 0:
                self.totals.queued.observe(now_s - seq.arrived_s)
            seq.admissions += 1
            self.running.append(seq)
            self._take_chunk(step, seq, chunk)
            budget -= chunk

    @staticmethod
    def _take_chunk(step: Step, seq: Sequence, chunk: int) -> None:
        step.chunks.append((seq, chunk))
        step.prefill_tokens += chunk
        step.prefill_products += chunk * (seq.computed + chunk / 2)

    def _grow(self, seq: Sequence, tokens: int, step: Step) -> bool:
        """Gives ``seq`` blocks for ``tokens``, the batch's tail's if need be; False if it was itself the tail."""
        need = blocks(tokens) - seq.blocks
        while need > self.free_blocks:
            victim = max(self.running) if self.limits.priority_scheduling else self.running[-1]
            self._preempt(victim, step)
            if victim is seq:
                return False
        if need > 0:
            self.free_blocks -= need
            seq.blocks += need
        return True

    def _preempt(self, victim: Sequence, step: Step) -> None:
        if victim in step.decodes:  # it had its place in this step already
            step.decodes.remove(victim)
            step.kv_decoding -= victim.computed + 1
        for index, (seq, chunk) in enumerate(step.chunks):
            if seq is victim:
                del step.chunks[index]
                step.prefill_tokens -= chunk
                step.prefill_products -= chunk * (seq.computed + chunk / 2)
                break
        self._release(victim)
        self.running.remove(victim)
        victim.state = State.WAITING
        victim.decoding = False
        victim.computed = 0
        heapq.heappush(self._waiting, victim)
        self.totals.preemptions += 1

    def _release(self, seq: Sequence) -> None:
        self.free_blocks += seq.blocks - self._shared.let_go(seq.cached_blocks[: seq.held])
        seq.blocks = seq.held = 0

    @staticmethod
    def _known(seq: Sequence) -> list[int]:
        """Hashes of the prompt's blocks that are computed and not noted as held yet."""
        return seq.cached_blocks[seq.held : seq.computed // BLOCK_TOKENS]

    def _hold(self, seq: Sequence) -> int:
        """Notes what is computed of the prompt; how many of these blocks others hold, so that it needs none of its
        own for them."""
        known = self._known(seq)
        seq.held += len(known)
        return self._shared.hold(known)
