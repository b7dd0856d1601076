"""Control calls to one vLLM server (replica): what it says about itself, and whether it really generates.

Requests of tenants never pass here; the gateway streams those itself. One shared ``httpx.AsyncClient`` (made by
:func:`control_http`) serves the clients of all replicas of a process.

Metric names: vLLM 0.32 (https://docs.vllm.ai/en/latest/usage/metrics.html), older spellings second; GPU figures:
NVIDIA's DCGM exporter, from the replica's own page or from ``dcgm_url``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import httpx
import msgspec

from scheduling.engines import prometheus_text as prom

MAX_BODY_BYTES = 8 * 1024 * 1024  # no control answer is larger; a server that sends more is broken
SCRAPE_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 30.0
MIB = 1024 * 1024


class EngineError(Exception):
    """A replica did not do what a control call asked. The text names the call and the cause, never a key."""


class EngineUnreachable(EngineError):
    """No connection, or no answer in time."""


class EngineRefused(EngineError):
    """It answered with an HTTP error. ``status`` is the code, ``detail`` the beginning of the body."""

    def __init__(self, call: str, status: int, detail: str) -> None:
        super().__init__(f"{call} answered {status}: {detail}" if detail else f"{call} answered {status}")
        self.status = status
        self.detail = detail


class EngineProtocolError(EngineError):
    """It answered something this client cannot read as vLLM's format."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape, summed over the engines of the server. Totals count from the server's start."""

    running: int  # sequences in the batch
    waiting: int  # sequences in the engine's own queue
    kv_usage: float | None  # 0..1
    generation_tokens: float
    prompt_tokens: float
    successes: float  # requests that ended by themselves (aborts are not counted by vLLM)
    preemptions: float
    gpu_util: float | None = None  # 0..1, mean over its GPUs
    gpu_mem_used_bytes: float | None = None
    gpu_mem_total_bytes: float | None = None

    @property
    def progress(self) -> float:
        """A number that moves whenever the engine does work, and falls only when it restarts."""
        return self.generation_tokens + self.prompt_tokens + self.successes


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model a server offers under ``/v1/models``."""

    id: str
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of a one-token generation. True when a token came."""

    ok: bool
    why: str  # one line for people
    seconds: float

    def __bool__(self) -> bool:
        return self.ok


def parse_metrics(page: str) -> EngineMetrics:
    """Reads vLLM's ``/metrics`` text. Raises :class:`EngineProtocolError` when it is not vLLM's."""
    running = prom.total(page, ("vllm:num_requests_running",))
    waiting = prom.total(page, ("vllm:num_requests_waiting",))
    if running is None or waiting is None:
        raise EngineProtocolError("/metrics has no vllm:num_requests_running; is this a vLLM server?")
    util, used, total = parse_gpu(page)
    return EngineMetrics(
        running=int(running),
        waiting=int(waiting),
        kv_usage=prom.mean(page, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
        generation_tokens=prom.total(page, ("vllm:generation_tokens_total",)) or 0.0,
        prompt_tokens=prom.total(page, ("vllm:prompt_tokens_total",)) or 0.0,
        successes=prom.total(page, ("vllm:request_success_total",)) or 0.0,
        preemptions=prom.total(page, ("vllm:num_preemptions_total",)) or 0.0,
        gpu_util=util,
        gpu_mem_used_bytes=used,
        gpu_mem_total_bytes=total,
    )


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
        active if busy is None else busy / 100.0,
        None if used is None else used * MIB,
        None if used is None or free is None else (used + free) * MIB,
    )


class _ModelCard(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Generated(msgspec.Struct):
    usage: _Usage


def control_http() -> httpx.AsyncClient:
    """The client that control calls of a whole process share. The caller closes it (``aclose``)."""
    # trust_env off: a proxy set for downloads must not stand between us and our own replicas.
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=64, max_keepalive_connections=32, keepalive_expiry=4.0),
    )


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
        page = (await self._call("GET", "/metrics", timeout_s=timeout_s)).decode(errors="replace")
        metrics = parse_metrics(page)
        if not self._dcgm_url:
            return metrics
        try:
            gpu = await self._call("GET", self._dcgm_url, timeout_s=timeout_s)
        except EngineError:
            return metrics
        util, used, total = parse_gpu(gpu.decode(errors="replace"))
        return replace(metrics, gpu_util=util, gpu_mem_used_bytes=used, gpu_mem_total_bytes=total)

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
        except msgspec.MsgspecError as error:
            raise EngineProtocolError(f"/v1/models is not a model list: {error}") from error
        return [EngineModel(card.id, card.max_model_len) for card in cards]

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
        """Asks for one real token, the only proof that an engine generates. Never raises."""
        started = time.monotonic()
        try:
            await self._one_token(timeout_s)
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
        except msgspec.MsgspecError as error:
            raise EngineProtocolError(f"/v1/completions is not a completion: {error}") from error
        if tokens < 1:
            raise EngineProtocolError("/v1/completions answered without a token")

    async def _call(self, method: str, path: str, *, timeout_s: float, json: object = None) -> bytes:
        url = path if "://" in path else self.url + path
        call = f"{method} {'the GPU exporter' if '://' in path else path}"
        deadline = time.monotonic() + timeout_s
        try:
            async with self._http.stream(
                method,
                url,
                json=json,
                headers=self._headers if url.startswith(self.url + "/") else {},
                timeout=timeout_s,
            ) as answer:
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise EngineProtocolError(f"{call} answered more than {MAX_BODY_BYTES} bytes")
                    if time.monotonic() > deadline:  # httpx bounds the gap between reads, not the whole
                        raise EngineUnreachable(f"{call} took longer than {timeout_s:g} s")
        except httpx.TimeoutException as error:
            raise EngineUnreachable(f"{call} did not answer within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachable(f"{call} failed: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise EngineRefused(call, answer.status_code, bytes(body[:300]).decode(errors="replace"))
        return bytes(body)
