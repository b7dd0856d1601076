"""Prompts that prefill replicas of a simulated pool compute for requests on its decode replicas, as gateways have it.

A leg goes to the replica that the live rule chooses (:func:`scheduling.core.placement.legs.choose_leg`), is a request
for one token there, and is over when that has come. Its KV cache is then on its way for as long as between two
simulated engines, and the decode replica computes the prompt's last token and writes the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.core.placement.legs import PrefillReplica, choose_leg, transfer_s
from scheduling.core.types import Phase
from scheduling.simulator.engine import Engine
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import SimRequest


@dataclass(slots=True)
class Leg:
    """``life``: in the engine of the prefill replica ``at``; its ``replica`` is the decode one."""

    life: Life
    at: int
    over: bool = False


class Legs:
    """``engines``: of all replicas, by their numbers. The prefill replicas come last, as the pool's view has them not.

    Raises ValueError where they do not, and for decode replicas without any."""

    def __init__(self, replicas: Sequence[Replica], engines: Sequence[Engine]) -> None:
        phases = [replica.phase for replica in replicas]
        self.answering = [n for n, phase in enumerate(phases) if phase is not Phase.PREFILL]
        self._prefill = {str(n): replicas[n] for n in range(len(self.answering), len(replicas))}
        if any(replica.phase is not Phase.PREFILL for replica in self._prefill.values()):
            raise ValueError("prefill replicas have to be the last ones")
        if (Phase.DECODE in phases) != bool(self._prefill):
            raise ValueError("decode replicas need a prefill replica, and prefill replicas a decode replica")
        self._engines = engines
        self._legs: dict[str, Leg] = {}  # of requests that have not ended

    def begin(self, request: SimRequest, decode: int) -> Leg:
        """The leg of a request that was granted to a decode replica now."""
        at = int(self._choose())
        life = self._engines[at].offer(replace(request, output_tokens=1))
        life.replica = decode
        leg = self._legs[request.queued.id] = Leg(life, at)
        return leg

    def _choose(self) -> str:
        opened = [leg for leg in self._legs.values() if not leg.over]
        having = []
        for name, replica in self._prefill.items():
            tokens = [leg.life.sim.queued.prefill_tokens for leg in opened if str(leg.at) == name]
            having.append(PrefillReplica(name, replica.slots, len(tokens), sum(tokens)))
        chosen = choose_leg(having)
        assert chosen is not None
        return chosen

    def of(self, life: Life) -> Leg | None:
        """The leg that this is, if it is one of a request that has not ended."""
        leg = self._legs.get(life.sim.queued.id)
        return leg if leg is not None and leg.life is life else None

    def on_its_way_fs(self, leg: Leg) -> int:
        """How long its KV cache takes to the decode replica."""
        replica = self._prefill[str(leg.at)]
        return to_fs(transfer_s(leg.life.sim.input_tokens, replica.kv_bytes_per_token))

    def end(self, request_id: str) -> Leg | None:
        """Its request has ended."""
        return self._legs.pop(request_id, None)
