"""Prefill preemption: whose prefill is interrupted for an interactive request that would be late.

Question: a replica computes a prompt that takes it seconds. Which request may interrupt it, and when?
An engine computes a prompt to its end, chunk by chunk, and a prompt above a replica's prefill credit runs alone:
whatever comes next waits for all of it, in front of the engine or inside. An engine with a prefix cache keeps what it
has computed, so a request can be taken back between two chunks, sent again later, and resumes where it stopped. That
costs its client nothing but time, since no byte of the answer was sent.

**The rule.** A request with a TTFT deadline interrupts a prompt if

* the prompt is of a tier of worse rank, or of the same rank and late whether it is interrupted or not; and the policy
  would put it after the request, too;
* the request has room there but for prefill credit, and would be late if it waited;
* the request's prompt is no longer than what is left of the other, and that is at least
  :data:`scheduling.core.types.LEAST_CREDITS` times the replica's credit;
* the prompt is no owner's of reserved capacity, unless the request is one's, too;
* the prompt has run for :data:`MIN_RUN_S` since it was last interrupted, and was interrupted fewer than
  :data:`MAX_PREEMPTIONS` times, so that every prompt gets done.

Of several prompts, that of the worst rank is taken, then the one of which most is left. A request that is already late
interrupts nothing. An owner that was granted beside a long prompt may interrupt it until its own first token comes
(:class:`GrantedBeside`). Never interrupted are requests of several prompts or answers, some of which may be done and
would be lost, and requests without an answer (embeddings).

Source: ours, after QoServe 3.4 (selective preemption of prefills, inside an engine). Measured:
``docs/results/front.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from scheduling.core.inside_engine.step import progressed
from scheduling.core.placement.rule import points_up_to
from scheduling.core.policies.relegation import will_miss
from scheduling.core.rights import RIGHTS
from scheduling.core.types import BackendView, Grant, PoolView, QueuedRequest, is_long

MIN_RUN_S = 0.5  # between two interruptions of a prompt: more than sending it again costs
MAX_PREEMPTIONS = 10  # interruptions of one request


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """A prompt that an engine computes: its first output token has not come."""

    request: QueuedRequest  # as it was granted
    backend: str
    held: int  # of the replica's prefill credit [prompt tokens]
    granted_s: float  # the clock of the view


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that a long prompt keeps waiting: it lacks prefill credit, or was granted beside the prompt, as
    owners of reserved capacity are."""

    request: QueuedRequest
    backend: str = ""  # the replica it was granted on; empty: it waits, and runs wherever it has room


@dataclass(frozen=True, slots=True)
class Preemption:
    """A prompt to interrupt. ``computed``: how much of it is computed by then, by prediction [tokens]."""

    prompt: LongPrompt
    computed: int
    claimed_by: str  # request id


