"""What tiers are promised and what they do above a limit, where a trace does not say.

The shipped tiers are those that come with the product; their shares are those of its demo load. A comparison may ask
for others by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduling.core.types import OverLimit, ServiceClass, Slo
from scheduling.simulator.workload import Tier


class ContractError(ValueError):
    """A contract that cannot be read: what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A tier, and what it does with requests above its limits."""

    tier: Tier
    over_limit: OverLimit = OverLimit.REFUSE
    queue_limit: int = 100  # requests of one tenant that may wait
    max_wait_s: float = 30.0

    @property
    def says(self) -> str:
        """In words."""
        slo = self.tier.slo
        promised = [f"{key} {value:g} s" for key, name in _SLO.items() if (value := getattr(slo, name)) is not None]
        above = "waits" if self.over_limit is OverLimit.WAIT else "is refused"
        limits = f"{above} above its limit (queue {self.queue_limit}, {self.max_wait_s:g} s)"
        return f"{self.tier.name} is {self.tier.service_class}, promised {', '.join(promised) or 'nothing'}, {limits}"


_SLO = {"ttft": "ttft_s", "tbt": "tbt_s", "ttlt": "ttlt_s"}
KEYS = ("class", *_SLO, "over", "queue", "max_wait")
SHIPPED_CONTRACTS = (
    Contract(Tier("premium", Slo(ttft_s=1.0, tbt_s=0.1), 0, 50.0, 0.2, ServiceClass.GUARANTEED)),
    Contract(
        Tier("standard", Slo(ttft_s=5.0, tbt_s=0.2), 1, 30.0, 0.5, ServiceClass.ELASTIC),
        queue_limit=500,
        max_wait_s=60.0,
    ),
    Contract(Tier("batch", Slo(ttlt_s=600.0), 2, 20.0, 0.3, ServiceClass.SPOT), OverLimit.WAIT, 5000, 600.0),
)
SHIPPED = tuple(contract.tier for contract in SHIPPED_CONTRACTS)


def contract_of(name: str, changed: Iterable[Contract] = ()) -> Contract:
    """The contract of a tier: as it was changed, as shipped, or that of a tier that says nothing."""
    known = {contract.tier.name: contract for contract in (*SHIPPED_CONTRACTS, *changed)}
    return known.get(name, Contract(Tier(name)))


def parse_contract(text: str) -> Contract:
    """``premium:ttlt=300,over=wait``: a shipped tier with another promise or other limits. Latencies that are not named
    are promised as shipped if none is, and else not at all. Raises ContractError."""
    name, _, rest = text.partition(":")
    shipped = {contract.tier.name: contract for contract in SHIPPED_CONTRACTS}
    if name not in shipped or not rest:
        raise ContractError(f"contract {text!r} is not TIER:KEY=VALUE,... with a TIER of {', '.join(shipped)}")
    contract = shipped[name]
    values: dict[str, str] = {}
    for pair in rest.split(","):
        key, _, value = pair.partition("=")
        if key not in KEYS or not value:
            raise ContractError(f"contract {text!r}: {pair!r} is not KEY=VALUE with a KEY of {', '.join(KEYS)}")
        values[key] = value
    try:
        slo = Slo(**{_SLO[key]: _seconds(value) for key, value in values.items() if key in _SLO})
        tier = replace(
            contract.tier,
            service_class=ServiceClass(values.get("class", contract.tier.service_class)),
            slo=slo if any(key in _SLO for key in values) else contract.tier.slo,
        )
        return Contract(
            tier,
            OverLimit(values.get("over", contract.over_limit)),
            _requests(values["queue"]) if "queue" in values else contract.queue_limit,
            _seconds(values["max_wait"]) if "max_wait" in values else contract.max_wait_s,
        )
    except ValueError as error:
        raise ContractError(f"contract {text!r}: {error}") from error


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{text} is no time above 0 s")
    return seconds


def _requests(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError(f"{text} is no number of requests")
    return number
