"""When must which token be there? (QoServe 3.2)

Times are seconds on the caller's clock.
"""

from __future__ import annotations

from math import inf

from scheduling.core.types import QueuedRequest, Slo


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
