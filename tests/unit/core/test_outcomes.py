"""A reason is declared once, with what follows from it: whoever counts refusals for want of room reads it there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scaling.demand import DemandWindow
from scheduling.core.outcomes import Outcome, Reason, outcome_of
from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, ServiceClass, Slo, TierSpec
from scheduling.state.types import unmet
from tests.support import telemetry_world as world

REFUSALS = [reason for reason in Reason if outcome_of(reason) is Outcome.REFUSED]
TIER = TierSpec("standard", ServiceClass.ELASTIC, 0, 1.0, Slo(1.0, 0.1), over_limit=OverLimit.REFUSE)
ACME = EntitlementSpec("acme", "acme", world.sample().pool.id, TIER, EntitlementState.BOUND, 0, 0, 0, 100)


def missed_by_the_planner(reason: Reason) -> bool:
    window = DemandWindow(60.0)
    window.look(world.sample())
    window.add([replace(world.refused(1, reason=reason.value), entitlement="acme", done_s=world.NOW)])
    return window.demand(world.sample(), {"acme": ACME}).refused.slots > 0


@pytest.mark.parametrize("reason", REFUSALS)
def test_the_weights_and_the_planner_agree_on_what_was_refused_for_want_of_room(reason: Reason):
    assert (unmet(world.refused(1, reason=reason.value)) > 0) == missed_by_the_planner(reason)


def test_what_waited_is_not_counted_again_when_it_is_refused():
    assert unmet(world.refused(1, reason="queue_timeout", queued_s=world.NOW - 30)) == 0


def test_a_reason_of_another_release_is_no_want_of_room():
    assert unmet(world.refused(1, reason="of_another_release")) == 0
