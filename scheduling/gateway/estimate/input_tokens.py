"""How many tokens does a prompt have? By the model's own tokenizer, from its file or from a replica's ``/tokenize``.

None where it cannot be told now: the caller then estimates from words and bytes. What the chat template adds is learned
by the pool's calibration either way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from scheduling.core.engine.status import INPUT_REFUSED
from scheduling.core.types import PoolSpec
from scheduling.estimation import tokenizer
from scheduling.gateway.answers.answer_types import TEMPLATE_TOKENS
from scheduling.gateway.bodies.openai_types import ChatRequest, CompletionRequest, Message
from scheduling.gateway.bodies.prepare import MESSAGE_TOKENS, Prepared
from scheduling.gateway.engine.engine_connection import UpstreamError
from scheduling.gateway.engine.upstream import Upstream

log = logging.getLogger(__name__)

BACKEND = "backend"  # the setting that asks a replica
TOKENIZE_PATH = "/tokenize"
ASK_S = 0.5  # a replica that does not answer by then is not asked again for a while
REST_S = 10.0
TRIES = 2  # replicas of a pool that did not count are enough to ask no other for a while
LONG_BYTES = 64 * 1024  # of a question: one that is shorter takes a replica that is well a tenth of that time
MAX_ANSWER = 16 * 1024 * 1024  # it lists every token

_encode = msgspec.json.Encoder().encode


class _Count(msgspec.Struct):
    count: int


_decode = msgspec.json.Decoder(_Count).decode


class InputCounter:
    """Counts by whatever each pool's ``tokenizer`` setting names."""

    def __init__(self, upstream: Upstream, works: Callable[[str, str], bool]) -> None:
        """``works``: whether a pool's replica is ready, as far as is known."""
        self._upstream = upstream
        self._works = works
        # pool and tenant, or pool and replica -> monotonic time until which none is asked for it, or it is not asked
        self._tenants: dict[tuple[str, str], float] = {}
        self._replicas: dict[tuple[str, str], float] = {}
        self._turn = 0

    async def count(self, pool: PoolSpec, prepared: Prepared, tenant: str) -> float | None:
        """Tokens of the prompt, or None where that cannot be told now."""
        if pool.tokenizer == BACKEND:
            return None if prepared.media else await self._ask(pool, prepared, tenant)
        counter, asked = tokenizer.load(pool.tokenizer), _asked(prepared)
        if counter is None or asked is None:
            return None
        text, messages = _texts(asked)
        if len(text) > tokenizer.INLINE_CHARACTERS:
            tokens = await asyncio.to_thread(counter.count, text)
        else:
            tokens = counter.count(text)
        return float(tokens + messages * MESSAGE_TOKENS)

    async def _ask(self, pool: PoolSpec, prepared: Prepared, tenant: str) -> float | None:
        now_s, asked = time.monotonic(), _asked(prepared)
        if asked is None or self._tenants.get((pool.id, tenant), 0.0) > now_s:
            return None
        there = [spec for spec in pool.backends if not spec.draining]
        resting = {spec.id for spec in there if self._replicas.get((pool.id, spec.id), 0.0) > now_s}
        if len(resting) >= TRIES:
            return None  # it is not one of them, and each costs a request half a second
        known = [spec for spec in there if self._works(pool.id, spec.id)]  # of a pool where nothing runs, none is
        able = [spec for spec in known or there if spec.id not in resting]
        if not able:
            return None
        self._turn += 1
        spec = able[self._turn % len(able)]
        # an adapter's prompt is counted by its base, which every replica has
        question: dict[str, object] = {"model": (pool.base or pool).upstream_model}
        if isinstance(asked, ChatRequest):
            question["messages"] = asked.messages
            # as it will be rendered
            for name in ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"):
                if (value := getattr(asked, name)) is not None:
                    question[name] = value
        else:
            question["prompt"] = asked
        question_bytes = _encode(question)
        its_own = len(question_bytes) > LONG_BYTES  # it may be the prompt's fault that nobody answers in time
        try:
            async with asyncio.timeout(ASK_S):
                connection = await self._upstream.backend(spec).exchange(
                    TOKENIZE_PATH, question_bytes, "tokenize", whole=True, limit=MAX_ANSWER
                )
            answer, status = connection.whole_body(), connection.status
            connection.release()
            if status in INPUT_REFUSED:
                its_own = True
            if status != 200:
                raise ValueError(f"it answered {status}")
            count = _decode(answer).count
            if not 0 <= count <= len(question_bytes) + TEMPLATE_TOKENS:
                raise ValueError(f"it counted {min(count, 10**12)} tokens in {len(question_bytes)} bytes")
            return float(count)
        except (UpstreamError, TimeoutError, ValueError, msgspec.DecodeError, RecursionError) as error:
            rests = time.monotonic() + REST_S
            if its_own:
                self._tenants[pool.id, tenant] = rests
            else:
                self._replicas[pool.id, spec.id] = rests
            log.warning(
                "pool %s: replica %s did not count a prompt (%s); estimating for %d s",
                pool.id,
                spec.id,
                str(error) or type(error).__name__,
                REST_S,
            )
            return None


def _asked(prepared: Prepared) -> ChatRequest | str | None:
    """What is to be counted. None where it is neither a chat nor one text: token ids that may be cut off, two texts
    that are compared."""
    body = prepared.judged
    if isinstance(body, ChatRequest):
        return body
    prompt = body.prompt if isinstance(body, CompletionRequest) else getattr(body, "input", None)
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return f"{prompt}{getattr(body, 'suffix', None) or ''}" if isinstance(prompt, str) else None


def _texts(body: ChatRequest | str) -> tuple[str, int]:
    """Everything that will be tokenized as one text, and how many messages frame it."""
    if isinstance(body, str):
        return body, 0
    parts: list[str] = []
    for message in body.messages:
        parts += _parts(message)
    for tool in body.tools or ():
        parts += (tool.function.name, tool.function.description or "", bytes(tool.function.parameters).decode())
    for document in body.documents or ():
        parts += document.values()
    parts += [value for value in (body.chat_template_kwargs or {}).values() if isinstance(value, str)]
    return "\n".join(parts), len(body.messages)


def _parts(message: Message) -> list[str]:
    content = message.content
    if isinstance(content, str):
        parts = [content]
    else:
        parts = [part.text or part.refusal or part.thinking or "" for part in content or ()]
    if message.reasoning is not None:
        parts.append(message.reasoning)
    parts += [value for value in (message.refusal, message.name, message.tool_call_id) if value]
    for call in message.tool_calls or ():
        parts += (call.id, call.function.name, call.function.arguments)
    return parts
