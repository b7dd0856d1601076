"""vLLM with our scheduler inside (``scheduling.engines.vllm_plugin``): the same calls, requests carry a digest, and the
log of its steps is read.

A kind of its own, so that a pool says it where it says what its engines are: without the plugin the digest would be
ignored, and the pool's figures would be believed to be those of engines that keep deadlines themselves.

The log is read on the engine's host, at its own port plus :data:`PORT_ABOVE`: no address has to be configured, and
what is not there only says nothing.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import LoggedStep
from scheduling.engines import figures
from scheduling.engines.client import SCRAPE_TIMEOUT_S, EngineError, EngineProtocolError, StepPage
from scheduling.engines.kinds import vllm
from scheduling.engines.kinds.openai import MAX_CONTEXT
from scheduling.engines.vllm_plugin.settings import PORT_ABOVE

MAX_LINES = 4000  # that are read of one answer
MAX_FIGURE = 1e15
SHORTEST_S, LONGEST_S = 1e-6, 1e5  # of a step


class _Limits(msgspec.Struct):
    slots: int | None = None
    step_tokens: int | None = None


class _Head(msgspec.Struct, tag_field="kind", tag="log"):
    began: str
    last: int
    limits: _Limits = msgspec.field(default_factory=_Limits)


class _Step(msgspec.Struct, tag_field="kind", tag="step"):
    prefill: int
    decodes: int
    kv_dec: int
    pp: float
    seconds: float

    @property
    def plausible(self) -> bool:
        amounts = (self.prefill, self.decodes, self.kv_dec, self.pp)
        return all(0 <= amount < MAX_FIGURE for amount in amounts) and SHORTEST_S <= self.seconds <= LONGEST_S


_HEAD = msgspec.json.Decoder(_Head)
_STEP = msgspec.json.Decoder(_Step)


class VllmPluginClient(vllm.VllmClient):
    """Control calls to one replica, and to the scheduler inside it."""

    @property
    def log_url(self) -> str:
        """Where the plugin is read; empty where the replica's own address leaves no such port."""
        parts = urlsplit(self.url)
        port = (parts.port or {"https": 443}.get(parts.scheme, 80)) + PORT_ABOVE
        host = parts.hostname or ""
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}" if host and port < 65_536 else ""

    async def facts(self, engines: int = 1) -> EngineFacts:
        """As vLLM says, and its scheduler where ``/server_info`` is not served. With several engines behind one address
        the plugin of the first is read, so its limits are not theirs together."""
        facts = await super().facts(engines)
        if engines > 1 or (facts.slots is not None and facts.step_tokens is not None):
            return facts
        try:
            own = (await self.steps(0, "")).limits
        except EngineError:
            return facts
        return replace(facts, slots=facts.slots or own.slots, step_tokens=facts.step_tokens or own.step_tokens)

    async def steps(self, after: int, began: str, timeout_s: float = SCRAPE_TIMEOUT_S) -> StepPage:
        if not self.log_url:
            raise EngineProtocolError(f"no port {PORT_ABOVE} above that of {self.url}, where its step log would be")
        began_query = f"&began={began}" if began.isalnum() else ""
        body = await self._call(
            "GET", f"{self.log_url}/steps?after={after}{began_query}", timeout_s=timeout_s, what="steps"
        )
        head, *lines = body.split(b"\n", MAX_LINES)[:MAX_LINES]
        try:
            log = _HEAD.decode(head)
            steps = [_STEP.decode(line) for line in lines if line]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EngineProtocolError(f"its /steps is no log of steps: {error}") from error
        if not 0 <= log.last < MAX_FIGURE or not all(step.plausible for step in steps):
            raise EngineProtocolError("its /steps has a figure that cannot be")
        return StepPage(
            tuple(LoggedStep(s.prefill, s.decodes, s.kv_dec, s.pp, s.seconds) for s in steps),
            log.last,
            log.began[:32],
            EngineFacts(
                slots=vllm.believed(log.limits.slots, figures.MAX_REQUESTS),
                step_tokens=vllm.believed(log.limits.step_tokens, MAX_CONTEXT),
            ),
        )


KIND = replace(
    vllm.KIND,
    name="vllm_plugin",
    label="vLLM with Quartermaster's scheduler inside",
    make=VllmPluginClient,
    takes_digest=True,
    logs_steps=True,
)
