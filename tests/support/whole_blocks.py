"""A KV connector for tests on real vLLMs: vLLM's ExampleConnector, which hands KV caches over in a shared folder.

Runs inside the engines. ExampleConnector finds a prompt that is shorter than a block in its store once any such prompt
was kept (the hash of nothing), loads nothing, and its engine dies: here such a prompt is not looked for.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class WholeBlocks(ExampleConnector):  # type: ignore[misc]
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if len(request.prompt_token_ids or ()) <= self._block_size:
            return 0, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found
