"""What a pool's own limits would refuse, in every replay of its traffic."""

from __future__ import annotations

import math

from scheduling.core.engine.step_time import load_preset
from scheduling.core.types import EntitlementSpec, PoolSpec, ServiceClass, Slo
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import Tier
from scheduling.tuning.reward import penalty
from scheduling.tuning.traffic import Serving, Traffic
from scheduling.tuning.whatif import Interval, compare, figures_of
from tests.support.state_world import entitlement, pool_spec, tier

STEP = load_preset("llama-3-8b-a100").step_time
FIFO = Serving("fifo")
STANDARD = Tier("standard", Slo(ttft_s=5.0, tbt_s=0.2), service_class=ServiceClass.ELASTIC)


def asked(count: int, gap_s: float = 0.02, entitlement: str = "acme") -> list[Recorded]:
    return [Recorded(n * gap_s, 200, 60, "acme", "standard", entitlement, wait_s=0.0) for n in range(count)]


def traffic(rows: list[Recorded], spec: EntitlementSpec | None = None, pool: PoolSpec | None = None) -> Traffic:
    limits = entitlement(tier=tier(name="standard", queue_limit=3), concurrency=4) if spec is None else spec
    served = Replica(STEP, 8, 60_000)
    return Traffic(tuple(rows), (STANDARD,), (served,), pool=pool or pool_spec(), entitlements=(limits,))


def figures(found: Traffic) -> dict[str, float]:
    requests = found.requests()
    return figures_of(requests, found.run(FIFO, requests))


def test_refused_requests_count_among_those_that_were_asked_for() -> None:
    found = figures(traffic(asked(60)))
    assert found["all|requests"] == 60
    assert found["all|slo"] == 100.0, "what was served was in time"
    assert 0 < found["all|refused"] < 100
    assert math.isclose(found["all|kept"], 100.0 - found["all|refused"])
    assert found["tier:standard|kept"] == found["tenant:acme|kept"] == found["all|kept"]
    assert found["all|refused_concurrency"] == found["all|refused"], "four may run or wait: why they were refused"
    assert math.isfinite(found["all|ttlt_p99"])
    without = Traffic(tuple(asked(60)), (STANDARD,), (Replica(STEP, 8, 60_000),))
    assert figures(without)["all|refused"] == 0.0


def test_a_token_budget_refuses_in_a_replay() -> None:
    spec = entitlement(tier=tier(name="standard"), concurrency=100, tokens_per_s=520.0, burst_tokens=1040.0)
    found = figures(traffic(asked(60), spec))
    assert found["all|refused_token_budget"] == found["all|refused"] > 50.0


def test_what_was_refused_live_is_asked_again() -> None:
    """A pool that refused for want of room might not, had it been served otherwise."""
    rows = asked(10, gap_s=1.0)
    away = Recorded(
        4.5, 200, 0, "acme", "standard", "acme", expected_tokens=70.0, output_bound=100, outcome="refused",
        reason="queue_full",
    )  # fmt: skip
    assert away.turned_away
    found = traffic([*rows[:5], away, *rows[5:]])
    requests = found.requests()
    assert requests[5].output_tokens == 70, "it is taken to have the answer that was expected"
    assert not any(outcome.refused for outcome in found.run(FIFO, requests))
    other = Recorded(4.5, 200, 0, "acme", "standard", "acme", outcome="refused", reason="invalid_request")
    assert not other.turned_away, "no limit refused it"


def test_who_the_pool_does_not_know_is_let_in() -> None:
    """A trace that somebody brings has tenants of its own."""
    assert figures(traffic(asked(60, entitlement="stranger")))["all|refused"] == 0.0


def test_trials_feel_what_is_refused() -> None:
    """A candidate cannot win by having the pool refuse."""
    tight, wide = traffic(asked(60)), traffic(asked(60), entitlement(tier=tier(queue_limit=100), concurrency=100))
    felt = {}
    for name, each in (("tight", tight), ("wide", wide)):
        requests = each.requests()
        felt[name] = penalty(each.felt(requests, each.run(FIFO, requests)))
    assert felt["tight"] > 0.5 > felt["wide"]


def test_a_variant_in_which_nothing_was_served_has_no_latencies() -> None:
    """nan is no figure: databases do not keep it, and no mean has it."""
    nothing = figures(traffic(asked(20), entitlement(tier=tier(name="standard"), concurrency=4, paused=True)))
    assert nothing["all|kept"] == 0.0
    assert nothing["all|refused_tenant_paused"] == 100.0
    assert not {"all|ttft_p50", "all|slo"} & nothing.keys()
    table = compare({"now": [figures(traffic(asked(20))), nothing]})
    assert "all|kept" in table["now"]
    assert "all|ttft_p50" not in table["now"]


def test_what_only_one_of_two_policies_has_stands_without_a_difference() -> None:
    """A tenant that joined has figures, though the traffic as it was has none of it."""
    one, other = {"all|kept": 90.0}, {"all|kept": 80.0, "tenant:new|kept": 70.0}
    table = compare({"unchanged": [one, one], "now": [other, other]})
    own, difference = table["now"]["tenant:new|kept"]
    assert (own.mean, difference) == (70.0, None)
    assert table["now"]["all|kept"][1] is not None
    assert table["now"]["all|kept"][1].mean == -10.0
    assert "tenant:new|kept" not in table["unchanged"]
    assert "tenant:new|kept" not in compare({"now": [one, other]})["now"], "only what each variant has"


def test_a_difference_of_one_variant_is_not_sure_however_large() -> None:
    one, other = {"all|kept": 90.0}, {"all|kept": 20.0}
    assert not _difference({"now": [one], "fifo": [other]}).sure
    assert _difference({"now": [one, one], "fifo": [other, other]}).sure


def _difference(by_policy: dict[str, list[dict[str, float]]]) -> Interval:
    found = compare(by_policy)["fifo"]["all|kept"][1]
    assert found is not None
    return found
