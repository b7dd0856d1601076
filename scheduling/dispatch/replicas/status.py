"""A replica as people see it: what its watcher knows, in figures and words."""

from __future__ import annotations

from scheduling.core.engine.token_time import TokenTime
from scheduling.core.placement.pace_wait import KEEPS
from scheduling.core.types import FULL_SPEED
from scheduling.dispatch.ports import BackendStatus, StepStatus
from scheduling.dispatch.replicas.adapters import AdapterHomes
from scheduling.dispatch.replicas.phases import Phases
from scheduling.dispatch.replicas.sleeping import wake_fails
from scheduling.dispatch.replicas.watched import FOREIGN_LOOKS, WatchedBackend, facts_of

_CREDIT_WHY = {None: "", 0: "off: the pool says that there is no bound"}
_NO_REPORTS = "off: engines of this kind do not report how far they are with prompts"
_INSIDE = "off: the scheduler inside orders what waits there by the pool's policy"


def status_of(
    backend: WatchedBackend, phases: Phases, adapters: AdapterHomes, comes: bool, now_s: float
) -> BackendStatus:
    """``comes``: somebody adds a replica to its pool, which has none."""
    name, metrics, rates = backend.spec.id, backend.metrics, backend.watch.rates
    (spec, why), lacks = phases.in_force(backend), phases.lacks(backend)
    state = "draining" if backend.spec.draining else "waking" if comes and backend.state == "probing" else backend.state
    return BackendStatus(
        id=name,
        state="unpaired" if lacks else state,
        why="taken out of service by an administrator" if backend.spec.draining else lacks or state_why(backend, now_s),
        wake_fails=wake_fails(backend, now_s),
        observed_s=backend.observed_s,
        generates=backend.state == "ready" and bool(backend.unread),
        engine_running=metrics.running if metrics else None,
        engine_waiting=metrics.waiting if metrics else None,
        kv_usage=metrics.kv_usage if metrics else None,
        output_tokens_per_s=rates.output_tokens_per_s,
        input_tokens_per_s=rates.input_tokens_per_s,
        gpu_util=metrics.gpu_util if metrics else None,
        gpu_mem_used_bytes=metrics.gpu_mem_used_bytes if metrics else None,
        gpu_mem_total_bytes=metrics.gpu_mem_total_bytes if metrics else None,
        engine_facts=facts_of(backend),
        slots=spec.slots,
        kv_tokens=spec.kv_tokens,
        kv_offered=backend.kv_room.offered(spec.kv_tokens),
        prefill_credit=spec.prefill_tokens,
        limits_why=why,
        credit_why=credit_why(backend),
        credit_short=backend.credit.short if spec.prefill_tokens else 0.0,
        token_s=backend.token_time.mean_s,
        speed=backend.token_time.speed / FULL_SPEED or None,
        speed_why=speed_why(backend.token_time),
        full_step=backend.full_step,
        steps=step_status(backend),
        foreign=min(backend.foreign) if len(backend.foreign) == FOREIGN_LOOKS else None,
        adapters=adapters.status(name) if adapters else None,
    )


def state_why(backend: WatchedBackend, now_s: float) -> str:
    if backend.state != "ready":
        return backend.why
    unread = f"its figures are not known: {backend.unread}" if backend.unread else ""
    return "; ".join(part for part in (unread or backend.why, backend.outlier.says(now_s)) if part)


def credit_why(backend: WatchedBackend) -> str:
    if not backend.kind.reports:
        return _NO_REPORTS
    if backend.wanted_credit is None and backend.kind.takes_digest and not backend.spec.prefill_tokens:
        return _INSIDE
    return _CREDIT_WHY.get(backend.wanted_credit, "as the pool says") or backend.credit.why


def speed_why(time: TokenTime) -> str:
    """Why it gets less work than others; empty where it is no slower."""
    if not time.token_us:
        return ""
    takes_ms, longer = time.token_us / 1e3, FULL_SPEED / time.speed
    return (
        f"a token of an answer takes {takes_ms:.3g} ms, {longer:.1f} times as long as on the fastest replica: it gets "
        f"less work, and what was promised less than {takes_ms / KEEPS:.3g} ms between tokens waits for others as long "
        "as it can"
    )


def step_status(backend: WatchedBackend) -> StepStatus | None:
    """What is known of its step times; None where its kind logs none."""
    if not backend.kind.logs_steps:
        return None
    model = backend.steps
    return StepStatus(model.fit, model.believed is not None, model.recent_error, model.drifts, backend.steps_why)
