"""The plugin's scheduler with an error in it, for tests: its decisions fail from the step on in which a request has a
prompt of :data:`FAILS_AT` tokens. ``--scheduler-cls tests.support.failing_scheduler.Scheduler``, in vLLM's environment.
"""

from __future__ import annotations

from typing import Any

from scheduling.engines.vllm_plugin import scheduler
from tests.support.plugin_digest import FAILS_AT


class Scheduler(scheduler.Scheduler):
    def _qm_decide(self, now_s: float) -> Any:
        if any(request.num_prompt_tokens == FAILS_AT for request in self.requests.values()):
            raise ZeroDivisionError("as the test wants it")
        return super()._qm_decide(now_s)
