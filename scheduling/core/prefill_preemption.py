"""Whose prefill is interrupted, so that an interactive request of a better tier need not wait for the end of it.

Question: a replica computes a prompt that takes it seconds; who may interrupt that, and when?
An engine that has begun a prompt computes it to its end, chunk by chunk, and a prompt above a replica's prefill credit
runs alone: whoever comes next waits for all of it, in front of the engine or inside. An engine with a prefix cache
keeps what it has computed, so its request can be taken back between two chunks and sent again later: it resumes where
it stopped. That costs the client nothing but time, for no byte of its answer was sent yet.

**The rule.** A request with a TTFT deadline interrupts a prompt of a tier of worse rank, which the policy would have
after it as well, if it has room there but for prefill credit, would be late if it waited, and is no longer than what is
left of that prompt: at least :data:`scheduling.core.types.LEAST_CREDITS` times the replica's credit. Of several such
prompts: the worst rank, then the one of which most is left. Owners of reserved capacity are interrupted by owners only.
A prompt computes for at least :data:`RUNS_S` between two interruptions and is interrupted at most :data:`MOST` times,
so it always gets on. A request that is late already interrupts nothing. An owner that was granted beside a long prompt
may interrupt it for as long as its own first token has not come (:class:`Beside`). Left alone are requests of several
prompts or several answers, some of which may be ready and would be lost, and those that only read prompts.

Source: ours, after QoServe 3.4 (selective preemption of prefills, inside an engine). Measured:
``docs/results/front.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduling.core.admission import RIGHTS
from scheduling.core.engine_step import progressed
from scheduling.core.placement import points_up_to
from scheduling.core.types import BackendView, Grant, PoolView, QueuedRequest, is_long

RUNS_S = 0.5  # between two interruptions: more than sending it again costs
MOST = 10  # interruptions of one request


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """A prompt that runs and whose first output token has not come."""

    request: QueuedRequest  # as it was granted
    backend: str
    held: int  # of the replica's prefill credit [prompt tokens]
    granted_s: float  # the clock of the view


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that would have to wait for a long prompt: it lacks prefill credit, or was granted beside one, as an
    owner of reserved capacity is."""

    request: QueuedRequest
    backend: str = ""  # the replica it was granted on; empty: it waits, and runs wherever it has room


@dataclass(frozen=True, slots=True)
class Preemption:
    """A prompt to interrupt, and how much of it is computed by then, at least, as far as is known [tokens]."""

    prompt: LongPrompt
    computed: int
    claimed_by: str  # request id


class Beside:
    """Requests that were granted beside a long prompt, and may still wait for it inside the engine."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def granted(self, grants: Iterable[Grant], view: PoolView) -> None:
        """``view``: the pool with these grants."""
        for grant in grants:
            backend = view.backends.get(grant.backend)
            if backend is not None and backend.computes_long and grant.request.ttft_deadline_s is not None:
                self._claims[grant.request.id] = Claim(grant.request, grant.backend)

    def waiting(self, view: PoolView, now_s: float) -> list[Claim]:
        """Those that may wait now; others are forgotten."""
        self._claims = {name: claim for name, claim in self._claims.items() if _still_waits(claim, view, now_s)}
        return list(self._claims.values())


def _still_waits(claim: Claim, view: PoolView, now_s: float) -> bool:
    backend, due_s = view.backends.get(claim.backend), claim.request.ttft_deadline_s
    waits = backend is not None and backend.computes_long and backend.prefill_owned > 0
    return waits and due_s is not None and due_s >= now_s


def again_in_s(prompts: Iterable[LongPrompt], now_s: float) -> float:
    """When one of these may be interrupted that may not now; 0: none."""
    return min((s for prompt in prompts if (s := _runs_on_s(prompt, now_s)) > 0), default=0.0)


def _runs_on_s(prompt: LongPrompt, now_s: float) -> float:
    """For how long it is not interrupted again."""
    return prompt.granted_s + RUNS_S - now_s if prompt.request.preempted else 0.0


def preemptions(
    claims: Iterable[Claim],
    prompts: Sequence[LongPrompt],
    view: PoolView,
    now_s: float,
    goes_before: Callable[[QueuedRequest, QueuedRequest], bool],
) -> list[Preemption]:
    """At most one for each claim, none for two of them. ``view`` as the decision before left it; ``goes_before``:
    whether the policy lets a request go before another one, of which a part may be computed."""
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
    """The request as it waits again: it resumes where so many tokens of its prompt are computed. What others know of
    the prompt is known of that part only."""
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
    """The replica that has begun an interrupted request, which waits for it: others would compute it anew. Empty: it
    may run anywhere, as that one has failed it, is not ready, or cannot take it any more."""
    at = request.resumes_at
    if not at or at == request.exclude_backend:
        return ""
    takes = any(b.id == at and b.slots and b.takes(request.kv_tokens) and b.serves(request.adapter) for b in ready)
    return at if takes else ""


def left_of(prompt: LongPrompt, backend: BackendView) -> int:
    """How much of it is left to compute, as the replica's pace predicts it [tokens]."""
    return min(prompt.held, backend.prefill_used)


def _may_run_there(claim: Claim, backend: BackendView) -> bool:
    request = claim.request
    if claim.backend:
        return True
    elsewhere = request.resumes_at not in ("", backend.id) or request.exclude_backend == backend.id
    return not elsewhere and backend.roomy(request.kv_tokens) and backend.serves(request.adapter)


def _interrupts(request: QueuedRequest, prompt: LongPrompt, left: int, backend: BackendView, now_s: float) -> bool:
    other, due_s = prompt.request, request.ttft_deadline_s
    if due_s is None or due_s < now_s or request.rank >= other.rank:
        return False
    if not backend.computes_long or not is_long(left, backend.prefill_credit):
        return False
    if other.output_bound == 0 or other.sequences > 1:
        return False
    if RIGHTS[other.service_class].reserved and not RIGHTS[request.service_class].reserved:
        return False
    if other.preempted >= MOST or _runs_on_s(prompt, now_s) > 0 or request.prefill_tokens > left:
        return False
    per_s = backend.prefill_per_s
    return per_s <= 0 or now_s + (left + request.prefill_tokens) / per_s > due_s
