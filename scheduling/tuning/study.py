"""When it is time for a study, and whether prompts have changed."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.tuning.prompt_change import ks
from scheduling.tuning.settings import LoopSettings

REFERENCE = 50  # lengths without which nothing is compared


def due(now_s: float, last_s: float | None, changed_s: float | None, every_s: float) -> bool:
    """Whether it is time for a study: ``every_s`` after the last one; after prompts changed at once, and then at twice
    the distance each time, for the first of these know little of the new ones."""
    if last_s is None or now_s - last_s >= every_s:
        return True
    return changed_s is not None and now_s - changed_s >= 2.0 * max(0.0, last_s - changed_s)


def drifted(seen: Sequence[int], recent: Sequence[int], settings: LoopSettings) -> tuple[float, float] | None:
    """The gap between the prompt lengths that queues were cut from and recent ones, and its chance, if it is drift."""
    if len(seen) < REFERENCE or not recent:
        return None
    gap, chance = ks(seen, recent)
    return (gap, chance) if gap >= settings.drift_gap and chance < settings.drift_p else None
