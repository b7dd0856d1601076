"""Which replica runs it: routing policies.

They place what waited; what is granted on arrival is placed by the ``admit`` script, by the same rule
(:mod:`scheduling.core.placement.rule`), in the same round trip as it is admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduling.core.placement.cache_wait import PATIENCE
from scheduling.core.placement.room import Need, has_room
from scheduling.core.placement.rule import POINTS_KEPT, SKEW_TOKENS, PrefixIndex, Warmth, place
from scheduling.core.policies.contracts import Router
from scheduling.core.policies.parameters import NO_UNIT, Range, at_least, parameter
from scheduling.core.policies.registry import routing
from scheduling.core.rights import RIGHTS
from scheduling.core.types import BackendView, QueuedRequest

UNCOUNTED_S = 3.0  # for so long somebody may wait inside an engine that has lost its prefix cache
USES_PREFIX = frozenset({"prefix_affinity"})  # for others nobody has to compute one


def uncounted_s(routing: str, params: Mapping[str, object]) -> float:
    """How much of what is expected to be cached of prompts may be in flight on a replica without counting, under a
    pool's routing (:mod:`scheduling.core.placement.cached_prompts`) [seconds of its prefill]."""
    seconds = params.get("uncounted_s", UNCOUNTED_S) if routing in USES_PREFIX else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _fit(request: QueuedRequest, backends: Iterable[BackendView], warmth: Warmth | None = None) -> list[BackendView]:
    owner = RIGHTS[request.service_class].reserved  # whether it is within what is its own the scheduler has asked
    need = Need(request.kv_tokens, request.prefill_tokens, owner, warmth=warmth)
    fit = [b for b in backends if has_room(b, need) and b.id != request.exclude_backend]
    return [b for b in fit if b.serves(request.adapter)] if request.adapter else fit


@routing("least_work")
@dataclass(frozen=True, slots=True)
class LeastWork:
    """Least outstanding work.

    Question: which replica with room runs this request?
    Key: outstanding estimated tokens by how fast the replica is, then running sequences, then name: the order of the
    ``admit`` script, so that a request is placed alike whether it waited or not.
    Inputs: view of each replica (leases, not the engine's word: it is exact and never stale).
    Cost: O(replicas). Who starves: none; a replica with slow requests simply gets fewer.
    Source: join the shortest queue, with work in place of length (Harchol-Balter 2013, ch. 24).
    """

    def router(self) -> Router:
        return self

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        return place(_fit(request, backends))


@routing("prefix_affinity")
@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """The replica that has most of this prompt in its KV cache, unless others have much less to do.

    Question: which replica with room has computed this prompt's beginning already, and is it worth going there?
    Key: outstanding tokens less what the cached ones are worth (``rule.worth``), among replicas whose outstanding
    work is at most ``skew_tokens`` (or the mean, where that is more) above that of the least loaded with room. Prompts
    too short to tell: least work.
    Inputs: view of each replica; chained hashes of the prompt (``QueuedRequest.prefixes``); where prompts with these
    ran last: in Redis, shared by all gateways and the leader, who keeps the last ``remember`` hashes here as well.
    Cost: O(replicas + hashes, 16 at most), O(``remember``) memory. Who starves: none; the skew is bounded.
    Source: cache-aware routing as in SGLang (Zheng et al. 2024) and the prefix scorer of llm-d's inference gateway;
    bounded loads after Mirrokni et al. 2018.
    """

    skew_tokens: float = parameter(
        float(SKEW_TOKENS),
        "How much more outstanding work than the least loaded replica one with the prompt cached may have.",
        "tokens",
        at_least(0),
    )
    remember: int = parameter(
        2 * POINTS_KEPT, "Hashes of prompts whose replica the leader remembers.", "hashes", at_least(1)
    )
    uncounted_s: float = parameter(
        UNCOUNTED_S,
        "How long a replica may take to prefill what is expected to be cached there of prompts in flight and does "
        "not count against its prefill credit; 0: all counts.",
        "s",
        Range(minimum=0.0, maximum=30.0),
    )
    cache_patience: float = parameter(
        PATIENCE,
        "How long others may idle while a request waits for the replica that has its prompt cached, in times of "
        "computing that again; 0: not at all.",
        NO_UNIT,
        Range(minimum=0.0, maximum=100.0),
    )

    def router(self) -> Router:
        return _PrefixRouter(self)


class _PrefixRouter:
    def __init__(self, policy: PrefixAffinity) -> None:
        self._policy = policy
        self._index = PrefixIndex(max(1, policy.remember // 2))

    def __len__(self) -> int:
        return len(self._index)

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        warmth = self._index.warmth(request.prefixes)
        if warmth is not None:
            warmth = replace(warmth, skew=self._policy.skew_tokens)  # what is in force now
        chosen = place(_fit(request, backends, warmth), warmth)
        if chosen is not None:
            self._index.ran(request.prefixes, chosen.id)
        return chosen

    def warmth(self, request: QueuedRequest) -> Warmth | None:
        return self._index.warmth(request.prefixes)

    def learn(self, places: Mapping[str, str]) -> None:
        self._index.learn(places)
