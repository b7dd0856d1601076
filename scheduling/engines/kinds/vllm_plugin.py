"""vLLM with our scheduler inside (``scheduling.engines.vllm_plugin``): the same calls, and requests carry a digest.

A kind of its own, so that a pool says it where it says what its engines are: without the plugin the digest would be
ignored, and the pool's figures would be believed to be those of engines that keep deadlines themselves.
"""

from __future__ import annotations

from dataclasses import replace

from scheduling.engines.kinds import vllm

KIND = replace(vllm.KIND, name="vllm_plugin", label="vLLM with Quartermaster's scheduler inside", takes_digest=True)
