"""Asks the planner about the pools this process leads, keeps what it said, and hands it to whoever carries it out.

Called from the dispatch service's telemetry thread with the leader's samples, so exactly one process plans for a pool.
A leader that was paused is refused by the epoch in the database: its proposals are not kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from django.db import transaction

from controlplane.scaling.demand import EXTERNAL, DemandWindow
from scheduling.core.capacity.planner import Demand, Memory, Proposal, changed, plan, replicas_for
from scheduling.core.capacity.pool import DIMENSIONS
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import EntitlementSpec, ScalingMode
from scheduling.dispatch.ports import Sample
from telemetry.alerts.lifecycle import raise_alert
from telemetry.models import ScalingDecision, ScalingState
from tenants.connections import own_connection
from tenants.epochs import BookedEpochs

log = logging.getLogger(__name__)

MIN_PLAN_S, MAX_PLAN_S = 1.0, 5.0
MIN_WINDOW_S, MAX_WINDOW_S = 5.0, 60.0
GROW_LIMIT_S = 900.0  # replicas that did not appear by then will not


@dataclass(frozen=True, slots=True)
class Turn:
    """What has to be so: ``target`` replicas (None: as many as there are), as of a leader's sample."""

    sample: Sample
    target: int | None
    decision: int = 0  # row of the ScalingDecision behind the target


class CarryOut(Protocol):
    def __call__(self, turn: Turn) -> None:
        """Takes a turn over; neither waits nor raises. A later turn of the pool replaces one not yet begun."""


@dataclass(slots=True)
class _Pool:
    epoch: int
    window: DemandWindow
    memory: Memory
    planned_s: float = -math.inf
    advised: tuple[int, int] | None = None
    growing: tuple[int, int, float] | None = None  # (decision, target, since)
    stored: tuple[int, int, int, str] | None = None
    stored_s: float = -math.inf


