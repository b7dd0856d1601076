"""Asks engines that serve what the plan left open: the model, its length, the size of the KV cache."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import httpx

from controlplane.embedded.home import CannotStart
from controlplane.embedded.plan import Plan
from scheduling.engines.client import EngineClient, EngineError, EngineModel, EngineRefused, control_http
from scheduling.engines.kinds import VLLM, kind_of, make_client

ASK_AGAIN_S = 1.0
ANSWER_S = 5.0
CONTEXT_UNKNOWN = 8192  # tokens
KV_TOKENS_UNKNOWN = 100_000  # of an engine that does not say: small enough for any GPU


def ask(plan: Plan, api_key: str = "") -> Plan:
    """The plan with what was left open filled in by the engines themselves, which may still be loading and may want a
    key.

    Raises:
        CannotStart: an engine does not answer in time, or not as one of its kind does.
    """
    if plan.model and all(engine.kv_tokens for engine in plan.engines):
        return plan
    return asyncio.run(_ask(plan, api_key))


async def _ask(plan: Plan, api_key: str) -> Plan:
    model, longest, engines = plan.model, plan.max_model_len, []
    deadline = time.monotonic() + plan.patience_s
    async with control_http() as http:
        for engine in plan.engines:
            client = _client(http, plan, engine.url, api_key)
            served = await _served(client, plan, deadline)
            if model and plan.model == "" and served.id != model:
                raise CannotStart(
                    f"{engine.url} serves {served.id!r} and {plan.engines[0].url} serves {model!r}. One pool has one "
                    "model: start with engines of one model and add other pools in the back office."
                )
            model = model or served.id
            longest = longest or served.max_model_len or CONTEXT_UNKNOWN
            engines.append(replace(engine, kv_tokens=engine.kv_tokens or await _kv_tokens(client)))
    return replace(plan, engines=engines, model=model, max_model_len=longest)


def _client(http: httpx.AsyncClient, plan: Plan, url: str, api_key: str) -> EngineClient:
    return make_client(url, http=http, api_key=api_key, kind=plan.kind or VLLM)


async def _served(client: EngineClient, plan: Plan, deadline: float) -> EngineModel:
    while True:
        try:
            if models := await client.models(ANSWER_S):
                return models[0]
            problem = "it lists no model"
        except EngineRefused as error:
            if error.status in (401, 403):
                raise CannotStart(
                    f"{client.url} wants another API key: set QUARTERMASTER_ENGINE_API_KEY to its key."
                ) from None
            problem = str(error)
        except EngineError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            label = kind_of(plan.kind or VLLM).label
            raise CannotStart(
                f"{client.url} does not answer as expected of {label}: {problem}. Is it running? "
                "If it is of another kind, set QUARTERMASTER_ENGINE_KIND."
            )
        await asyncio.sleep(ASK_AGAIN_S)


async def _kv_tokens(client: EngineClient) -> int:
    try:
        return await client.kv_tokens(ANSWER_S) or KV_TOKENS_UNKNOWN
    except EngineError:
        return KV_TOKENS_UNKNOWN
