"""Control calls to any server that speaks the OpenAI API, and nothing more: llama.cpp, Ollama, TGI, a proxy.

It is asked for its models and for one real token; it has no metrics that are known here, so the leader goes by its own
leases and by what gateways see arrive. Other kinds add to this client what their servers say of themselves.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

import httpx
import msgspec

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.status import NOT_SERVED, what_it_means
from scheduling.engines import figures
from scheduling.engines.client import (
    LOAD_TIMEOUT_S,
    PROBE_TIMEOUT_S,
    SCRAPE_TIMEOUT_S,
    WAKE_TIMEOUT_S,
    EngineError,
    EngineKind,
    EngineMetrics,
    EngineModel,
    EngineProtocolError,
    EngineRefused,
    EngineUnreachable,
    Probe,
    StepPage,
    fetch,
)
from scheduling.engines.reach import answered_within

MAX_MODELS, MAX_NAME_CHARS = 1000, 256
MAX_CONTEXT = 1_000_000_000


class _ModelCard(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Generated(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] = msgspec.field(default_factory=list)


class _Pooled(msgspec.Struct):
    data: list[dict[str, object]]


_POOLING_PROBES: tuple[tuple[str, dict[str, object]], ...] = (
    ("/pooling", {"input": "ok"}),
    ("/v1/embeddings", {"input": "ok"}),
    ("/classify", {"input": "ok"}),
    ("/score", {"text_1": "ok", "text_2": "ok"}),
)


class OpenAiClient:
    """Control calls to one replica. Every method raises :class:`EngineError` unless it says otherwise."""

    health_path: ClassVar[str] = "/v1/models"
    probe_extras: ClassVar[dict[str, object]] = {}  # of a probe's body: what lets this kind of server answer it soon

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
        return f"{type(self).__name__}({self.url!r})"

    async def scrape(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics | None:
        """None: it answers, and says nothing of its work."""
        await self.models(timeout_s)
        return None

    async def kv_tokens(self, timeout_s: float = 5.0) -> int | None:
        """None: it does not say."""
        return None

    async def health(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> bool:
        """Whether ``health_path`` is 200. Never raises. Says little: a dead engine behind a live front answers too."""
        try:
            await self._call("GET", self.health_path, timeout_s=timeout_s)
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
            EngineModel(
                card.id,
                card.max_model_len if 0 < (card.max_model_len or 0) <= MAX_CONTEXT else None,
                (card.parent or "")[:MAX_NAME_CHARS],
            )
            for card in cards[:MAX_MODELS]
            if 0 < len(card.id) <= MAX_NAME_CHARS
        ]

    async def load_adapter(self, name: str, source: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        raise EngineProtocolError("engines of this kind cannot be asked to load an adapter")

    async def steps(self, after: int, began: str, timeout_s: float = SCRAPE_TIMEOUT_S) -> StepPage:
        raise EngineProtocolError("engines of this kind keep no log of steps that can be read")

    async def sleep(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        raise EngineProtocolError("engines of this kind cannot be put to sleep")

    async def wake(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        raise EngineProtocolError("engines of this kind cannot be woken")

    async def facts(self, engines: int = 1) -> EngineFacts:
        """What it says of its limits: the context in ``/v1/models``, where it is there. What it answers that is no
        model list says nothing. Raises EngineUnreachable where it does not answer."""
        return EngineFacts(max_model_len=await self._context())

    async def page(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> str:
        """The text of ``/metrics``."""
        return (await self._call("GET", "/metrics", timeout_s=timeout_s)).decode(errors="replace")

    async def _with_gpu(self, metrics: EngineMetrics, timeout_s: float) -> EngineMetrics:
        """With the figures of the GPU exporter, where the backend has one and it answers."""
        if not self._dcgm_url:
            return metrics
        try:
            page = await self._call("GET", self._dcgm_url, timeout_s=timeout_s)
        except EngineError:
            return metrics
        util, used, total = figures.gpu(page.decode(errors="replace"))
        return replace(metrics, gpu_util=util, gpu_mem_used_bytes=used, gpu_mem_total_bytes=total)

    async def _context(self) -> int | None:
        try:
            models = {model.id: model.max_model_len for model in await self.models()}
        except (EngineRefused, EngineProtocolError):
            models = {}
        return models.get(self.model) if self.model else next(iter(models.values()), None)

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
        """Asks for one real token, the only proof that an engine generates; of one that generates nothing, for a
        vector. On a new connection, as gateways may need one: that kept ones work is no proof. Never raises."""
        started = time.monotonic()
        what = "token"
        try:
            model = await self._asked_for()
            try:
                await self._one_token(model, timeout_s)
            except EngineRefused as error:
                if error.status not in (400, *NOT_SERVED) or not await self._embeds(model, timeout_s):
                    raise
                what = "answer without tokens"
        except EngineRefused as error:
            why = f"it {what_it_means(error.status, self.model)} ({error})"
            return Probe(False, why, time.monotonic() - started)
        except EngineError as error:
            return Probe(False, str(error), time.monotonic() - started)
        seconds = time.monotonic() - started
        return Probe(True, f"one {what} in {seconds * 1000:.0f} ms", seconds)

    async def _asked_for(self) -> str:
        if self.model:
            return self.model
        served = await self.models()
        if not served:
            raise EngineProtocolError("/v1/models lists no model")
        return served[0].id

    async def _embeds(self, model: str, timeout_s: float) -> bool:
        """Whether it answers with a vector, or with a class or a score: as a model that generates nothing does."""
        for path, body in _POOLING_PROBES:
            try:
                answer = await self._call(
                    "POST", path, timeout_s=timeout_s, json={"model": model, **self.probe_extras} | body, fresh=True
                )
                if msgspec.json.decode(answer, type=_Pooled).data:
                    return True
            except EngineRefused as error:
                if error.status not in (400, *NOT_SERVED):
                    raise
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
        return False

    async def _one_token(self, model: str, timeout_s: float) -> None:
        body = await self._call(
            "POST",
            "/v1/completions",
            timeout_s=timeout_s,
            json={"model": model, "prompt": "ok", "max_tokens": 1, "temperature": 0, **self.probe_extras},
            fresh=True,
        )
        try:
            answer = msgspec.json.decode(body, type=_Generated)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EngineProtocolError(f"/v1/completions is not a completion: {error}") from error
        usage, text = answer.usage, "".join(choice.text for choice in answer.choices)
        if (len(text) if usage is None else usage.completion_tokens) < 1:
            raise EngineProtocolError("/v1/completions answered without a token")

    async def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        json: object = None,
        what: str = "the GPU exporter",
        fresh: bool = False,
    ) -> bytes:
        """``path`` of the replica, or the whole address of something else, which errors call ``what``. ``fresh``: on a
        new connection."""
        url = path if "://" in path else self.url + path
        call = f"{method} {what if '://' in path else path}"
        headers = self._headers if url.startswith(self.url + "/") else {}
        try:
            # httpx bounds the gap between two reads, not the whole
            async with answered_within(timeout_s):
                status, body = await fetch(
                    self._http, method, url, call, json=json, headers=headers, timeout_s=timeout_s, fresh=fresh
                )
        except TimeoutError as error:
            raise EngineUnreachable(f"{call} did not answer within {timeout_s:g} s") from error
        if status != 200:
            raise EngineRefused(call, status, body[:300].decode(errors="replace"))
        return body


KIND = EngineKind(
    name="openai",
    label="any server with the OpenAI API, without metrics",
    make=OpenAiClient,
    reports=False,
    takes_priority=False,
    takes_cache_salt=False,
    tokenizes=False,
)