class Scaler:
    """The planner's hands and memory, for all pools of one process."""

    def __init__(self, carry_out: CarryOut | None = None) -> None:
        self._carry_out = carry_out
        self._pools: dict[str, _Pool] = {}

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Requests that ended."""
        state = self._pools.get(pool)
        if state is not None:
            state.window.add(records)

    def sample(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> None:
        """The pool's second. Never raises."""
        try:
            if sample.pool.scaling.mode is ScalingMode.OFF:
                self._pools.pop(sample.pool.id, None)
                return
            self._sample(sample, entitlements)
        except Exception:
            log.exception("pool %s: scaling could not be planned; next try in a second", sample.pool.id)

    @own_connection
    def _sample(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> None:
        spec = sample.pool.scaling
        state = self._state_of(sample)
        state.window.look(sample)
        turn = Turn(sample, None)
        every_s = MIN_PLAN_S if sample.wanted else min(MAX_PLAN_S, max(MIN_PLAN_S, spec.up_cooldown_s / 10))
        if sample.at_s - state.planned_s >= every_s:
            state.planned_s = sample.at_s
            turn = self._plan(sample, state, state.window.demand(sample, entitlements))
        if self._carry_out is not None and spec.mode is ScalingMode.AUTOMATIC and spec.driver != EXTERNAL:
            self._carry_out(turn)

    def _state_of(self, sample: Sample) -> _Pool:
        state = self._pools.get(sample.pool.id)
        window_s = min(MAX_WINDOW_S, max(MIN_WINDOW_S, sample.pool.scaling.up_cooldown_s))
        if state is None or state.epoch != sample.epoch or state.window.window_s != window_s:
            state = _Pool(sample.epoch, DemandWindow(window_s), _remembered(sample.pool.id), planned_s=sample.at_s)
            running = ScalingDecision.objects.filter(pool=sample.pool.id, outcome="running").order_by("-id").first()
            if running is not None and running.to_replicas > running.from_replicas:
                state.growing = (running.pk, running.to_replicas, running.at.timestamp())
            self._pools[sample.pool.id] = state
        return state

    def _plan(self, sample: Sample, state: _Pool, demand: Demand) -> Turn:
        spec = sample.pool.scaling
        demand = self._with_growth(sample, state, demand)
        proposal, state.memory = plan(spec, demand, state.memory)
        self._store_state(sample, state, demand, proposal)
        if proposal.wanted == proposal.current:
            state.advised = None
            return Turn(sample, None)
        acts = spec.mode is ScalingMode.AUTOMATIC
        move = (proposal.current, proposal.wanted)
        if (not acts or spec.driver == EXTERNAL) and state.advised == move:
            return Turn(sample, None)  # it is said already
        decision = self._decide(sample, demand, proposal)
        if decision is None:
            return Turn(sample, None)
        log.info("pool %s: %s", sample.pool.id, proposal.reason)
        state.advised = move
        if not acts or spec.driver == EXTERNAL:
            return Turn(sample, None)
        state.memory = changed(state.memory, sample.at_s, *move)
        state.growing = (decision.pk, proposal.wanted, sample.at_s) if proposal.wanted > proposal.current else None
        return Turn(sample, proposal.wanted, decision.pk)

    def _with_growth(self, sample: Sample, state: _Pool, demand: Demand) -> Demand:
        """Replicas that were ordered count until they are there, or have not come."""
        if state.growing is None:
            return demand
        decision, target, since_s = state.growing
        row = ScalingDecision.objects.filter(pk=decision).first()
        if demand.replicas >= target:
            finish(decision, "done", "")
        elif row is not None and row.outcome == "running" and sample.at_s - since_s < GROW_LIMIT_S:
            return replace(demand, replicas=max(target, demand.replicas), idle_s=0.0)
        else:
            finish(decision, "failed", f"only {demand.replicas} of {target} replicas came")
        state.growing = None
        return demand

    def _decide(self, sample: Sample, demand: Demand, proposal: Proposal) -> ScalingDecision | None:
        spec, pool = sample.pool.scaling, sample.pool.id
        automatic = spec.mode is ScalingMode.AUTOMATIC
        runs = automatic and spec.driver != EXTERNAL
        detail = "read by an external autoscaler" if automatic and not runs else ""
        with transaction.atomic():
            if BookedEpochs().read(pool) > sample.epoch:
                return None  # somebody else leads by now
            if runs:
                ScalingDecision.objects.filter(pool=pool, outcome="running").update(
                    outcome="superseded", finished_at=_moment(sample.at_s)
                )
            return ScalingDecision.objects.create(
                from_replicas=proposal.current,
                to_replicas=proposal.wanted,
                applied=automatic,
                outcome="running" if runs else "advised",
                detail=detail,
                **_seen(sample, demand, proposal),
            )

    def _store_state(self, sample: Sample, state: _Pool, demand: Demand, proposal: Proposal) -> None:
        leaving = sum(1 for b in sample.pool.backends if b.leaving_since_s is not None)
        about = (proposal.current, proposal.wanted, leaving, proposal.reason)
        if about == state.stored and sample.at_s - state.stored_s < MAX_WINDOW_S:
            return
        seen = _seen(sample, demand, proposal)
        del seen["pool"]
        ScalingState.objects.update_or_create(
            pool=sample.pool.id,
            defaults=seen
            | {
                "mode": sample.pool.scaling.mode.value,
                "current": proposal.current,
                "wanted": proposal.wanted,
                "leaving": leaving,
            },
        )
        state.stored, state.stored_s = about, sample.at_s


def finish(decision: int, outcome: str, detail: str) -> None:
    """Says what became of a decision that runs; a failure is an alert."""
    now = datetime.now(tz=UTC)
    ended = ScalingDecision.objects.filter(pk=decision, outcome="running").update(
        outcome=outcome, detail=detail[:300], finished_at=now
    )
    if ended and outcome == "failed":
        row = ScalingDecision.objects.get(pk=decision)
        line = f"Pool {row.pool}: scaling from {row.from_replicas} to {row.to_replicas} failed: {detail}"
        raise_alert("scaling_failed", f"scaling_failed:{row.pool}:{decision}", line, pool=row.pool)


def _remembered(pool: str) -> Memory:
    """Cooldowns hold over a change of leader."""
    done = ScalingDecision.objects.filter(pool=pool, outcome__in=("running", "done", "failed", "superseded"))
    newest = done.order_by("-at").first()
    grown = next((d for d in done.order_by("-at")[:20] if d.to_replicas > d.from_replicas or d.to_replicas == 0), None)
    return Memory(
        grown_s=grown.at.timestamp() if grown and grown.to_replicas else -math.inf,  # who slept may wake at once
        changed_s=newest.at.timestamp() if newest else -math.inf,
    )


def _seen(sample: Sample, demand: Demand, proposal: Proposal) -> dict[str, object]:
    wish = demand.used + demand.waiting + demand.refused
    sides = [replicas_for(amounts, demand.replica) for amounts in (wish, demand.entitled)]
    tight = max(sides)[1] or next(iter(DIMENSIONS))
    figures = {name: getattr(getattr(demand, name), tight) for name in ("used", "waiting", "refused", "entitled")}
    one = getattr(demand.replica, tight)
    return {
        "pool": sample.pool.id,
        "at": _moment(sample.at_s),
        "epoch": sample.epoch,
        "reason": proposal.reason[:300],
        "dimension": tight,
        "per_replica": one if math.isfinite(one) else 0.0,
        "slo_met": demand.slo_met,
        "slo_total": demand.slo_total,
        **figures,
    }


def _moment(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, tz=UTC)