class GrantedBeside:
    """Owners' requests that were granted beside a long prompt, and may wait for it inside the engine."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def granted(self, grants: Iterable[Grant], view: PoolView) -> None:
        """Notes new grants. ``view``: the pool after them."""
        for grant in grants:
            backend = view.backends.get(grant.backend)
            if backend is not None and backend.computes_long and grant.request.ttft_deadline_s is not None:
                self._claims[grant.request.id] = Claim(grant.request, grant.backend)

    def waiting(self, view: PoolView, now_s: float) -> list[Claim]:
        """Those that may still wait; others are forgotten."""
        self._claims = {name: claim for name, claim in self._claims.items() if _still_waits(claim, view, now_s)}
        return list(self._claims.values())


def _still_waits(claim: Claim, view: PoolView, now_s: float) -> bool:
    backend, due_s = view.backends.get(claim.backend), claim.request.ttft_deadline_s
    waits = backend is not None and backend.computes_long and backend.prefill_owned > 0
    return waits and due_s is not None and due_s >= now_s


def again_in_s(prompts: Iterable[LongPrompt], now_s: float) -> float:
    """Seconds until one more of these may be interrupted; 0: none."""
    return min((s for prompt in prompts if (s := _runs_on_s(prompt, now_s)) > 0), default=0.0)


def _runs_on_s(prompt: LongPrompt, now_s: float) -> float:
    """Seconds for which it may not be interrupted again."""
    return prompt.granted_s + MIN_RUN_S - now_s if prompt.request.preempted else 0.0


def preemptions(
    claims: Iterable[Claim],
    prompts: Sequence[LongPrompt],
    view: PoolView,
    now_s: float,
    goes_before: Callable[[QueuedRequest, QueuedRequest], bool],
) -> list[Preemption]:
    """The prompts to interrupt: at most one for each claim, and each for one claim only. ``view``: the pool as the last
    decision left it; ``goes_before``: whether the policy puts a request before another one, part of which may be
    computed."""
    chosen: dict[str, Preemption] = {}
    for claim in claims:
        best: tuple[tuple[int, int], Preemption] | None = None
        for prompt in prompts:
            backend = view.backends.get(prompt.backend)
            if backend is None or prompt.request.id in chosen or claim.backend not in ("", prompt.backend):
                continue
            left = left_of(prompt, backend)
            if not _may_run_there(claim, backend) or not _interrupts(claim.request, prompt, left, backend, now_s):
                continue
            computed = max(0, prompt.held - left)
            if not goes_before(claim.request, progressed(prompt.request, computed, 0)):
                continue
            rank = (prompt.request.rank, left)
            if best is None or rank > best[0]:
                best = rank, Preemption(prompt, computed, claim.request.id)
        if best is not None:
            chosen[best[1].prompt.request.id] = best[1]
    return list(chosen.values())


def interrupted(request: QueuedRequest, backend: str, computed: int) -> QueuedRequest:
    """The request as it waits again: it resumes on ``backend``, where ``computed`` tokens of its prompt are cached. Its
    prefix points beyond those are dropped, since nothing is cached there."""
    return replace(
        request,
        resumes_at=backend,
        prefilled=min(computed, request.input_tokens - 1),
        preempted=request.preempted + 1,
        prefixes=points_up_to(request.prefixes, computed),
        uncounted_point="",
        uncounted_tokens=0,
    )


def waits_for(request: QueuedRequest, ready: Iterable[BackendView]) -> str:
    """The replica for which an interrupted request waits, as others would compute its prompt anew. Empty: it may run
    anywhere, since that replica failed it, is not ready, or cannot take it any more."""
    at = request.resumes_at
    if not at or at == request.exclude_backend:
        return ""
    takes = any(b.id == at and b.slots and b.takes(request.kv_tokens) and b.serves(request.adapter) for b in ready)
    return at if takes else ""


def to_compute(request: QueuedRequest, backend: str) -> int:
    """How much of its prompt is to compute on the replica where it was granted, by prediction [tokens]."""
    computed = request.prefilled if request.resumes_at == backend else 0
    return request.input_tokens - max(computed, request.uncounted_tokens)


def left_of(prompt: LongPrompt, backend: BackendView) -> int:
    """How much of the prompt is left to compute, by the replica's predicted pace [tokens]."""
    return min(prompt.held, backend.prefill_used)


def _may_run_there(claim: Claim, backend: BackendView) -> bool:
    request = claim.request
    if claim.backend:
        return True
    elsewhere = request.resumes_at not in ("", backend.id) or request.exclude_backend == backend.id
    return not elsewhere and backend.has_slot_and_kv(request.kv_tokens) and backend.serves(request.adapter)


def _misses_anyhow(other: QueuedRequest, left: int, backend: BackendView, now_s: float) -> bool:
    """Whether its first token is late even if nothing interrupts it."""
    due_s = other.ttft_deadline_s
    return due_s is not None and will_miss(due_s, now_s, left, backend.prefill_per_s or inf)


def _interrupts(request: QueuedRequest, prompt: LongPrompt, left: int, backend: BackendView, now_s: float) -> bool:
    other, due_s = prompt.request, request.ttft_deadline_s
    if due_s is None or due_s < now_s or request.rank > other.rank:
        return False
    if request.rank == other.rank and not _misses_anyhow(other, left, backend, now_s):
        return False
    if not backend.computes_long or not is_long(left, backend.prefill_credit):
        return False
    if other.output_bound == 0 or other.sequences > 1:
        return False
    if RIGHTS[other.service_class].reserved and not RIGHTS[request.service_class].reserved:
        return False
    if other.preempted >= MAX_PREEMPTIONS or _runs_on_s(prompt, now_s) > 0 or request.prefill_tokens > left:
        return False
    per_s = backend.prefill_per_s
    return per_s <= 0 or will_miss(due_s, now_s, left + request.prefill_tokens, per_s)
