"""Figures of a Prometheus page with bounds: what cannot be true is an error where decisions rest on it, else unknown.

GPU figures: NVIDIA's DCGM exporter, from the replica's own page or from a backend's ``dcgm_url``.
"""

from __future__ import annotations

from scheduling.engines import prometheus_text as prom
from scheduling.engines.client import EngineProtocolError

MAX_REQUESTS = 1_000_000  # sequences a server can say that it runs or queues
MAX_COUNTED = 1e15  # of tokens or requests since its start: a million a second for 30 years
MAX_GPU_BYTES = float(2**50)
MIB = 1024 * 1024


def plausible(name: str, value: float, most: float) -> float:
    """A figure that decisions rest on; raises :class:`EngineProtocolError` where it cannot be true."""
    if not 0 <= value <= most:
        raise EngineProtocolError(f"/metrics says that {name} is {value:g}, which cannot be")
    return value


def counted(page: str, name: str) -> float | None:
    """A counter, summed over the page's series; None, not known, where it is not there or is no number."""
    value = prom.total(page, (name,))
    return None if value is None else plausible(name, value, MAX_COUNTED)


def histogram(page: str, *names: str) -> tuple[float | None, float]:
    """Sum and number of a histogram's observations, summed over its series, under the first of ``names`` that the page
    has; ``(None, 0)``, not known, where it has none or they cannot be true."""
    for name in names:
        total, number = prom.total(page, (f"{name}_sum",)), prom.total(page, (f"{name}_count",))
        if total is not None and number is not None:
            true = 0 <= total <= MAX_COUNTED and 0 <= number <= MAX_COUNTED
            return (total, number) if true else (None, 0.0)
    return None, 0.0


def share(value: float | None, whole: float = 1.0) -> float | None:
    """0 to 1 of ``whole``, up to a rounding error; None, not known, for anything else."""
    if value is None or not 0 <= value <= 1.01 * whole:
        return None
    return min(1.0, value / whole)


def gpu(page: str) -> tuple[float | None, float | None, float | None]:
    """Utilization 0..1, memory used and in all [bytes] from a DCGM exporter's text; None for what it does not say.

    Utilization is the share of time in which the multiprocessors work (``SM_ACTIVE``, a ratio) where the exporter is
    told to report it; ``GPU_UTIL`` (percent) only says that some kernel runs, which is always so under load.
    """
    active = prom.mean(page, ("DCGM_FI_PROF_SM_ACTIVE",))
    busy = prom.mean(page, ("DCGM_FI_DEV_GPU_UTIL",)) if active is None else None
    used = prom.total(page, ("DCGM_FI_DEV_FB_USED",))
    free = prom.total(page, ("DCGM_FI_DEV_FB_FREE",))
    return (
        share(active) if busy is None else share(busy, 100.0),
        _bytes(used),
        None if used is None or free is None else _bytes(used + free),
    )


def _bytes(mib: float | None) -> float | None:
    return None if mib is None or not 0 <= mib * MIB <= MAX_GPU_BYTES else mib * MIB
