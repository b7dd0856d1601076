"""What may an entitlement do by its service class? (token pools, Table 1)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from scheduling.core.types import EntitlementSpec, EntitlementState, ServiceClass


@dataclass(frozen=True, slots=True)
class Rights:
    """What a service class may do (token pools, Table 1)."""

    baseline: bool = False  # r_e is promised: the pool's headroom is kept for it
    reserved: bool = False  # within r_e never refused for contention, and ahead of all that are not reserved
    bursts: bool = False  # beyond r_e and chi_e while the pool is idle
    over_budget: bool = False  # beyond its bucket likewise; such tokens are not charged
    evicts: bool = False  # within r_e it takes a preemptible request's slot when there is no other


RIGHTS: Final[Mapping[ServiceClass, Rights]] = {
    ServiceClass.DEDICATED: Rights(baseline=True, reserved=True, bursts=True, over_budget=True, evicts=True),
    ServiceClass.GUARANTEED: Rights(baseline=True, reserved=True, evicts=True),
    ServiceClass.ELASTIC: Rights(baseline=True, bursts=True, evicts=True),
    ServiceClass.SPOT: Rights(bursts=True),
    ServiceClass.PREEMPTIBLE: Rights(bursts=True),
}


def rights_of(spec: EntitlementSpec) -> Rights:
    """Those of its class; a promise that the pool cannot keep now reserves nothing (``docs/reference/capacity.md``)."""
    rights = RIGHTS[spec.tier.service_class]
    return rights if spec.state is EntitlementState.BOUND else replace(rights, reserved=False)


def cap_of(service_class: ServiceClass, concurrency: int) -> int | None:
    """How many of an entitlement may run at most; None where idle capacity is the only bound."""
    return None if RIGHTS[service_class].bursts else concurrency


def baseline_slots(service_class: ServiceClass, concurrency: int) -> int:
    """How many running requests of an entitlement the pool's headroom is for."""
    return concurrency if RIGHTS[service_class].baseline else 0


def able_to_run(waiting: int, running: int, cap: int | None) -> int:
    """How many of an entitlement's waiting requests could run if slots were free."""
    return waiting if cap is None else max(0, min(waiting, cap - running))
