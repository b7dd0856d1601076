"""The planner under any demand: bounds hold, it never oscillates, more demand never wants fewer replicas."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.planner import Demand, Memory, changed, plan
from scheduling.core.capacity.pool import Amounts
from scheduling.core.types import ScalingMode, ScalingSpec

REPLICA = Amounts(16, 50_000, 0)
LOOK_S = 5.0

specs = st.builds(
    lambda low, more, headroom, up, down: ScalingSpec(
        ScalingMode.AUTOMATIC, low, low + more, headroom=headroom, up_cooldown_s=up, down_cooldown_s=down
    ),
    st.integers(0, 5), st.integers(1, 20), st.floats(0, 1), st.floats(1, 60), st.floats(5, 120),
)  # fmt: skip
amounts = st.builds(Amounts, st.floats(0, 500), st.floats(0, 2_000_000))
demands = st.builds(
    lambda replicas, entitled, used, waiting, refused, met, missed: Demand(
        0.0, 60.0, replicas, REPLICA, entitled, used, waiting, refused, met, met + missed
    ),
    st.integers(0, 30), amounts, amounts, amounts, amounts, st.integers(0, 200), st.integers(0, 200),
)  # fmt: skip


@given(specs, st.lists(demands, min_size=1, max_size=30))
def test_what_is_wanted_stays_within_the_bounds_whatever_happens(spec: ScalingSpec, seen: list[Demand]) -> None:
    memory, replicas = Memory(), seen[0].replicas
    for step, demand in enumerate(seen):
        now_s = step * LOOK_S
        proposal, memory = plan(spec, replace(demand, at_s=now_s, replicas=replicas), memory)
        inside = spec.min_replicas <= replicas <= spec.max_replicas
        assert spec.min_replicas <= proposal.wanted <= spec.max_replicas
        assert "\n" not in proposal.reason
        assert proposal.reason
        if proposal.wanted != replicas:
            if inside and proposal.wanted > replicas:
                assert now_s - memory.grown_s >= spec.up_cooldown_s
            if inside and proposal.wanted < replicas:
                assert now_s - memory.changed_s >= spec.down_cooldown_s
            memory = changed(memory, now_s, replicas, proposal.wanted)
            replicas = proposal.wanted


@given(specs, demands, st.integers(0, 30), st.booleans())
def test_a_constant_load_is_followed_in_one_direction_only(
    spec: ScalingSpec, demand: Demand, start: int, saturating: bool
) -> None:
    """Also where what does not fit shows as refusals, and where an SLO is missed until there are enough replicas."""
    memory, replicas, moves = Memory(), start, []
    enough = min(spec.max_replicas, max(spec.min_replicas, 1 + int((demand.used.slots + 8) / 16)))
    for step in range(200):
        now_s = step * LOOK_S
        used, refused = demand.used, demand.refused
        if saturating:
            fits = min(1.0, replicas * REPLICA.slots / used.slots) if used.slots else 1.0
            used, refused = used * fits, refused + used * (1 - fits)
        seen = replace(
            demand, at_s=now_s, replicas=replicas, used=used, refused=refused,
            slo_total=100, slo_met=100 if replicas >= enough else 50,
        )  # fmt: skip
        proposal, memory = plan(spec, seen, memory)
        if proposal.wanted != replicas:
            # what came in from outside the bounds is put right first, and is no oscillation
            if spec.min_replicas <= replicas <= spec.max_replicas:
                moves.append(proposal.wanted > replicas)
            memory = changed(memory, now_s, replicas, proposal.wanted)
            replicas = proposal.wanted
    assert len(set(moves)) <= 1, moves


@given(specs, demands, amounts, st.sampled_from(["entitled", "used", "waiting", "refused"]))
def test_more_demand_never_wants_fewer(spec: ScalingSpec, demand: Demand, more: Amounts, where: str) -> None:
    less, _ = plan(spec, demand, Memory())
    grown, _ = plan(spec, replace(demand, **{where: getattr(demand, where) + more}), Memory())
    assert grown.wanted >= less.wanted
