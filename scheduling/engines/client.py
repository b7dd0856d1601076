"""What everybody knows of an engine: its client's calls, what they answer, and how they fail.

Requests of tenants never pass here; the gateway streams those itself. One shared ``httpx.AsyncClient`` (made by
:func:`control_http`) serves the clients of all replicas of a process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import LoggedStep
from scheduling.engines.reach import HEAD_BYTES, Transport, counted_bytes
from scheduling.tls import authorities, refused

MAX_BODY_BYTES = 2 * 1024 * 1024  # no control answer is larger (a page of metrics has 50 kB); one that is, is broken
SMALL_PIECES, PIECE_BYTES = 512, 256  # so many pieces may be of any size, all further ones have so much on average
FACTS_TIMEOUT_S = 30.0  # an engine may look at its whole machine before it answers the first time
SCRAPE_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 30.0
WAKE_TIMEOUT_S = 120.0  # weights of a hundred gigabytes come back from host memory
LOAD_TIMEOUT_S = 60.0  # of an adapter: tens of megabytes from a disk, or from a model hub
FORGOTTEN_S = 600.0  # a replica that was not asked for so long is gone: longer than any call takes


class EngineError(Exception):
    """A replica did not do what a control call asked. The text names the call and the cause, never a key."""


class EngineUnreachable(EngineError):
    """No connection, or no answer in time."""


class EngineRefused(EngineError):
    """It answered with an HTTP error. ``status`` is the code, ``detail`` the beginning of the body, on one line."""

    def __init__(self, call: str, status: int, detail: str) -> None:
        detail = " ".join("".join(c if c.isprintable() else " " for c in detail).split())  # it is stored and shown
        super().__init__(f"{call} answered {status}: {detail}" if detail else f"{call} answered {status}")
        self.status = status
        self.detail = detail


class EngineProtocolError(EngineError):
    """It answered something this client cannot read as its format."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape, summed over the engines of the server. Totals count from its start; None: it does not say."""

    running: int  # sequences in the batch
    waiting: int  # sequences in the engine's own queue
    kv_usage: float | None  # 0..1
    generation_tokens: float | None
    prompt_tokens: float | None
    successes: float | None  # requests that ended by themselves (aborts may not be counted)
    preemptions: float | None
    gpu_util: float | None = None  # 0..1, mean over its GPUs
    gpu_mem_used_bytes: float | None = None
    gpu_mem_total_bytes: float | None = None
    engines: int = 1  # engines behind the server (data parallel); its limits are those of one
    kv_tokens: int | None = None  # KV cache [tokens]; None: it does not say
    steps: float | None = None  # of all engines; None: it does not count them
    between_tokens_s: float | None = None  # times between the tokens of answers, added up; None: it does not say
    between_tokens: float = 0.0  # how many such times
    cached_tokens: float = 0.0  # of ``prompt_tokens``, found in its prefix cache, not computed
    keeps_prefixes: bool = False  # what it has computed of a prompt stays in its prefix cache, as far as it says
    asleep: bool = False  # its weights are not where it computes: what is asked of it waits until it is woken

    @property
    def steps_of_each(self) -> float | None:
        """Steps of one of its engines, on average: the step budget of the server is that of all together."""
        return None if self.steps is None else self.steps / self.engines

    @property
    def progress(self) -> tuple[float | None, ...]:
        """Numbers one of which moves whenever the engine does work, and which fall only when it restarts."""
        return self.generation_tokens, self.prompt_tokens, self.successes

    def fuller(self, before: EngineMetrics) -> bool:
        """Whether its KV cache has filled since ``before``. That is all that moves while vLLM computes one long prompt:
        it counts the tokens of a prompt, and the steps that gave none, once the first token is there."""
        return self.kv_usage is not None and before.kv_usage is not None and self.kv_usage > before.kv_usage

    def restarted(self, before: EngineMetrics) -> bool:
        """Whether another process counts than did in ``before``, as far as both say."""
        pairs = zip(self.progress, before.progress, strict=True)
        return any(now is not None and then is not None and now < then for now, then in pairs)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model a server offers."""

    id: str
    max_model_len: int | None
    parent: str = ""  # of an adapter, the model that it adapts


@dataclass(frozen=True, slots=True)
class StepPage:
    """What an engine's own scheduler logged since it was last asked."""

    steps: tuple[LoggedStep, ...]  # in order; may lack some in between, where there were too many
    last: int  # number of the last of them
    began: str  # tells this log from that of the process before
    limits: EngineFacts = field(default_factory=EngineFacts)  # slots and tokens of a step, as the scheduler has them


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of a one-token generation. True when a token came."""

    ok: bool
    why: str  # one line for people
    seconds: float

    def __bool__(self) -> bool:
        return self.ok


class EngineClient(Protocol):
    """Control calls to one replica, of whatever kind (:mod:`scheduling.engines.kinds` makes them). Every method raises
    :class:`EngineError` unless it says otherwise."""

    url: str
    model: str  # what a probe asks for; empty: the first that the server offers

    async def scrape(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics | None:
        """The metrics now. None: it answers, and its kind reports nothing (:attr:`EngineKind.reports`)."""

    async def kv_tokens(self, timeout_s: float = 5.0) -> int | None:
        """KV cache [tokens]; None: it does not say."""

    async def health(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> bool:
        """Whether it says that it is well. Never raises."""

    async def models(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> list[EngineModel]:
        """The models it serves, with their context length [tokens] where it says so."""

    async def load_adapter(self, name: str, source: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Asks it to load a LoRA adapter. Whether it has it then is in :meth:`models`; one that it has already it may
        refuse to load again."""

    async def facts(self, engines: int = 1) -> EngineFacts:
        """What it says of its limits; ``engines`` behind it have them each."""

    async def steps(self, after: int, began: str, timeout_s: float = SCRAPE_TIMEOUT_S) -> StepPage:
        """The steps since number ``after`` of the log that ``began`` so (:attr:`EngineKind.logs_steps`)."""

    async def sleep(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        """Puts it to sleep when what it runs has ended (:attr:`EngineKind.sleeps`)."""

    async def wake(self, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        """Wakes it. That it serves is said by a probe."""

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
        """Asks for one real token, the only proof that an engine generates. Never raises."""


# Fields of /v1 in vLLM's own form. Servers of other makes ignore what they do not know, and the answer would not be
# what was asked for; sampling parameters that several makes share (top_k, min_p, ignore_eos ...) are passed on to all.
VLLM_FIELDS = (
    "structured_outputs", "vllm_xargs", "bad_words", "allowed_token_ids", "logprob_token_ids", "return_token_ids",
    "return_tokens_as_token_ids", "truncate_prompt_tokens", "truncation_side", "thinking_token_budget", "watermarking",
    "documents",
)  # fmt: skip


class MakeClient(Protocol):
    """A client's class, as its kind names it."""

    def __call__(
        self, url: str, *, http: httpx.AsyncClient, model: str = "", api_key: str = "", dcgm_url: str = ""
    ) -> EngineClient: ...


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine: its client, and how it differs from others where that matters outside of the client."""

    name: str  # that a pool gives, at most 32 letters
    label: str  # for people
    make: MakeClient
    reports: bool  # its load and its counters; else leases are counted instead, and no prefill credit is kept
    takes_priority: bool  # ``priority`` in a body, lower is sooner
    takes_cache_salt: bool  # ``cache_salt`` in a body: without it tenants share its prefix cache
    tokenizes: bool  # ``POST /tokenize`` in vLLM's form
    takes_digest: bool = False  # our scheduler runs inside it: requests carry what it decides by
    logs_steps: bool = False  # and its log of steps can be read (:meth:`EngineClient.steps`)
    sleeps: bool = False  # it can be put to sleep and woken, and says in its metrics which it is
    cuts_answers: bool = (
        False  # an output bound beyond the end of the context counts as what is left, and is no mistake
    )
    reserves_answers: bool = False  # KV cache for most of what an answer may have, before it begins
    lacks: tuple[str, ...] = VLLM_FIELDS  # fields of /v1 that are refused, as they would be ignored
    hands_over: bool = False  # a prompt's KV cache to another one, by ``kv_transfer_params`` (vLLM's KV connectors)
    loads_adapters: bool = False  # it can be asked to load a LoRA adapter (:meth:`EngineClient.load_adapter`)
    adapter_model: str = "{adapter}"  # what a body's ``model`` says for an ``{adapter}`` of the ``{model}``


async def counted(client: EngineClient, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics:
    """The metrics now. Raises EngineProtocolError where its kind reports none."""
    metrics = await client.scrape(timeout_s)
    if metrics is None:
        raise EngineProtocolError("engines of this kind do not report what they do")
    return metrics


FRESH = "quartermaster.fresh"  # an extension of a request that has a connection of its own
_Origin = tuple[str, str, int | None, bool]  # scheme, host, port, and whether each request has a new connection


class _PerReplica(httpx.AsyncBaseTransport):
    """Connections of each replica apart. In one pool of connections those of many replicas would close each other's
    between two looks, replicas that hang would keep the others waiting for a place, and each call looks at all."""

    def __init__(self) -> None:
        self._of: dict[_Origin, Transport] = {}
        self._asked_s: dict[_Origin, float] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url, fresh, now_s = request.url, FRESH in request.extensions, time.monotonic()
        origin = url.scheme, url.host, url.port, fresh
        self._asked_s[origin] = now_s
        if origin not in self._of:
            self._of[origin] = Transport(authorities(), kept=0 if fresh else 8)
            gone = [one for one, asked_s in self._asked_s.items() if now_s - asked_s > FORGOTTEN_S]
            for transport in [self._forget(one) for one in gone]:
                await transport.aclose()
        return await self._of[origin].handle_async_request(request)

    def _forget(self, origin: _Origin) -> Transport:
        del self._asked_s[origin]
        return self._of.pop(origin)

    async def aclose(self) -> None:
        for transport in self._of.values():
            await transport.aclose()


def control_http() -> httpx.AsyncClient:
    """The client that control calls of a whole process share. The caller closes it (``aclose``)."""
    # trust_env off: a proxy set for downloads must not stand between us and our own replicas.
    return httpx.AsyncClient(transport=_PerReplica(), trust_env=False, follow_redirects=False)


async def fetch(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    call: str,
    *,
    timeout_s: float,
    json: object = None,
    headers: dict[str, str] | None = None,
    limit: int = MAX_BODY_BYTES,
    fresh: bool = False,
) -> tuple[int, bytes]:
    """Status and body of an engine's answer, at most ``limit`` bytes. ``call`` names it in errors; ``fresh``: on a new
    connection.

    Nothing is unpacked: a few bytes may hold gigabytes.

    Raises:
        EngineUnreachable, EngineProtocolError: there is no such answer.
    """
    try:
        with counted_bytes() as wire:
            async with http.stream(
                method,
                url,
                json=json,
                headers={**(headers or {}), "accept-encoding": "identity"},
                timeout=timeout_s,
                extensions={FRESH: True} if fresh else None,
            ) as answer:
                wire.left = 2 * limit + HEAD_BYTES  # with what frames it
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise EngineProtocolError(f"{call} answered in an encoding that was not asked for")
                body, pieces = bytearray(), 0
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    pieces += 1
                    if len(body) > limit:
                        raise EngineProtocolError(f"{call} answered more than {limit} bytes")
                    if pieces > SMALL_PIECES + len(body) // PIECE_BYTES:
                        raise EngineProtocolError(f"{call} answered in {pieces} pieces of next to nothing")
                return answer.status_code, bytes(body)
    except httpx.TimeoutException as error:
        raise EngineUnreachable(f"{call} did not answer within {timeout_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last: a host that is no name
        cut = "the connection was cut" if isinstance(error, httpx.NetworkError) else type(error).__name__
        raise EngineUnreachable(f"{call} failed: {refused(error) or str(error) or cut}") from error
