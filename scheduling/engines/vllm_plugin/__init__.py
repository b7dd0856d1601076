"""Quartermaster's scheduler inside vLLM: ``--scheduler-cls scheduling.engines.vllm_plugin.Scheduler``.

Installed alone on a GPU host (``deploy/vllm-plugin``); of the product it needs :mod:`scheduling.core` only. How to use
it: ``docs/guide/vllm-plugin.md``.

``deciding`` is what differs from vLLM's scheduler, over any class with its interface; ``order`` the waiting requests;
``settings`` what can be set; ``log``, ``export`` and ``recording`` what happened, for others to read; ``learning`` the
step-time model; ``versions`` which vLLM; ``scheduler`` the classes over vLLM's own, the only module that imports vLLM.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scheduling.engines.vllm_plugin.scheduler import Scheduler  # not before it is asked for: it imports vLLM

    return Scheduler
