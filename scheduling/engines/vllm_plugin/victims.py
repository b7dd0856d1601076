"""Which requests vLLM preempts when its cache is full: the last by the policy, judged by what each has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduling.core.inside_engine.step import last_first, place_among_running
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.types import QueuedRequest
from scheduling.engines.vllm_plugin.order import EngineRequest

VICTIMS = 16  # of one step that are ranked; vLLM rarely needs a second
LOOKED = 64  # running requests that one step looks at, whether their place is still true
PLACED = 24  # ... and places anew, at 5 to 9 us each
AHEAD = 4  # places are kept up to date from so many times the blocks on that a step may need


class Victims:
    """Of one engine. ``look`` says what policies are told of a request; ``groups``: of its KV cache."""

    def __init__(
        self,
        engine: Any,
        policy: OrderingPolicy,
        look: Callable[[EngineRequest], QueuedRequest],
        groups: int,
        bucket_tokens: int,
    ) -> None:
        self._engine = engine
        self._look = look
        self._groups = groups
        self._bucket_tokens = bucket_tokens
        self.place = place_among_running(policy)
        self.ranked: list[EngineRequest] = []  # who has a priority as a victim
        self._place_from = 0  # index among the running

    def rank(self, decodes: int, begun: int, room: int) -> None:
        """Says whom vLLM preempts, where it might have to: the last by the policy.

        No step looks at more than :data:`LOOKED` or places more than :data:`PLACED`. So that few are left to place when
        the cache is full, it begins before that. Who has no place yet is not preempted while others have one.
        """
        for request in self.ranked:
            request.priority = 0
        self.ranked = []
        need = self._groups * (decodes + begun + room // self._engine.block_size + 1)
        free = self._engine.kv_cache_manager.block_pool.get_num_free_blocks()
        if free >= need * AHEAD:
            return
        self._place_running()
        if free >= need:
            return
        rows = [row for request in self._engine.running if (row := request.quartermaster.standing) is not None]
        for at, name in enumerate(last_first(rows, VICTIMS)):
            request = self._engine.requests[name]
            request.priority = VICTIMS - at  # vLLM preempts the largest
            self.ranked.append(request)

    def _place_running(self) -> None:
        """Places anew who has been admitted, has ended its prompt, or has come to another bucket."""
        bucket_tokens, left, running = self._bucket_tokens, PLACED, self._engine.running
        at = self._place_from
        for _ in range(min(LOOKED, len(running))):
            at = at + 1 if at + 1 < len(running) else 0
            request = running[at]
            state = request.quartermaster
            bucket = -2 if request.is_prefill_chunk else request.num_output_tokens // bucket_tokens
            if bucket != state.bucket:
                state.bucket = bucket
                state.standing = (self.place(self._look(request)), state.order, request.request_id)
                left -= 1
                if not left:
                    break
        self._place_from = at
