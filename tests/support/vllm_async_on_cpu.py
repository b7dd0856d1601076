"""``vllm`` with asynchronous scheduling on a CPU, for tests: ``python -m tests.support.vllm_async_on_cpu serve ...``.

vLLM switches asynchronous scheduling off on a CPU, because nothing is gained there. Everything else of it runs: the
engine schedules a step before the tokens of the one before are known, which is what a scheduler has to stand. CUDA's
streams and events, of which a CPU has none, are stood in for; a computation here has ended when its call returns.

The engine's process is forked from this one, so that it has the same.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import torch
from vllm.platforms.cpu import CpuPlatform


class _Nothing:
    """A stream or an event that nobody has to wait for."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def record(self, *args: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, *args: object) -> None: ...


def _leave_asynchronous() -> None:
    before = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: type[CpuPlatform], vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        before(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[method-assign]


def main() -> None:
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    _leave_asynchronous()
    cuda: Any = torch.cuda
    cuda.Event = cuda.Stream = _Nothing
    cuda.current_stream = _Nothing
    cuda.stream = lambda stream: nullcontext()
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv[0] = "vllm"
    vllm()


if __name__ == "__main__":
    main()
