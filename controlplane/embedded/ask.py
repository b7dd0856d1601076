"""Asks engines that serve what the plan left open: the model, its length, the size of the KV cache."""

from __future__ import annotations

import re
import time

import httpx

from controlplane.embedded.home import CannotStart
from controlplane.embedded.plan import Engine, Plan

ASK_AGAIN_S = 1.0
KV_TOKENS_UNKNOWN = 100_000  # an engine without vLLM's cache metric: small enough for any GPU


def ask(plan: Plan) -> Plan:
    """The plan with what was left open filled in by the engines themselves, which may still be loading.

    Raises:
        CannotStart: an engine does not answer in time, or not as a vLLM server does.
    """
    if plan.model and all(engine.kv_tokens for engine in plan.engines):
        return plan
    model, longest, engines = plan.model, plan.max_model_len, []
    with httpx.Client(timeout=5, trust_env=False) as http:
        deadline = time.monotonic() + plan.patience_s
        for engine in plan.engines:
            card = _model_card(http, engine.url, deadline)
            if model and plan.model == "" and card["id"] != model:
                raise CannotStart(
                    f"{engine.url} serves {card['id']!r} and {plan.engines[0].url} serves {model!r}. One pool has one "
                    "model: start with engines of one model and add other pools in the back office."
                )
            model = model or str(card["id"])
            longest = longest or int(str(card.get("max_model_len") or 8192))
            kv_tokens = engine.kv_tokens or _kv_tokens(http, engine.url)
            engines.append(Engine(engine.name, engine.url, engine.slots, kv_tokens))
    return Plan(engines, pool=plan.pool, model=model, max_model_len=longest)


def _model_card(http: httpx.Client, url: str, deadline: float) -> dict[str, object]:
    while True:
        try:
            answer = http.get(f"{url}/v1/models")
            answer.raise_for_status()
            return dict(answer.json()["data"][0])
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise CannotStart(
                    f"{url} wants an API key. Start without ENGINE and add it in the back office."
                ) from None
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{url}/v1/models does not answer as a vLLM server does ({type(error).__name__}). Does it run?"
                ) from None
            time.sleep(ASK_AGAIN_S)


def _kv_tokens(http: httpx.Client, url: str) -> int:
    """KV cache size from vLLM's own metric: blocks times tokens per block."""
    try:
        page = http.get(f"{url}/metrics").text
    except httpx.HTTPError:
        return KV_TOKENS_UNKNOWN
    info = re.search(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE)
    labels = dict(re.findall(r'\b(\w+)="([^"]*)"', info.group(1))) if info else {}
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else KV_TOKENS_UNKNOWN
