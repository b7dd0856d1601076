"""Whether a replica works: health is progress, not a green ``/health`` (docs/reference/promises.md, 26).

Pure: what was seen, and when, is handed in; :mod:`scheduling.dispatch.replicas.monitor` does the calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum

from scheduling.engines.client import EngineMetrics

STALLED_S = 15.0  # work in the engine and nothing moved for so long: it hangs
DOUBTFUL_S = 8.0  # leases, but the engine says it runs nothing, and nothing moved: ask it for a token
IDLE_S = 60.0  # nothing ran for so long: whether it would work, only a token tells
FAILED_SCRAPES = 3
INPUT_MEAN_S = 5.0  # an engine counts a prompt all at once, so a rate of one second is mostly 0 or a spike
SUSPICIONS = 3  # failures that gateways report with no progress in between


class HealthStep(Enum):
    KEEP = "keep"
    PROBE = "probe"  # only a real generation can tell
    EJECT = "eject"


@dataclass(slots=True)
class Rates:
    """Tokens per second: output between the last two scrapes, input over the last :data:`INPUT_MEAN_S`. None until
    there were two scrapes, after a restart, or where the engine does not say."""

    output_tokens_per_s: float | None = None
    input_tokens_per_s: float | None = None


@dataclass(slots=True)
class ProgressWatch:
    """One ready replica under observation. Times are seconds on one monotonic clock."""

    why: str = ""  # of the last verdict that was not KEEP
    rates: Rates = field(default_factory=Rates)
    _last: EngineMetrics | None = None
    _last_s: float = 0.0
    _prompts: deque[tuple[float, float]] = field(default_factory=deque)  # (at, prompt tokens so far), oldest first
    _quiet_since: float | None = None  # it had work, and nothing has moved since then
    _idle_since: float | None = None  # since when nothing runs and nothing moves; None: it has work, or was just asked
    _asked: bool = False  # for a token while nothing ran: what its counters gained is ours
    _failures: int = 0
    _suspicions: int = 0
    _suspected: bool = False

    def seen(self, metrics: EngineMetrics, leases: int, now_s: float) -> HealthStep:
        """A scrape came back. ``leases``: what we believe runs there (the engine's own count where we do not know)."""
        self._learn_rates(metrics, now_s)
        moved = self._last is None or metrics.progress != self._last.progress or metrics.fuller(self._last)
        self._last, self._last_s = metrics, now_s
        self._failures = 0
        self._suspected = False
        if moved:
            self._suspicions = 0
        if moved or (leases == 0 and metrics.running == 0):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now_s
        if self._suspicions >= SUSPICIONS:
            return self._say(HealthStep.PROBE, f"{self._suspicions} requests failed there and no token moved")
        quiet_s = 0.0 if self._quiet_since is None else now_s - self._quiet_since
        if metrics.running > 0 and quiet_s >= STALLED_S:
            return self._say(HealthStep.PROBE, f"{metrics.running} running and no token moved for {quiet_s:.0f} s")
        if metrics.running == 0 and quiet_s >= DOUBTFUL_S:
            return self._say(HealthStep.PROBE, f"{leases} leases, none running, no token moved for {quiet_s:.0f} s")
        return self._idle(moved or leases > 0 or metrics.running > 0, now_s)

    def answered(self, leases: int, moved: bool, now_s: float) -> HealthStep:
        """One that reports nothing of its work answered. ``leases``: what we believe runs there; ``moved``: gateways
        saw pieces of its answers lately. With leases and nothing seen for :data:`DOUBTFUL_S`, only a token can tell."""
        self._failures = 0
        self._suspected = False
        if moved:
            self._suspicions = 0
        if moved or leases == 0:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now_s
        if self._suspicions >= SUSPICIONS:
            return self._say(HealthStep.PROBE, f"{self._suspicions} requests failed there and no token moved")
        quiet_s = 0.0 if self._quiet_since is None else now_s - self._quiet_since
        if quiet_s >= DOUBTFUL_S:
            return self._say(HealthStep.PROBE, f"{leases} leases, and gateways saw no token for {quiet_s:.0f} s")
        return self._idle(moved or leases > 0, now_s)

    def failed(self, why: str) -> HealthStep:
        """A scrape failed. A gateway's suspicion is a second witness: one failure is then enough to ask for a token."""
        self._failures += 1
        self.rates = Rates()
        if self._suspected or self._failures >= FAILED_SCRAPES:
            return self._say(HealthStep.PROBE, why)
        return HealthStep.KEEP

    def alive(self) -> None:
        """It generates, whatever its metrics say: a probe went well, or gateways see tokens of it."""
        self._quiet_since = self._idle_since = None
        self._failures = self._suspicions = 0
        self._suspected = False

    def suspected(self) -> None:
        """A gateway reports that a request failed there."""
        self._suspected = True
        self._suspicions += 1

    def _idle(self, works: bool, now_s: float) -> HealthStep:
        if works:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now_s
        elif now_s - self._idle_since >= IDLE_S:
            self._asked = True
            return self._say(HealthStep.PROBE, f"idle for {now_s - self._idle_since:.0f} s")
        return HealthStep.KEEP

    def _say(self, verdict: HealthStep, why: str) -> HealthStep:
        self.why = why
        return verdict

    def _learn_rates(self, metrics: EngineMetrics, now_s: float) -> None:
        last, prompts = self._last, self._prompts
        self.rates = Rates()
        restarted = last is not None and metrics.restarted(last)
        asked, self._asked = self._asked and last is not None and not restarted, False
        if asked or restarted or metrics.prompt_tokens is None:
            prompts.clear()
        if asked and last is not None:  # the token is no traffic
            last = replace(last, generation_tokens=metrics.generation_tokens)
            if metrics.prompt_tokens is not None:
                prompts.append((self._last_s, metrics.prompt_tokens))
        if metrics.prompt_tokens is not None:
            prompts.append((now_s, metrics.prompt_tokens))
        while len(prompts) > 2 and prompts[1][0] <= now_s - INPUT_MEAN_S:
            prompts.popleft()
        if last is None or restarted:
            return
        if metrics.generation_tokens is not None and last.generation_tokens is not None:
            self.rates.output_tokens_per_s = _rate(
                last.generation_tokens, metrics.generation_tokens, now_s - self._last_s
            )
        if prompts:
            since_s, before = prompts[0]
            self.rates.input_tokens_per_s = _rate(before, prompts[-1][1], now_s - since_s)


def _rate(before: float, now: float, span_s: float) -> float | None:
    return (now - before) / span_s if span_s > 0 else None
