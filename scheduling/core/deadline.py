"""When must which token be there? (QoServe 3.2)

Times are seconds on the caller's clock.
"""

from __future__ import annotations

from math import inf

from scheduling.core.types import Estimate, QueuedRequest, Slo


def first_token_deadline_s(arrival_s: float, slo: Slo) -> float:
    """``D_first = arrival + TTFT`` (eq. 1); ``inf`` without that target."""
    return inf if slo.ttft_s is None else arrival_s + slo.ttft_s


def token_deadline_s(arrival_s: float, slo: Slo, n: int) -> float:
    """``D_n = arrival + TTFT + (n-1) * TBT`` of the n-th token, n >= 1 (eq. 2): an early token is slack for later ones.

    ``inf`` where the targets are not set.
    """
    if n < 1:
        raise ValueError(f"tokens are counted from 1, not {n}")
    first = first_token_deadline_s(arrival_s, slo)
    if n == 1:
        return first
    return inf if slo.tbt_s is None else first + (n - 1) * slo.tbt_s


def total_deadline_s(arrival_s: float, slo: Slo) -> float:
    """``D_total = arrival + TTLT`` (eq. 3); ``inf`` without that target."""
    return inf if slo.ttlt_s is None else arrival_s + slo.ttlt_s


def ordering_deadline_s(request: QueuedRequest) -> float:
    """The deadline that orders a request: of its first token if it is interactive, else of its last, else ``inf``."""
    if request.ttft_deadline_s is not None:
        return request.ttft_deadline_s
    return inf if request.ttlt_deadline_s is None else request.ttlt_deadline_s


PACE_S = 0.1  # s per token that an answer is expected to take where only its last token is promised


def prefill_due_s(request: QueuedRequest, pace_s: float) -> float:
    """When its prefill has to be done [s]: the deadline of the first token, or that of the last less ``pace_s`` for
    each output token that is expected; ``inf`` without a deadline.

    Orders by deadline, relegation and selective preemption go by this one time: an order by another one would serve
    what relegation then gives up.
    """
    if request.ttft_deadline_s is not None:
        return request.ttft_deadline_s
    return inf if request.ttlt_deadline_s is None else request.ttlt_deadline_s - pace_s * request.output_tokens


FEW = 0.25  # of the answers that are thought possible


def few_tokens(estimate: Estimate) -> float:
    """How many tokens an answer has at least with three chances in four; half of what is expected where only that is
    known."""
    reached = 0.0
    for length, probability in zip(estimate.output_lengths, estimate.output_probabilities, strict=True):
        reached += probability
        if reached >= FEW:
            return length
    return estimate.output_tokens / 2.0


def client_due_s(request: QueuedRequest, token_s: float) -> float:
    """When its prefill has to be done so that its client is still there for the answer, at ``token_s`` per output token
    [s]; ``inf`` where its client does not say how long it waits. It never puts a request earlier, so that nobody gains
    by a short time."""
    return inf if request.leaves_s is None else request.leaves_s - token_s * request.leaves_tokens


NO_DEADLINE_S = 600.0  # after its arrival a request without a deadline is due at an engine
USUAL_TOKENS = 1_000.0  # prompt and answer of a usual request
USUAL_COST = 500_000.0  # its token steps of KV


def due_by_deadline_s(request: QueuedRequest, pace_s: float, work_s: float = 0.0) -> float:
    """When a request is due at an engine by :func:`prefill_due_s`, ``work_s`` later for its work: finite without a
    deadline."""
    deadline_s = prefill_due_s(request, pace_s)
    return (request.arrival_s + NO_DEADLINE_S if deadline_s == inf else deadline_s) + work_s


def due_by_cost_s(request: QueuedRequest, cost: float, usual: float) -> float:
    """When a request is due at an engine by its cost: of those that arrived together the cheaper one first, and
    each less than :data:`NO_DEADLINE_S` after its arrival (``usual`` cost: half of that): none waits for ever."""
    return request.arrival_s + NO_DEADLINE_S * (1.0 if cost == inf else cost / (cost + usual))
