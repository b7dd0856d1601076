"""Control calls to one vLLM server (replica): what it says about itself, and whether it really generates.

Metric names: vLLM 0.32 (https://docs.vllm.ai/en/latest/usage/metrics.html), older spellings second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import msgspec

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.engines import figures
from scheduling.engines import prometheus_text as prom
from scheduling.engines.client import (
    FACTS_TIMEOUT_S,
    LOAD_TIMEOUT_S,
    SCRAPE_TIMEOUT_S,
    WAKE_TIMEOUT_S,
    EngineKind,
    EngineMetrics,
    EngineProtocolError,
    EngineRefused,
)
from scheduling.engines.kinds.openai import MAX_CONTEXT, OpenAiClient

MAX_LINE_CHARS = 64 * 1024  # of a line of metrics that is read as labels; vLLM's has 2,000
TOKEN_TIMES = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")  # between tokens
MAX_KV_TOKENS = 10**12  # no cache holds more


def parse_metrics(page: str) -> EngineMetrics:
    """Reads vLLM's ``/metrics`` text. Raises :class:`EngineProtocolError` when it is not vLLM's."""
    counters = prom.samples(page, "vllm:prompt_tokens_total")
    running, waiting = (_gauge(page, f"vllm:num_requests_{of}", bool(counters)) for of in ("running", "waiting"))
    if running is None or waiting is None:
        raise EngineProtocolError(
            "/metrics has no numbers for vllm:num_requests_running and num_requests_waiting; is this a vLLM server?"
        )
    util, used, total = figures.gpu(page)
    between_s, between = figures.histogram(page, *TOKEN_TIMES)
    return EngineMetrics(
        running=int(figures.plausible("vllm:num_requests_running", running, figures.MAX_REQUESTS)),
        waiting=int(figures.plausible("vllm:num_requests_waiting", waiting, figures.MAX_REQUESTS)),
        kv_usage=figures.share(prom.mean(page, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))),
        generation_tokens=figures.counted(page, "vllm:generation_tokens_total"),
        prompt_tokens=figures.counted(page, "vllm:prompt_tokens_total"),
        successes=figures.counted(page, "vllm:request_success_total"),
        preemptions=figures.counted(page, "vllm:num_preemptions_total"),
        gpu_util=util,
        gpu_mem_used_bytes=used,
        gpu_mem_total_bytes=total,
        engines=max(1, len(counters), len(prom.samples(page, "vllm:num_requests_running"))),
        kv_tokens=kv_tokens_of(page),
        steps=figures.counted(page, "vllm:iteration_tokens_total_count"),
        between_tokens_s=between_s,
        between_tokens=between,
        cached_tokens=_cached(page),
        keeps_prefixes=keeps_prefixes(page),
        asleep=asleep(page),
    )


def _gauge(page: str, name: str, counts: bool) -> float | None:
    """Summed over engines. A server of several API processes (the default with data parallelism) shows an engine's
    gauges from its first request on, its counters from the start: what ``counts`` and has no such line yet has 0."""
    if counts and not any(f"\n{name}{end}" in f"\n{page}" for end in "{ "):
        return 0.0
    return prom.total(page, (name,))


def _cached(page: str) -> float:
    """Prompt tokens found in caches, of prompts that are done, as ``prompt_tokens`` are. Releases that do not say show
    hits instead, counted when a prompt begins: a prompt of seconds has them in another look than its tokens, and one
    that is aborted has no tokens at all."""
    name = "vllm:prompt_tokens_cached_total"
    return figures.counted(page, name if prom.samples(page, name) else "vllm:prefix_cache_hits_total") or 0.0


_SLEEP_STATE = "vllm:engine_sleep_state{"
MAX_SLEEP_CHARS = 1024  # of such a line: an engine, a model's name, a state


def asleep(page: str) -> bool:
    """Whether an engine behind ``/metrics`` is asleep. False where it does not say (releases without sleep mode)."""
    at = page.find(_SLEEP_STATE)
    while at >= 0:
        line = page[at : at + MAX_SLEEP_CHARS].partition("\n")[0]
        if 'sleep_state="awake"' in line and line.rpartition(" ")[2] in ("0", "0.0"):
            return True
        at = page.find(_SLEEP_STATE, at + 1)
    return False


_CACHE_CONFIG = "vllm:cache_config_info{"
_LABEL = re.compile(r'\b(\w+)="([^"]*)"')  # a word is tried once, from its beginning: a long one costs no square


def kv_tokens_of(page: str) -> int | None:
    """KV cache [tokens] that the engines behind ``/metrics`` report, None where they do not: their own figure, or
    blocks x block size of releases that have none. Takes time in proportion to the page, whatever is on it."""
    total = 0
    for values in _cache_configs(page):
        try:
            if values.get("kv_cache_size_tokens", "None") != "None":
                tokens, each = int(values["kv_cache_size_tokens"][:20]), 1
            else:
                tokens, each = int(values["num_gpu_blocks"][:20]), int(values["block_size"][:20])
        except (KeyError, ValueError):
            return None
        if not (0 < tokens <= MAX_KV_TOKENS and 0 < each <= MAX_KV_TOKENS):
            return None
        total += tokens * each
    return total if 0 < total <= MAX_KV_TOKENS else None


def keeps_prefixes(page: str) -> bool:
    """Whether all engines behind ``/metrics`` say that what they have computed of a prompt stays in their prefix cache.
    False where they do not say."""
    says = False
    for values in _cache_configs(page):
        if values.get("enable_prefix_caching") != "True":
            return False
        says = True
    return says


def _cache_configs(page: str) -> Iterator[dict[str, str]]:
    """The labels of each engine's cache configuration; empty ones for a line that has no end, and for those beyond
    :data:`scheduling.engines.prometheus_text.MOST_SERIES`."""
    seen = 0
    start = 0 if page.startswith(_CACHE_CONFIG) else page.find("\n" + _CACHE_CONFIG) + 1
    while start > 0 or (start == 0 and page.startswith(_CACHE_CONFIG)):
        end = page.find("}", start, start + MAX_LINE_CHARS)
        line = page[start + len(_CACHE_CONFIG) : end]
        seen += 1
        if end < 0 or "\n" in line or seen > prom.MOST_SERIES:
            yield {}
            return
        yield dict(_LABEL.findall(line))
        start = page.find("\n" + _CACHE_CONFIG, start) + 1
        if start == 0:
            return


def believed(value: int | None, most: int) -> int | None:
    """A limit that can be true, else None: not known."""
    return value if value is not None and 0 < value <= most else None


class _SchedulerConfig(msgspec.Struct):
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    policy: str | None = None


class _VllmConfig(msgspec.Struct):
    scheduler_config: _SchedulerConfig = msgspec.field(default_factory=_SchedulerConfig)


class _ServerInfo(msgspec.Struct):
    vllm_config: _VllmConfig


class VllmClient(OpenAiClient):
    """Control calls to one replica. Every method raises :class:`EngineError` unless it says otherwise."""

    health_path: ClassVar[str] = "/health"
    # The engine's most urgent priority: a probe behind a full queue would eject a busy, healthy replica.
    probe_extras: ClassVar[dict[str, object]] = {"priority": -(2**31)}

    async def scrape(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics:
        """The metrics now. A GPU exporter that does not answer leaves its fields None and fails nothing."""
        return await self._with_gpu(parse_metrics(await self.page(timeout_s)), timeout_s)

    async def kv_tokens(self, timeout_s: float = 5.0) -> int | None:
        return kv_tokens_of(await self.page(timeout_s))

    async def load_adapter(self, name: str, source: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """vLLM has the path only under ``--enable-lora`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``: without them it
        answers 404 (https://docs.vllm.ai/en/latest/features/lora.html)."""
        body = {"lora_name": name, "lora_path": source}
        await self._call("POST", "/v1/load_lora_adapter", timeout_s=timeout_s, json=body)

    async def sleep(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        """vLLM has the path only under ``VLLM_SERVER_DEV_MODE=1``, and frees memory only under ``--enable-sleep-mode``
        (https://docs.vllm.ai/en/latest/features/sleep_mode.html). Weights go to host memory; what runs ends first."""
        await self._call("POST", "/sleep?level=1&mode=wait", timeout_s=timeout_s)

    async def wake(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        """The path is there under the same condition."""
        await self._call("POST", "/wake_up", timeout_s=timeout_s)

    async def facts(self, engines: int = 1) -> EngineFacts:
        """What it says of its limits; ``engines`` behind it have them each.

        The context is in ``/v1/models``. The scheduler's limits are nowhere but in ``/server_info``, which vLLM has
        only under ``VLLM_SERVER_DEV_MODE=1``: without it they stay None. What it answers that is not vLLM's says
        nothing. Raises EngineUnreachable where it does not answer.
        """
        context = await self._context()
        try:
            body = await self._call("GET", "/server_info?config_format=json", timeout_s=FACTS_TIMEOUT_S)
            config = msgspec.json.decode(body, type=_ServerInfo).vllm_config.scheduler_config
        except (EngineRefused, EngineProtocolError, msgspec.MsgspecError, ValueError, RecursionError):
            return EngineFacts(max_model_len=context)
        slots, budget = (
            believed(config.max_num_seqs, figures.MAX_REQUESTS),
            believed(config.max_num_batched_tokens, MAX_CONTEXT),
        )
        return EngineFacts(
            slots=None if slots is None else min(figures.MAX_REQUESTS, slots * engines),
            step_tokens=None if budget is None else budget * engines,
            max_model_len=context,
            priority=None if config.policy is None else config.policy == "priority",
        )


KIND = EngineKind(
    name="vllm",
    label="vLLM",
    make=VllmClient,
    reports=True,
    takes_priority=True,
    takes_cache_salt=True,
    tokenizes=True,
    lacks=(),
    loads_adapters=True,
    cuts_answers=True,
    sleeps=True,
    hands_over=True,
)
