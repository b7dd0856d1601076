"""Control calls to one SGLang server (replica), started with ``--enable-metrics``.

Metric names: SGLang's "Production Metrics" (https://docs.sglang.io/references/production_metrics.html). Written from
that page and tried against a stand-in that prints it; no SGLang server has run behind this yet. What the page does not
document is taken as not there: no count of steps, no limits (how many sequences it runs at once is learned), and no
``cache_salt`` or ``priority`` in a body.
"""

from __future__ import annotations

from typing import ClassVar

from scheduling.engines import figures
from scheduling.engines import prometheus_text as prom
from scheduling.engines.client import (
    LOAD_TIMEOUT_S,
    SCRAPE_TIMEOUT_S,
    EngineKind,
    EngineMetrics,
    EngineProtocolError,
)
from scheduling.engines.kinds.openai import OpenAiClient

RUNNING, WAITING = "sglang:num_running_reqs", "sglang:num_queue_reqs"


def parse_metrics(page: str) -> EngineMetrics:
    """Reads SGLang's ``/metrics`` text. Raises :class:`EngineProtocolError` when it is not SGLang's."""
    running, waiting = prom.total(page, (RUNNING,)), prom.total(page, (WAITING,))
    if running is None or waiting is None:
        raise EngineProtocolError(
            f"/metrics has no numbers for {RUNNING} and {WAITING}; is this an SGLang server, started with "
            "--enable-metrics?"
        )
    util, used, total = figures.gpu(page)
    between_s, between = figures.histogram(
        page, "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"
    )
    return EngineMetrics(
        running=int(figures.plausible(RUNNING, running, figures.MAX_REQUESTS)),
        waiting=int(figures.plausible(WAITING, waiting, figures.MAX_REQUESTS)),
        kv_usage=figures.share(prom.mean(page, ("sglang:token_usage",))),
        generation_tokens=figures.counted(page, "sglang:generation_tokens_total"),
        prompt_tokens=figures.counted(page, "sglang:prompt_tokens_total"),
        successes=figures.counted(page, "sglang:num_requests_total"),
        preemptions=None,
        gpu_util=util,
        gpu_mem_used_bytes=used,
        gpu_mem_total_bytes=total,
        between_tokens_s=between_s,
        between_tokens=between,
    )


class SglangClient(OpenAiClient):
    """Control calls to one replica. Every method raises :class:`EngineError` unless it says otherwise."""

    health_path: ClassVar[str] = "/health"

    async def scrape(self, timeout_s: float = SCRAPE_TIMEOUT_S) -> EngineMetrics:
        """The metrics now. A GPU exporter that does not answer leaves its fields None and fails nothing."""
        return await self._with_gpu(parse_metrics(await self.page(timeout_s)), timeout_s)

    async def load_adapter(self, name: str, source: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """For servers started with ``--enable-lora`` (https://docs.sglang.io/advanced_features/lora.html)."""
        body = {"lora_name": name, "lora_path": source}
        await self._call("POST", "/load_lora_adapter", timeout_s=timeout_s, json=body)


KIND = EngineKind(
    name="sglang",
    label="SGLang, started with --enable-metrics",
    make=SglangClient,
    reports=True,
    takes_priority=False,
    takes_cache_salt=False,
    tokenizes=False,
    reserves_answers=True,
    loads_adapters=True,
    adapter_model="{model}:{adapter}",
)
