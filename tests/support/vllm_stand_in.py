"""What the plugin needs of vLLM 0.32's scheduler, without vLLM: its queues, budget, KV blocks and preemption.

Written from ``vllm/v1/core/sched/scheduler.py`` (running requests first, then waiting ones while there is budget; a
request that finds no KV block preempts the last, or the one of the largest ``priority``). That the real class has this
interface is checked by ``tests/integration/test_vllm_plugin_real.py``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from scheduling.core.inside_engine.digest import ARGUMENT
from scheduling.engines.vllm_plugin.deciding import Deciding
from scheduling.engines.vllm_plugin.settings import Settings

BLOCK = 16


class Request:
    def __init__(
        self, name: str, prompt: int, output: int, *, digest: object = None, priority: int = 0, arrival: float = 0.0,
        lora: str | None = None,
    ) -> None:  # fmt: skip
        self.request_id = name
        self.num_prompt_tokens = prompt
        self.max_tokens = output
        self.priority = priority
        self.arrival_time = arrival
        self.sampling_params = SimpleNamespace(extra_args=None if digest is None else {ARGUMENT: digest})
        self.lora_request = lora
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_output_placeholders = 0
        self.is_prefill_chunk = False
        self.num_preemptions = 0
        self.blocks = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class Fcfs(deque[Request]):
    def add_request(self, request: Request) -> None:
        self.append(request)

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self.extendleft(requests)

    def peek_request(self) -> Request:
        return self[0]

    def pop_request(self) -> Request:
        return self.popleft()

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(map(id, requests))
        kept = [request for request in self if id(request) not in gone]
        self.clear()
        self.extend(kept)


@dataclass
class Output:
    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[Any] = field(default_factory=list)
    scheduled_cached_reqs: Any = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class StandIn:
    """vLLM's scheduler as far as the plugin knows it."""

    def __init__(self, *, budget: int = 2048, seats: int = 256, blocks: int = 100_000, lora: bool = False) -> None:
        self.max_num_scheduled_tokens = budget
        self.max_num_running_reqs = self.max_num_active_reqs = seats
        self.num_waiting_for_streaming_input = 0
        self.num_spec_tokens = 0
        self.need_mamba_block_aligned_split = False
        self.lora_config = object() if lora else None
        self.block_size = BLOCK
        self.free = self.blocks = blocks
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=budget)
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[object()])
        pool = SimpleNamespace(get_num_free_blocks=lambda: self.free)
        stand_in = self

        class Manager:
            block_pool = pool

            @property
            def usage(self) -> float:
                return 1 - stand_in.free / stand_in.blocks

        self.kv_cache_manager = Manager()
        self.policy = "fcfs"
        self.waiting: Any = Fcfs()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.preempted: list[str] = []

    def add_request(self, request: Request) -> None:
        self.waiting.add_request(request)
        self.requests[request.request_id] = request

    def finish(self, request: Request) -> None:
        """Ends it wherever it is, as a client that went away does."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove_requests([request])
        self._free(request)
        del self.requests[request.request_id]

    def schedule(self, throttle_prefills: bool = False) -> Output:
        budget = self.max_num_scheduled_tokens
        given: dict[str, int] = {}
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            new = min(request.num_tokens + request.num_output_placeholders - request.num_computed_tokens, budget)
            new = self._reserve_prefill_lookahead(request, request.num_computed_tokens, new)
            if new == 0:
                index += 1
                continue
            while not self._allocate(request, new):
                preempted = True
                victim = (
                    max(self.running, key=lambda r: (r.priority, r.arrival_time))
                    if self.policy == "priority"
                    else self.running[-1]
                )
                at = self.running.index(victim)
                del self.running[at]
                index -= at < index
                budget += given.pop(victim.request_id, 0)
                self._preempt_request(victim, 0.0)
                if victim is request:
                    break
            if request not in self.running:
                break
            given[request.request_id] = new
            budget -= new
            index += 1
        new_reqs, resumed = [], []
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.peek_request()
            new = min(request.num_tokens - request.num_computed_tokens, budget)
            if not self._allocate(request, new):
                break
            assert self.waiting.pop_request() is request
            self.running.append(request)
            given[request.request_id] = new
            budget -= new
            if request.num_preemptions:
                resumed.append(request.request_id)
            else:
                new_reqs.append(SimpleNamespace(req_id=request.request_id, num_computed_tokens=0))
        assert sum(given.values()) <= self.max_num_scheduled_tokens
        assert len(self.running) <= self.max_num_running_reqs
        for name, count in given.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        return Output(given, new_reqs, SimpleNamespace(resumed_req_ids=set(resumed)))

    def update_from_output(self, scheduler_output: Output, model_runner_output: Any = None) -> list[str]:
        ended = []
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.is_prefill_chunk or request not in self.running:
                continue
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.max_tokens:
                self.finish(request)
                ended.append(name)
        return ended

    def shutdown(self) -> None:
        """Nothing runs."""

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        return num_new_tokens

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        self._free(request)
        request.num_computed_tokens = 0
        request.is_prefill_chunk = False
        request.num_preemptions += 1
        self.preempted.append(request.request_id)
        self.waiting.prepend_request(request)

    def _allocate(self, request: Request, new: int) -> bool:
        need = -(-(request.num_computed_tokens + new) // BLOCK) - request.blocks
        if need > self.free:
            return False
        self.free -= max(0, need)
        request.blocks += max(0, need)
        return True

    def _free(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks = 0


class Clock:
    """Time that tests move."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


class Plugged(Deciding, StandIn):  # type: ignore[misc]
    """The plugin over the stand-in, as ``scheduler.py`` puts it over vLLM's class."""

    PRIORITY = "priority"

    def __init__(
        self, settings: Settings | None = None, clock: Callable[[], float] | None = None, **stand_in: Any
    ) -> None:
        StandIn.__init__(self, **stand_in)
        now = clock or time.monotonic
        # The wall clock is the same one: requests arrive at it.
        self.begin(settings or Settings(), Fcfs, clock=now, wall=now, run=lambda work: work())

    def step(self, clock: Clock | None = None, seconds: float = 0.01) -> dict[str, int]:
        """One step that takes so long. Returns the tokens of each request."""
        output = self.schedule()
        if clock is not None:
            clock.at += seconds
        self.update_from_output(output, None)
        given: dict[str, int] = output.num_scheduled_tokens
        return given
