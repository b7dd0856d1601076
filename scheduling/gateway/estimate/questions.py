"""Questions to an engine's tokenizer: ``/tokenize``, ``/detokenize`` and ``/v1/messages/count_tokens``.

They need no slot and no admission, cost nothing and have no ledger row: what bounds them is that a key has few open at
once. Any replica may answer, and another is asked where one does not. An answer names no request and may hold a prompt
(``/detokenize``), so each question has a connection of its own: a late or second answer can then be no other
question's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.core.engine.status import INPUT_REFUSED, NOT_SERVED
from scheduling.core.outcomes import Reason
from scheduling.core.types import PoolSpec
from scheduling.gateway.answers.answer_types import input_error
from scheduling.gateway.answers.dialects import MESSAGES, OPENAI, Dialect
from scheduling.gateway.bodies.checks import check_template, invalid
from scheduling.gateway.bodies.openai_types import DetokenizeRequest, TokenizeRequest
from scheduling.gateway.bodies.prepare import Form, media_tokens
from scheduling.gateway.bodies.prepare_messages import COUNT_FORM, check_count
from scheduling.gateway.engine.engine_connection import UpstreamError
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.errors import Refusal
from scheduling.gateway.estimate.input_tokens import MAX_ANSWER

AT_ONCE = 4  # of one key in this process
OF_TENANT = 16  # of all keys of a tenant: keys are its own to make
ANSWER_S = 20.0  # for one replica's answer: a tokenizer that is busy takes seconds for a long prompt
TRIES = 2  # replicas

_encode = msgspec.json.Encoder().encode


class _Object(msgspec.Struct):
    """Of which nothing is read: with a key for each name, 16 MB of names would take 0.8 s instead of 0.02."""


_decode_object = msgspec.json.Decoder(_Object).decode
_TOKENIZE, _DETOKENIZE = Form(TokenizeRequest), Form(DetokenizeRequest)


@dataclass(frozen=True, slots=True)
class Question:
    """One path. ``check`` refuses a body that is wrong."""

    upstream: str
    form: Form[Any]
    check: Callable[[Any], None] = lambda body: None
    dialect: Dialect = OPENAI


def _check_tokenize(body: TokenizeRequest) -> None:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Exactly one of prompt and messages is needed.", "prompt")
    if body.messages is not None:
        media_tokens(body.messages)
    if body.chat_template_kwargs is not None:
        check_template(body.chat_template_kwargs)


QUESTIONS: dict[str, Question] = {
    "/tokenize": Question("/tokenize", _TOKENIZE, _check_tokenize),
    "/v1/tokenize": Question("/tokenize", _TOKENIZE, _check_tokenize),
    "/detokenize": Question("/detokenize", _DETOKENIZE),
    "/v1/detokenize": Question("/detokenize", _DETOKENIZE),
    "/v1/messages/count_tokens": Question("/v1/messages/count_tokens", COUNT_FORM, check_count, MESSAGES),
}


class Questions:
    """Asks for a gateway's clients."""

    def __init__(self, upstream: Upstream, works: Callable[[str, str], bool]) -> None:
        """``works``: whether a pool's replica is ready, as far as is known."""
        self._upstream = upstream
        self._works = works
        self._open: dict[tuple[str, str], int] = {}
        self._turn = 0

    @asynccontextmanager
    async def ask(self, question: Question, access: Access, body: Any) -> AsyncIterator[bytes]:
        """The engine's answer. It counts until its client has it. Raises :class:`Refusal`."""
        whose = (("key", access.key.id, AT_ONCE), ("tenant", access.entitlement.tenant, OF_TENANT))
        question.check(body)
        for kind, name, most in whose:
            count = self._open.get((kind, name), 0)
            if count >= most:
                raise Refusal(Reason.CONCURRENCY, inflight=count, limit=most)
        for kind, name, _ in whose:
            self._open[kind, name] = self._open.get((kind, name), 0) + 1
        try:
            yield await self._answer(question, access.pool, body)
        finally:
            for kind, name, _ in whose:
                if left := self._open[kind, name] - 1:
                    self._open[kind, name] = left
                else:
                    del self._open[kind, name]

    async def _answer(self, question: Question, pool: PoolSpec, body: Any) -> bytes:
        replicas = [backend for backend in pool.backends if not backend.draining]
        if not replicas:
            raise Refusal(Reason.NO_BACKEND)
        self._turn += 1
        first = self._turn % len(replicas)
        replicas = replicas[first:] + replicas[:first]
        replicas.sort(key=lambda backend: not self._works(pool.id, backend.id))  # those in turn, of both kinds
        body.model = (pool.base or pool).upstream_model  # which every replica has
        connection = None
        for replica in replicas[:TRIES]:
            with suppress(UpstreamError, TimeoutError, ValueError):
                async with asyncio.timeout(ANSWER_S):
                    connection = await self._upstream.backend(replica).exchange(
                        question.upstream, _encode(body), "question", whole=True, limit=MAX_ANSWER, fresh=True
                    )
                break
        if connection is None:
            raise Refusal(Reason.BACKEND_LOST)
        status, answer = connection.status, connection.whole_body()
        connection.abort()
        if status in INPUT_REFUSED:
            detail, param = input_error(answer)
            raise invalid(detail or "The engine refused it.", param)
        if status in NOT_SERVED:
            detail = f"The engines behind this model do not serve {question.upstream}."
            raise Refusal(Reason.INVALID_REQUEST, status=404, detail=detail)
        if status == 200:
            try:
                answer.decode()
                _decode_object(answer)
                return answer
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass
        raise Refusal(Reason.BACKEND_ERROR, detail="")
