"""A server whose ``/metrics`` is the page that SGLang documents (names, labels, types), with this engine's figures.

Source: https://docs.sglang.io/references/production_metrics.html. No SGLang server was run.
"""

from __future__ import annotations

from scheduling.engines.simulated.http import Connection, Request
from scheduling.engines.simulated.server import SimulatedServer
from tests.support.engines.openai import ROUTES, OpenAiApi

PAGE = """# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{model_name="{model}"}} {prompt:.6e}
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{model_name="{model}"}} {generated:.6e}
# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{{model_name="{model}"}} {usage}
# HELP sglang:cache_hit_rate The cache hit rate
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{{model_name="{model}"}} 0.0
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="{model}"}} {running}
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="{model}"}} {waiting}
"""


class SglangApi(OpenAiApi):
    kept = (*ROUTES, "/metrics", "/health")

    def _metrics(self, connection: Connection, request: Request) -> None:
        engine = self._engine
        page = PAGE.format(
            model=self._model,
            prompt=float(engine.totals.prompt_tokens),
            generated=float(engine.totals.generation_tokens),
            usage=engine.kv_usage,
            running=float(len(engine.running)),
            waiting=float(engine.waiting),
        )
        connection.respond(200, page.encode(), "text/plain; version=0.0.4; charset=utf-8")


class Server(SimulatedServer):
    api_type = SglangApi
