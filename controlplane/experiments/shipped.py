"""The experiments by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controlplane.experiments.isolation import EVICTION, NOISY, NOISY_PROMPTS, OUTAGE
from controlplane.experiments.plan import Experiment
from controlplane.experiments.pools import POOLS_1, POOLS_2

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    e.name: e for e in (POOLS_1, POOLS_2, NOISY, NOISY_PROMPTS, OUTAGE, EVICTION)
}
