"""Slots and KV cache of a backend that were left empty: what its engine says, when it is added."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError

from scheduling.engines.client import EngineError, control_http
from scheduling.engines.kinds import VLLM, kinds, make_client
from tenants.models import Pool
from tenants.validators import MOST_SLOTS, validate_base_url

WAIT_S, TRIAL_S = 8.0, 2.0  # a person waits for it
FIELDS = ("slots", "kv_tokens")
# Where an engine does not say: vLLM's own default for serving on most GPUs; what it was seen to run bounds it later.
UNSAID_SLOTS = 256


def empty(data: Any, *, new: bool) -> list[str]:
    """The figures that ``data`` of a backend leaves empty; those of a new one are as well where they are missing."""
    if not isinstance(data, Mapping):
        return []
    return [name for name in FIELDS if (new or name in data) and data.get(name) in (None, "")]


def filled(data: Any, wait_s: float, url: str = "", api_key: str = "", engine: Any = None) -> Any:
    """``data`` with figures in place of those that are empty. ``url`` and ``api_key``: of the backend that there is;
    ``engine``: its kind, where the pool that ``data`` names does not say.

    Asks for ``wait_s`` at most. An engine that is not there yet leaves what was: the defaults of a new backend."""
    left = empty(data, new=not url)
    address, key = (data.get("url") or url, data.get("api_key") or api_key) if left else ("", "")
    if not left or not isinstance(address, str) or not isinstance(key, str):
        return data
    rest = {name: data[name] for name in data if name not in left}
    try:
        validate_base_url(address)
    except ValidationError:
        return rest  # it is refused for that
    named = Pool.objects.filter(slug=data["pool"]).first() if isinstance(data.get("pool"), str) else None
    kind = named.engine if named is not None else engine
    reported = asyncio.run(_ask(address, key, wait_s, kind if kind in kinds() else VLLM))
    return rest | {name: reported[name] for name in left if name in reported}


async def _ask(url: str, api_key: str, wait_s: float, kind: str) -> dict[str, int]:
    figures: dict[str, int] = {}
    try:
        async with asyncio.timeout(wait_s), control_http() as http:
            client = make_client(url, http=http, api_key=api_key, kind=kind)
            metrics = await client.scrape()
            if metrics is None:
                return figures  # nothing is learned of its limits later either: the defaults stand
            figures["slots"] = UNSAID_SLOTS
            if metrics.kv_tokens is not None:
                figures["kv_tokens"] = metrics.kv_tokens
            facts = await client.facts(metrics.engines)
            if facts.slots is not None:
                figures["slots"] = min(facts.slots, MOST_SLOTS)
    except (EngineError, TimeoutError):
        pass
    return figures
