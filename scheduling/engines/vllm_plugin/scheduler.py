"""The classes over vLLM's own. ``--scheduler-cls scheduling.engines.vllm_plugin.Scheduler``."""

from __future__ import annotations

from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as _VllmAsync
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler as _Vllm

from scheduling.engines.vllm_plugin.deciding import Deciding, logger
from scheduling.engines.vllm_plugin.export import serve
from scheduling.engines.vllm_plugin.settings import settings_of
from scheduling.engines.vllm_plugin.versions import SUPPORTED, supported, unlike


class Scheduler(Deciding, _Vllm):  # type: ignore[misc]
    """vLLM's scheduler with our decisions; with asynchronous scheduling it is made over vLLM's asynchronous one."""

    PRIORITY = SchedulingPolicy.PRIORITY

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:
        if cls is Scheduler and vllm_config.scheduler_config.async_scheduling:
            return object.__new__(AsyncScheduler)
        return object.__new__(cls)

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = settings_of(vllm_config.additional_config)
        super().__init__(vllm_config, *args, **kwargs)
        own = self.policy
        self.begin(settings, lambda: create_request_queue(own))
        log = self.qm_log
        log.facts = {
            "policy": settings.make_policy().name,
            "vllm": vllm.__version__,
            "supported": SUPPORTED,
            "asynchronous": str(isinstance(self, AsyncScheduler)).lower(),
        }
        odd = "" if supported(vllm.__version__) else f"vLLM {vllm.__version__} is not one of {SUPPORTED}"
        odd = odd or unlike(_Vllm)
        if odd:
            logger.error("Quartermaster's scheduler does not act: %s. vLLM's own order and budget hold.", odd)
            log.counters.errors["version"] = 1
            self.qm_give_up(f"version: {odd}")
        else:
            logger.info("Quartermaster's scheduler: %s", log.facts)
        if settings.port:
            port = settings.port + int(getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0)
            try:
                self.qm_server = serve(log, settings.host, port)
            except OSError as problem:
                log.counters.errors["export"] = 1
                logger.error("Quartermaster's metrics are not served on %s:%s: %s", settings.host, port, problem)


class AsyncScheduler(Scheduler, _VllmAsync):  # type: ignore[misc]
    """Schedules a step while the one before is computed."""
