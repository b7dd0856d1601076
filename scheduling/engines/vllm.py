"""Control calls to one vLLM server (replica): what it says about itself, and whether it really generates.

Metric names: vLLM 0.32 (https://docs.vllm.ai/en/latest/usage/metrics.html), older spellings second; GPU figures:
NVIDIA's DCGM exporter, from the replica's own page or from ``dcgm_url``.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace

import httpx
import msgspec

from scheduling.core.engine_limits import EngineFacts
from scheduling.core.engine_status import what_it_means
from scheduling.engines import prometheus_text as prom
from scheduling.engines.client import (
    FACTS_TIMEOUT_S,
    PROBE_TIMEOUT_S,
    SCRAPE_TIMEOUT_S,
    EngineError,
    EngineMetrics,
    EngineModel,
    EngineProtocolError,
    EngineRefused,
    EngineUnreachable,
    Probe,
    fetch,
)

MAX_LINE_CHARS = 64 * 1024  # of a line of metrics that is read as labels; vLLM's has 2,000
MAX_REQUESTS = 1_000_000  # sequences a server can say that it runs or queues
MAX_COUNTED = 1e15  # of tokens or requests since its start: a million a second for 30 years
MAX_GPU_BYTES = float(2**50)
MAX_MODELS, MAX_NAME_CHARS = 1000, 256
MAX_CONTEXT = 1_000_000_000
MAX_KV_TOKENS = 10**12  # no cache holds more
MIB = 1024 * 1024


def parse_metrics(page: str) -> EngineMetrics:
    """Reads vLLM's ``/metrics`` text. Raises :class:`EngineProtocolError` when it is not vLLM's."""
    running = prom.total(page, ("vllm:num_requests_running",))
    waiting = prom.total(page, ("vllm:num_requests_waiting",))
    if running is None or waiting is None:
        raise EngineProtocolError(
            "/metrics has no numbers for vllm:num_requests_running and num_requests_waiting; is this a vLLM server?"
        )
    util, used, total = parse_gpu(page)
    return EngineMetrics(
        running=int(_plausible("vllm:num_requests_running", running, MAX_REQUESTS)),
        waiting=int(_plausible("vllm:num_requests_waiting", waiting, MAX_REQUESTS)),
        kv_usage=_share(prom.mean(page, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))),
        generation_tokens=_counted(page, "vllm:generation_tokens_total"),
        prompt_tokens=_counted(page, "vllm:prompt_tokens_total"),
        successes=_counted(page, "vllm:request_success_total"),
        preemptions=_counted(page, "vllm:num_preemptions_total"),
        gpu_util=util,
        gpu_mem_used_bytes=used,
        gpu_mem_total_bytes=total,
        engines=max(1, len(prom.samples(page, "vllm:num_requests_running"))),
        kv_tokens=kv_tokens_of(page),
        steps=prom.total(page, ("vllm:iteration_tokens_total_count",)),
        cached_tokens=_counted(page, "vllm:prefix_cache_hits_total"),
    )


_CACHE_CONFIG = "vllm:cache_config_info{"
_LABEL = re.compile(r'\b(\w+)="([^"]*)"')  # a word is tried once, from its beginning: a long one costs no square


def kv_tokens_of(page: str) -> int | None:
    """KV cache [tokens] that the engines behind ``/metrics`` report, None where they do not: their own figure, or
    blocks x block size of releases that have none. Takes time in proportion to the page, whatever is on it."""
    total, start = 0, 0 if page.startswith(_CACHE_CONFIG) else page.find("\n" + _CACHE_CONFIG) + 1
    if start == 0 and not page.startswith(_CACHE_CONFIG):
        return None
    while True:
        line, _, _ = page[start : start + MAX_LINE_CHARS].partition("\n")
        labels, closed, _ = line[len(_CACHE_CONFIG) :].partition("}")
        if not closed:
            return None
        values = dict(_LABEL.findall(labels))
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
        start = page.find("\n" + _CACHE_CONFIG, start) + 1
        if start == 0:
            return total if total <= MAX_KV_TOKENS else None


def _plausible(name: str, value: float, most: float) -> float:
    """A figure that decisions rest on; raises :class:`EngineProtocolError` where it cannot be true."""
    if not 0 <= value <= most:
        raise EngineProtocolError(f"/metrics says that {name} is {value:g}, which cannot be")
    return value


def _believed(value: int | None, most: int) -> int | None:
    """A limit that can be true, else None: not known."""
    return value if value is not None and 0 < value <= most else None


def _counted(page: str, name: str) -> float:
    return _plausible(name, prom.total(page, (name,)) or 0.0, MAX_COUNTED)


def _share(value: float | None, whole: float = 1.0) -> float | None:
    """0 to 1 of ``whole``, up to a rounding error; None, not known, for anything else."""
    if value is None or not 0 <= value <= 1.01 * whole:
        return None
    return min(1.0, value / whole)


def _bytes(mib: float | None) -> float | None:
    return None if mib is None or not 0 <= mib * MIB <= MAX_GPU_BYTES else mib * MIB


def parse_gpu(page: str) -> tuple[float | None, float | None, float | None]:
    """Utilization 0..1, memory used and in all [bytes] from a DCGM exporter's text; None for what it does not say.

    Utilization is the share of time in which the multiprocessors work (``SM_ACTIVE``, a ratio) where the exporter is
    told to report it; ``GPU_UTIL`` (percent) only says that some kernel runs, which is always so under load.
    """
    active = prom.mean(page, ("DCGM_FI_PROF_SM_ACTIVE",))
    busy = prom.mean(page, ("DCGM_FI_DEV_GPU_UTIL",)) if active is None else None
    used = prom.total(page, ("DCGM_FI_DEV_FB_USED",))
    free = prom.total(page, ("DCGM_FI_DEV_FB_FREE",))
    return (
        _share(active) if busy is None else _share(busy, 100.0),
        _bytes(used),
        None if used is None or free is None else _bytes(used + free),
    )


class _ModelCard(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


class _SchedulerConfig(msgspec.Struct):
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    policy: str | None = None


class _VllmConfig(msgspec.Struct):
    scheduler_config: _SchedulerConfig = msgspec.field(default_factory=_SchedulerConfig)


class _ServerInfo(msgspec.Struct):
    vllm_config: _VllmConfig


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Generated(msgspec.Struct):
    usage: _Usage


class VllmClient:
    """Control calls to one replica. Every method raises :class:`EngineError` unless it says otherwise."""

    def __init__(
        self, url: str, *, http: httpx.AsyncClient, model: str = "", api_key: str = "", dcgm_url: str = ""
    ) -> None:
        """``url`` without path; ``model`` is what a probe asks for (empty: the first the server offers)."""
        self.url = url.rstrip("/")
        self.model = model
        self._dcgm_url = dcgm_url
        self._http = http
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def __repr__(self) -> str:
        return f"VllmClient({self.url!r})"

    async def scrape(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics:
        """The metrics now. A GPU exporter that does not answer leaves its fields None and fails nothing."""
        metrics = parse_metrics(await self.page(timeout_s))
        if not self._dcgm_url:
            return metrics
        try:
            gpu = await self._call("GET", self._dcgm_url, timeout_s=timeout_s)
        except EngineError:
            return metrics
        util, used, total = parse_gpu(gpu.decode(errors="replace"))
        return replace(metrics, gpu_util=util, gpu_mem_used_bytes=used, gpu_mem_total_bytes=total)

    async def page(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> str:
        """The text of ``/metrics``."""
        return (await self._call("GET", "/metrics", timeout_s=timeout_s)).decode(errors="replace")

    async def kv_tokens(self, timeout_s: float = 5.0) -> int | None:
        return kv_tokens_of(await self.page(timeout_s))

    async def health(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> bool:
        """Whether ``/health`` is 200. Never raises. Says little: a dead engine behind a live front answers 200 too."""
        try:
            await self._call("GET", "/health", timeout_s=timeout_s)
        except EngineError:
            return False
        return True

    async def models(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> list[EngineModel]:
        """The models it serves, with their context length [tokens] where it says so."""
        body = await self._call("GET", "/v1/models", timeout_s=timeout_s)
        try:
            cards = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EngineProtocolError(f"/v1/models is not a model list: {error}") from error
        return [
            EngineModel(card.id, card.max_model_len if 0 < (card.max_model_len or 0) <= MAX_CONTEXT else None)
            for card in cards[:MAX_MODELS]
            if 0 < len(card.id) <= MAX_NAME_CHARS
        ]

    async def facts(self, engines: int = 1) -> EngineFacts:
        """What it says of its limits; ``engines`` behind it have them each.

        The context is in ``/v1/models``. The scheduler's limits are nowhere but in ``/server_info``, which vLLM has
        only under ``VLLM_SERVER_DEV_MODE=1``: without it they stay None. What it answers that is not vLLM's says
        nothing. Raises EngineUnreachable where it does not answer.
        """
        try:
            models = {model.id: model.max_model_len for model in await self.models()}
        except (EngineRefused, EngineProtocolError):
            models = {}
        context = models.get(self.model) if self.model else next(iter(models.values()), None)
        try:
            body = await self._call("GET", "/server_info?config_format=json", timeout_s=FACTS_TIMEOUT_S)
            config = msgspec.json.decode(body, type=_ServerInfo).vllm_config.scheduler_config
        except (EngineRefused, EngineProtocolError, msgspec.MsgspecError, ValueError, RecursionError):
            return EngineFacts(max_model_len=context)
        slots, budget = (
            _believed(config.max_num_seqs, MAX_REQUESTS),
            _believed(config.max_num_batched_tokens, MAX_CONTEXT),
        )
        return EngineFacts(
            slots=None if slots is None else min(MAX_REQUESTS, slots * engines),
            step_tokens=None if budget is None else budget * engines,
            max_model_len=context,
            priority=None if config.policy is None else config.policy == "priority",
        )

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
        """Asks for one real token, the only proof that an engine generates. Never raises."""
        started = time.monotonic()
        try:
            await self._one_token(timeout_s)
        except EngineRefused as error:
            why = f"it {what_it_means(error.status, self.model)} ({error})"
            return Probe(False, why, time.monotonic() - started)
        except EngineError as error:
            return Probe(False, str(error), time.monotonic() - started)
        seconds = time.monotonic() - started
        return Probe(True, f"one token in {seconds * 1000:.0f} ms", seconds)

    async def _one_token(self, timeout_s: float) -> None:
        model = self.model
        if not model:
            served = await self.models()
            if not served:
                raise EngineProtocolError("/v1/models lists no model")
            model = served[0].id
        body = await self._call(
            "POST",
            "/v1/completions",
            timeout_s=timeout_s,
            # The engine's most urgent priority: a probe behind a full queue would eject a busy, healthy replica.
            json={"model": model, "prompt": "ok", "max_tokens": 1, "temperature": 0, "priority": -(2**31)},
        )
        try:
            tokens = msgspec.json.decode(body, type=_Generated).usage.completion_tokens
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EngineProtocolError(f"/v1/completions is not a completion: {error}") from error
        if tokens < 1:
            raise EngineProtocolError("/v1/completions answered without a token")

    async def _call(self, method: str, path: str, *, timeout_s: float, json: object = None) -> bytes:
        url = path if "://" in path else self.url + path
        call = f"{method} {'the GPU exporter' if '://' in path else path}"
        headers = self._headers if url.startswith(self.url + "/") else {}
        try:
            # httpx bounds the gap between two reads, not the whole
            async with asyncio.timeout(timeout_s):
                status, body = await fetch(
                    self._http, method, url, call, json=json, headers=headers, timeout_s=timeout_s
                )
        except TimeoutError as error:
            raise EngineUnreachable(f"{call} did not answer within {timeout_s:g} s") from error
        if status != 200:
            raise EngineRefused(call, status, body[:300].decode(errors="replace"))
        return body
