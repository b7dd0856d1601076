"""The kinds of engine: the one place that names their clients. Another kind is another module and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx

from scheduling.engines.client import EngineClient
from scheduling.engines.vllm import VllmClient

VLLM: Final = "vllm"
KINDS: Final[dict[str, Callable[..., EngineClient]]] = {VLLM: VllmClient}


def make_client(
    url: str, *, http: httpx.AsyncClient, model: str = "", api_key: str = "", dcgm_url: str = "", kind: str = VLLM
) -> EngineClient:
    """``url`` without path; ``model`` is what a probe asks for (empty: the first the server offers). The GPU exporter
    is at ``dcgm_url`` where the replica's own page does not have its figures."""
    return KINDS[kind](url, http=http, model=model, api_key=api_key, dcgm_url=dcgm_url)
