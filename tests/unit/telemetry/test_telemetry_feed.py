"""The live feed's arithmetic: window, snapshot, change, and what a tenant may see. Pure, no clock."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import StepFit
from scheduling.core.engine.step_time import StepTime
from scheduling.core.engine.token_time import TokenTime
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import AdapterSpec, BackendView, Phase, PoolView
from scheduling.dispatch.ports import BackendStatus, StepStatus
from scheduling.dispatch.replicas.adapters import AdapterStatus
from scheduling.dispatch.replicas.status import speed_why
from telemetry.alerts import conditions
from telemetry.feed import history, snapshots
from telemetry.feed.window import MEASURES, WINDOW_S, Window, durations_ms
from telemetry.models import AlertRule, RuleKind
from tests.support.telemetry_world import ENTITLEMENTS, NOW, POOL, record, refused, sample


def filled(*records: LedgerRecord, now_s: float = NOW) -> Window:
    """A window that was watched for its whole length."""
    window = Window()
    window.expire(now_s - WINDOW_S)
    for r in records:
        window.add([r], now_s)
    return window


def globex(number: int, **changes: Any) -> LedgerRecord:
    return record(number, tenant="globex", tier="standard", entitlement="globex-llama", **changes)


def snapshot(window: Window | None = None, seq: int = 1, **changes: Any) -> snapshots.Snapshot:
    return snapshots.snapshot(sample(**changes), window or Window(), ENTITLEMENTS, seq)


# --- the window


def test_what_ended_is_counted_once_however_often_it_is_handed_in() -> None:
    window = filled(record(1), record(1), record(2), refused(3), refused(3))
    assert (window.pool.completed, window.pool.refused) == (2, 1)


def test_what_a_gateway_says_that_was_only_cut_off_is_counted_instead_of_its_loss() -> None:
    lost = record(1, outcome="failed", reason="gateway_lost", output_tokens=0, slo_met=False, done_s=NOW - 20)
    window = filled(lost, record(1), lost, record(1))
    assert (window.pool.completed, window.pool.failed, window.pool.output_tokens) == (1, 0, 101)
    assert (window.pool.slo_met, window.pool.slo_missed) == (1, 0)
    assert window.arrived(0, NOW)[0] == 0
    window.expire(NOW + WINDOW_S + 1)
    assert window.pool.empty
    assert not window.entitlements

    at_once = Window()
    assert at_once.add([lost, record(1), lost, record(1), record(2), record(2)], NOW) == 3
    assert (at_once.pool.completed, at_once.pool.failed, at_once.entitlements["acme-llama"].completed) == (2, 0, 2)
    at_once.expire(NOW + WINDOW_S + 1)
    assert at_once.pool.empty

    late = filled(lost, record(2))
    assert not late.add([record(1, done_s=NOW - WINDOW_S)], NOW), "it ended before the window"
    assert (late.pool.completed, late.pool.failed) == (1, 0)


def test_what_ended_before_the_window_is_forgotten_and_nothing_stays_behind() -> None:
    window = filled(*(record(n, done_s=NOW - n) for n in range(50)), *(refused(100 + n) for n in range(5)))
    assert window.pool.completed == 50
    window.expire(NOW + WINDOW_S / 2)
    assert window.pool.completed == pytest.approx(30, abs=1)
    window.expire(NOW + 2 * WINDOW_S)
    assert window.pool.histogram == {}
    assert window.pool.refusals == {}
    assert (window.tenants, window.tiers, window.entitlements, window.pool.input_tokens) == ({}, {}, {}, 0)


def test_an_entry_from_a_clock_that_runs_ahead_expires_with_the_others() -> None:
    window = filled(record(1, done_s=NOW + 500))
    window.expire(NOW + WINDOW_S + 2)
    assert window.pool.completed == 0


durations = st.lists(st.floats(0.0002, 3000.0), min_size=1, max_size=200)


@given(durations)
def test_percentiles_are_within_one_percent_of_the_exact_ones(seconds: list[float]) -> None:
    window = filled(
        *(
            record(n, received_s=NOW - s, first_token_s=None, queued_s=None, granted_s=None)
            for n, s in enumerate(seconds)
        )
    )
    found = window.pool.percentiles()["ttlt_ms"]
    exact = sorted((r - (r - s)) * 1000 for s, r in ((s, NOW) for s in seconds))
    for percent in (50, 95, 99):
        true_ms = exact[math.ceil(len(exact) * percent / 100) - 1]
        assert found[f"p{percent}"] == pytest.approx(true_ms, rel=0.011, abs=0.11)


def test_measures_count_from_arrival_and_from_queueing() -> None:
    found = {MEASURES[m]: round(v, 3) for m, v in durations_ms(record())}
    assert found == {"ttft_ms": 500.0, "ttlt_ms": 3000.0, "tbt_ms": 25.0, "queue_ms": 100.0}
    assert durations_ms(refused(1)) == []
    gave_up = refused(1, reason="queue_timeout", queued_s=NOW - 2.0)
    assert dict(durations_ms(gave_up)) == pytest.approx({MEASURES.index("queue_ms"): 2000.0})


def test_memory_is_bounded_at_three_thousand_requests_per_second() -> None:
    """What is held after one window is what is held after two.

    A tenth of the requests, each of one of 20 entitlements: the keys of the sums are what memory depends on.
    """
    window = Window()
    held = []
    tracemalloc.start()
    try:
        for n in range(2 * WINDOW_S * 300):
            # A tenth of the requests, each counted with the keys of ten: buckets are what memory depends on.
            done_s = NOW + n / 300
            who = n % 20
            received_s = done_s - 0.5 - (n % 97) / 30
            window.add(
                [record(n, entitlement=f"e{who}", tenant=f"t{who}", done_s=done_s, received_s=received_s)], done_s
            )
            if n % 300 == 0:
                window.expire(done_s)
            if n in (WINDOW_S * 310, 2 * WINDOW_S * 300 - 1):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] <= held[0] * 1.25
    assert held[1] < 64 * 1024 * 1024


# --- the snapshot


def test_a_snapshot_says_what_the_sample_and_the_ledger_say() -> None:
    window = filled(record(1), record(2, slo_met=False), globex(3), refused(4))
    shot = snapshot(window, seq=7)
    assert (shot["pool"], shot["seq"], shot["at"], shot["scope"]) == ("llama", 7, NOW, "all")
    assert shot["queue"] == {"depth": 7, "oldest_s": 1.2, "limit": 10_000}
    assert (shot["running"], shot["slots"]) == (10, 32)
    assert (shot["kv_used"], shot["kv_tokens"]) == (5000, 100_000)
    assert shot["tokens_per_s"] == {"input": 900.0, "output": 800.0}
    assert shot["refusals"] == {"concurrency": 1}
    assert shot["slo"]["violations"] == 1
    premium = shot["slo"]["by_tier"]["premium"]
    assert {name: premium[name] for name in ("violations", "total", "asked", "attainment", "attainment_served")} == {
        "violations": 1,
        "total": 2,
        "asked": 3,
        "attainment": 0.3333,
        "attainment_served": 0.5,
    }
    assert (premium["ttft_s"], premium["tbt_s"]) == (1.0, 0.1)
    assert premium["latency"]["ttft_ms"] == shot["tenants"]["acme"]["latency"]["ttft_ms"]
    acme = shot["entitlements"]["acme-llama"]
    assert (acme["waiting"], acme["running"], acme["completed"], acme["bucket_level"]) == (2, 3, 2, 9000)
    assert acme["refused"] == {"concurrency": 1}
    assert (acme["class"], acme["weight"], acme["debt"], acme["burst"]) == ("guaranteed", 612.2, 0.0235, 0.25)
    assert not {"weight", "debt", "burst"} & shot["entitlements"]["globex-llama"].keys()
    assert shot["tenants"]["globex"]["rates"]["completed"] == pytest.approx(1 / 60, abs=0.001)
    assert shot["backends"]["gpu-1"]["gpu_util"] == 0.9


def test_operators_see_shares_once_they_are_known_and_members_nothing_of_the_class() -> None:
    shot = snapshot(shares={"acme-llama": 0.41234})
    assert shot["entitlements"]["acme-llama"]["share"] == 0.412
    assert "share" not in shot["entitlements"]["globex-llama"]
    own = snapshots.visible(shot, frozenset({"acme"}))
    assert own is not None
    assert own["entitlements"]["acme-llama"].keys() == shot["entitlements"]["acme-llama"].keys() - {"share"}
    assert "share" not in snapshot()["entitlements"]["acme-llama"], "a new leader does not know it yet"


def test_a_snapshot_says_whose_slo_was_not_judged_because_their_clients_left() -> None:
    gone = {"outcome": "cancelled", "reason": "client_left", "slo_met": None}
    promised_nothing = gone | {"ttft_slo_s": None, "tbt_slo_s": None}
    window = filled(record(1), record(2, **gone), record(3, **gone), globex(4, **gone), record(5, **promised_nothing))
    shot = snapshot(window)
    assert (shot["slo"]["asked"], shot["slo"]["attainment"], shot["slo"]["left"]) == (1, 1.0, 3)
    assert shot["slo"]["by_tier"]["premium"]["left"] == 2
    assert shot["tenants"]["globex"]["slo"] == {"violations": 0, "total": 0, "asked": 0, "left": 1}
    assert shot["entitlements"]["acme-llama"]["left"] == 2
    assert "left" not in snapshot(filled(record(1)))["slo"]
    own = snapshots.visible(shot, frozenset({"acme"}))
    assert own is not None
    assert own["slo"]["left"] == 2


def test_tokens_come_from_ended_requests_where_no_engine_reports_them() -> None:
    shot = snapshot(filled(record(1)), backends=[])
    assert shot["tokens_per_s"] == {"input": 2.0, "output": 1.7}
    assert shot["backends"]["gpu-1"]["state"] == "probing"


def test_an_engine_that_does_not_count_is_not_known_and_its_pool_goes_by_the_requests_that_ended() -> None:
    counts = BackendStatus("gpu-2", "ready", "", NOW, 4, output_tokens_per_s=500.0, input_tokens_per_s=900.0)
    silent = replace(counts, id="gpu-1", output_tokens_per_s=None, input_tokens_per_s=None)
    view = PoolView({name: BackendView(name, 32, 100_000, running=4) for name in ("gpu-1", "gpu-2")})
    shot = snapshot(filled(record(1)), backends=[silent, counts], view=view)
    assert not {"output_tokens_per_s", "input_tokens_per_s"} & shot["backends"]["gpu-1"].keys()
    assert shot["tokens_per_s"] == {"input": 2.0, "output": 1.7}, "one of two engines is not the pool"
    shot = snapshot(filled(), backends=[silent], view=view)
    assert shot["tokens_per_s"] == {}, "four requests run, and nothing tells how fast"
    assert not {"in", "out"} & history.point(shot).keys()
    idle = PoolView({"gpu-2": view.backends["gpu-2"]})
    shot = snapshot(filled(record(1)), backends=[silent, counts], view=idle)
    assert shot["tokens_per_s"] == {"input": 900.0, "output": 500.0}, "who runs nothing has no tokens to count"


def test_arrivals_are_what_ended_plus_what_is_still_there() -> None:
    window = filled(record(1))
    snapshot(window)  # 17 in flight
    window.add([record(2)], NOW + 10)
    window.add([refused(3)], NOW + 10)
    later = snapshots.snapshot(sample(NOW + 10, waiting={"acme-llama": 10}), window, ENTITLEMENTS, 2)  # 20 in flight
    assert later["rates"]["arrived"] == pytest.approx((2 + 3) / 10)


def test_rates_of_a_new_leader_are_over_the_time_it_has_watched() -> None:
    window = Window()
    snapshot(window)
    for n in range(20):
        window.add([record(n, done_s=NOW + 5)], NOW + 5)
    early = snapshots.snapshot(sample(NOW + 10), window, ENTITLEMENTS, 2)
    assert early["rates"]["completed"] == pytest.approx(2.0)
    late = snapshots.snapshot(sample(NOW + 60), window, ENTITLEMENTS, 3)
    assert late["rates"]["completed"] == pytest.approx(20 / 60, abs=0.001)


def test_there_are_no_nulls_in_a_snapshot() -> None:
    for window in (Window(), filled(record(1), refused(2))):
        text = msgspec.json.encode(snapshot(window)).decode()
        assert "null" not in text
        assert "null" not in json.dumps(history.point(snapshot(window)))


# --- changes


values = st.recursive(
    st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3), st.booleans()),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=2), values, max_size=5)


@given(objects, objects)
def test_applying_a_change_gives_the_next_snapshot(before: snapshots.Snapshot, after: snapshots.Snapshot) -> None:
    kept = json.dumps(before)
    patch = json.loads(json.dumps(snapshots.delta(before, after)))
    assert json.dumps(snapshots.apply(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert json.dumps(before) == kept, "the snapshot that others still hold was changed"
    assert snapshots.delta(after, after) == {}


events = st.lists(
    st.tuples(
        st.sampled_from(["acme", "globex"]),
        st.sampled_from(["completed", "refused", "failed"]),
        st.floats(0, 90),
        st.sampled_from([True, False, None]),
    ),
    max_size=40,
)


@given(events, st.sampled_from([None, frozenset({"acme"}), frozenset({"globex"}), frozenset({"acme", "globex"})]))
def test_feed_deltas_equal_fresh_snapshot(happened: list[tuple[Any, ...]], sight: frozenset[str] | None) -> None:
    """A dashboard that only ever applied changes shows what one that just connected shows."""
    window = Window()
    screen: snapshots.Snapshot | None = None
    before: snapshots.Snapshot | None = None
    for second in range(0, 91, 9):
        now_s = NOW + second
        for n, (tenant, outcome, after_s, met) in enumerate(happened):
            if second - 9 < after_s <= second:
                make = record if tenant == "acme" else globex
                window.add([make(n, outcome=outcome, done_s=NOW + after_s, slo_met=met, reason="stop")], now_s)
        fresh = snapshots.visible(snapshots.snapshot(sample(now_s), window, ENTITLEMENTS, second + 1), sight)
        assert fresh is not None
        if before is None:
            screen = fresh
        else:
            screen = snapshots.apply(screen or {}, json.loads(json.dumps(snapshots.delta(before, fresh))))
        before = fresh
        assert screen == fresh


# --- who sees what


def test_carol_sees_no_trace_of_alices_tenant() -> None:
    window = filled(record(1), refused(2, reason="token_budget"), globex(3))
    seen = snapshots.visible(snapshot(window), frozenset({"globex"}))
    assert seen is not None
    text = json.dumps(seen)
    for foreign in ("acme", "token_budget", "premium", "answered a probe", "worker-1"):
        assert foreign not in text
    assert (seen["queue"], seen["running"], seen["slots"]) == ({"depth": 5}, 7, 8)
    assert seen["rates"]["refused"] == 0
    assert seen["slo"]["total"] == 1
    assert seen["backends"] == {"gpu-1": {"state": "ready"}}


def test_a_members_figures_do_not_move_with_a_neighbours_load() -> None:
    """Whatever a neighbour does, nothing on the member's screen tells."""
    sight = frozenset({"globex"})
    quiet = snapshots.visible(snapshot(filled(globex(1))), sight)
    busy = snapshots.visible(
        snapshot(
            filled(globex(1), *(record(10 + n) for n in range(200)), *(refused(500 + n) for n in range(100))),
            waiting={"acme-llama": 500, "globex-llama": 5},
            oldest_wait_s=55.0,
            bucket_levels={"acme-llama": 1.0},
        ),
        sight,
    )
    assert quiet == busy
    assert history.visible(history.point(snapshot(filled(globex(1), record(2)))), sight) == history.visible(
        history.point(snapshot(filled(globex(1)))), sight
    )


def test_a_pool_without_ones_own_entitlement_does_not_exist() -> None:
    assert snapshots.visible(snapshot(), frozenset({"initech"})) is None
    assert snapshots.visible(snapshot(), frozenset()) is None


def test_a_member_of_two_tenants_sees_their_sum_and_no_percentile_of_it() -> None:
    seen = snapshots.visible(snapshot(filled(record(1), globex(2))), frozenset({"acme", "globex"}))
    assert seen is not None
    assert seen["queue"]["depth"] == 7
    assert seen["slo"]["total"] == 2
    assert seen["latency"] == {}
    assert seen["tenants"]["acme"]["latency"]["ttft_ms"]["p50"] == pytest.approx(500, rel=0.01)


def test_members_see_in_the_history_why_their_own_requests_were_refused() -> None:
    point = history.point(snapshot(filled(*(refused(n) for n in range(3)), globex(9))))
    assert history.visible(point, frozenset({"acme"}))["refusals"] == {"concurrency": 3}
    assert history.visible(point, frozenset({"globex"}))["refusals"] == {}
    assert history.visible(point, frozenset({"acme", "globex"}))["refusals"] == point["refusals"] == {"concurrency": 3}
    assert "refusals" not in point["tenants"]["globex"]


def test_a_point_of_the_history_names_only_the_busiest_tenants() -> None:
    many = {
        f"e{n}": ENTITLEMENTS["acme-llama"].__class__(
            f"e{n}", f"t{n}", "llama", ENTITLEMENTS["acme-llama"].tier, ENTITLEMENTS["acme-llama"].state, 0, 0, 0, 4
        )
        for n in range(80)
    }
    shot = snapshots.snapshot(sample(waiting={f"e{n}": n for n in range(80)}), Window(), many, 1)
    point = history.point(shot)
    assert len(point["tenants"]) == history.TENANTS
    assert min(row["waiting"] for row in point["tenants"].values()) == 30
    assert point["depth"] == sum(range(80))


def test_the_policys_queues_are_shown_and_remembered_and_members_do_not_see_them() -> None:
    full = snapshots.snapshot(sample(parts={"elastic band": 5}), Window(), ENTITLEMENTS, 1)
    assert full["queue"]["parts"] == {"elastic band": 5}
    remembered = history.point(full)
    assert remembered["parts"] == {"elastic band": {"waiting": 5}}
    later = history.point(snapshots.snapshot(sample(NOW + 1), Window(), ENTITLEMENTS, 2))
    assert history.merged([remembered, later])["parts"] == {"elastic band": {"waiting": 2.5}}
    mine = snapshots.visible(full, frozenset({"acme"}))
    assert mine is not None
    assert "parts" not in mine["queue"]
    assert "parts" not in history.visible(remembered, frozenset({"acme"}))


def test_how_quickly_grants_follow_from_first_tokens_is_shown_to_operators_once_it_is_measured() -> None:
    window = filled(record(1))
    unknown = snapshots.snapshot(sample(), window, ENTITLEMENTS, 1)
    measured = snapshots.snapshot(sample(turnaround_s=0.01234), window, ENTITLEMENTS, 1)
    assert "turnaround_ms" not in unknown
    assert measured["turnaround_ms"] == 12.3
    assert "turnaround_ms" not in (snapshots.visible(measured, frozenset({"acme"})) or {})


def test_operators_are_told_that_requests_wait_for_prefill_while_slots_are_free() -> None:
    def shown(*short: float, **changes: Any) -> dict[str, Any]:
        backends = [
            BackendStatus(f"gpu-{n}", "ready", "", NOW, prefill_credit=768, credit_short=s) for n, s in enumerate(short)
        ]
        return snapshots.snapshot(sample(backends=backends, **changes), Window(), ENTITLEMENTS, 1)

    bound = shown(0.9, 0.7)
    assert bound["prefill_bound"] is True
    assert "prefill_bound" not in (snapshots.visible(bound, frozenset({"acme"})) or {})
    assert "prefill_bound" not in shown(0.9, 0.2), "one of two has room for a prompt"
    assert "prefill_bound" not in shown(0.9, waiting={}), "nothing waits any more"
    assert "prefill_bound" not in shown(), "no replica is known"


def test_a_replica_without_a_credit_or_out_of_service_says_nothing_of_prefill() -> None:
    ready = BackendStatus("gpu-1", "ready", "", NOW, prefill_credit=768, credit_short=0.9)
    lost = BackendStatus("gpu-2", "ejected", "", NOW, prefill_credit=768)
    unbound = BackendStatus("gpu-3", "ready", "", NOW)
    unseen = BackendStatus("gpu-4", "ready", "", NOW - 60, prefill_credit=768, credit_short=0.9)
    told = [
        snapshots.snapshot(sample(backends=backends), Window(), ENTITLEMENTS, 1).get("prefill_bound")
        for backends in ([ready, lost], [ready, unbound], [unbound], [unseen], [ready, unseen])
    ]
    assert told == [True, True, None, None, True]


def test_how_many_free_slots_are_kept_for_baselines_is_shown_to_operators() -> None:
    full = snapshots.snapshot(sample(headroom=8), Window(), ENTITLEMENTS, 1)
    assert full["headroom"] == 8
    assert "headroom" not in (snapshots.visible(full, frozenset({"acme"})) or {})
    assert "headroom" not in snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)


def test_a_replica_out_of_service_has_drained_when_nothing_runs_on_it() -> None:
    def state(running: int, engine_running: int | None, tenants: set[str] | None = None) -> str:
        view = PoolView({"gpu-1": BackendView("gpu-1", 32, 100_000, running=running)}, {})
        status = BackendStatus("gpu-1", "draining", "taken out of service", NOW, engine_running=engine_running)
        shot = snapshots.snapshot(sample(view=view, backends=[status]), Window(), ENTITLEMENTS, 1)
        return snapshots.visible(shot, tenants)["backends"]["gpu-1"]["state"]

    assert state(8, 8) == "draining"
    assert state(0, 1) == "draining"  # its engine has not finished
    assert state(0, 0) == state(0, None) == "drained"
    assert state(0, 0, {"acme"}) == "draining"  # when the others' last request ended is not told


def test_nobody_is_alarmed_about_a_replica_that_has_drained() -> None:
    view = PoolView({"gpu-1": BackendView("gpu-1", 32, 100_000)}, {})
    status = BackendStatus("gpu-1", "draining", "taken out of service", NOW)
    shot = snapshots.snapshot(sample(view=view, backends=[status]), Window(), ENTITLEMENTS, 1)
    rule = AlertRule(name="r", kind=RuleKind.BACKEND)
    assert [seen.value for seen in conditions._OF_POOL[RuleKind.BACKEND](rule, "llama", shot).values()] == [0.0]


def test_a_replica_whose_full_step_takes_longer_than_a_tier_allows_between_tokens_says_what_to_change() -> None:
    plugin = StepStatus(fit=None, believed=False, recent_error=None, drifts=0)

    def shown(full_step_s: float, phase: Phase = Phase.BOTH, steps: StepStatus | None = None) -> dict[str, Any]:
        status = BackendStatus(
            "gpu-1", "ready", "answered", NOW, engine_facts=EngineFacts(step_tokens=2048),
            full_step=(2048, full_step_s), steps=steps,
        )  # fmt: skip
        view = PoolView({"gpu-1": BackendView("gpu-1", 32, 100_000)}, {})
        pool = replace(POOL, backends=(replace(POOL.backends[0], phase=phase),))
        seen = sample(view=view, backends=[status], pool=pool)
        return snapshots.snapshot(seen, Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]

    assert shown(0.2)["step_why"].endswith("--max-num-batched-tokens 1024")
    assert shown(0.2, Phase.DECODE)["step_why"] == shown(0.2)["step_why"]
    assert "step_why" not in shown(0.2, Phase.PREFILL), "no answer waits for its steps"
    assert "step_why" not in shown(0.2, steps=plugin), "it ends steps in time by itself"
    assert "step_why" not in shown(0.0), "it is not known"
    assert "step_why" not in shown(0.07)


def test_a_tier_whose_time_between_tokens_no_replica_keeps_says_what_to_change() -> None:
    """The replicas say how long their tokens take; of their steps nothing is known."""

    def shown(*token_s: float, answers_s: float = 0.2) -> str:
        names = [f"gpu-{n}" for n in range(1, 1 + len(token_s))]
        statuses = [BackendStatus(n, "ready", "answered", NOW, token_s=s) for n, s in zip(names, token_s, strict=True)]
        pool = replace(POOL, backends=tuple(replace(POOL.backends[0], id=name) for name in names))
        view = PoolView({name: BackendView(name, 32, 100_000) for name in names}, {})
        late = filled(*(record(n, first_token_s=NOW - 100 * answers_s) for n in range(4)))
        shot = snapshots.snapshot(sample(view=view, backends=statuses, pool=pool), late, ENTITLEMENTS, 1)
        return str(shot["slo"]["by_tier"]["premium"].get("tbt_why", ""))

    assert shown(0.2, 0.3).startswith("gpu-1: a token takes 200 ms on average, and the SLO allows 100 ms: give")
    assert shown(0.2, 0.0) == shown(0.2), "of the second nothing is known"
    assert shown(0.2, 0.05) == "", "one keeps it"
    assert shown(0.2, 0.2, answers_s=0.05) == "", "most answers keep it, as where several tokens come at a time"
    assert shown() == ""


def test_a_replica_shows_what_its_log_of_steps_says_and_why_it_is_not_read() -> None:
    def shown(**steps: Any) -> dict[str, Any]:
        known = {"fit": None, "believed": False, "recent_error": None, "drifts": 0} | steps
        status = BackendStatus("gpu-1", "ready", "answered", NOW, steps=StepStatus(**known))
        view = PoolView({"gpu-1": BackendView("gpu-1", 32, 100_000)}, {})
        return snapshots.snapshot(sample(view=view, backends=[status]), Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]

    assert "step_time" not in shown(), "nothing is known yet"
    assert shown(why="refused")["steps_why"] == "refused"
    fit = StepFit(StepTime(0.008, 6e-5, 2e-5, 4e-9, 0.0, 0.0, 0.0), 0.061239, 900)
    row = shown(fit=fit, believed=True, recent_error=0.07, drifts=2)["step_time"]
    assert (row["t0"], row["error"], row["recent_error"], row["drifts"], row["believed"]) == (
        0.008,
        0.0612,
        0.07,
        2,
        True,
    )
    assert "recent_error" not in shown(fit=fit)["step_time"]


# --- replicas that are lost


def down(at_s: float, state: str = "ejected", observed_s: float | None = None) -> Any:
    return sample(at_s, backends=[BackendStatus("gpu-1", state, "connection refused", observed_s or at_s)])


def test_a_lost_replica_says_since_when_and_whose_requests_it_lost() -> None:
    window = filled(
        record(1, outcome="failed", reason="backend_lost", slo_met=False),
        globex(2, outcome="failed", reason="backend_stalled", slo_met=False),
        globex(3, outcome="failed", reason="deadline", slo_met=False),
        record(4, outcome="failed", reason="backend_lost", slo_met=False, backend="gpu-2"),
    )
    first = snapshots.snapshot(down(NOW), window, ENTITLEMENTS, 1)
    snapshots.carry_down({}, first, window)
    assert first["backends"]["gpu-1"]["down_since"] == NOW
    assert first["backends"]["gpu-1"]["lost"] == {"acme": 1, "globex": 1}
    later = snapshots.snapshot(down(NOW + 70, observed_s=NOW - 1), window, ENTITLEMENTS, 2)
    snapshots.carry_down(first, later, window)
    row = later["backends"]["gpu-1"]
    assert (row["down_since"], row["lost"]) == (NOW - 1, {"acme": 1, "globex": 1}), "for as long as it is away"
    back = snapshots.snapshot(sample(NOW + 80), window, ENTITLEMENTS, 3)
    snapshots.carry_down(later, back, window)
    assert not {"down_since", "lost"} & back["backends"]["gpu-1"].keys()


def test_a_replica_that_generates_is_not_lost_although_its_figures_cannot_be_read() -> None:
    unread = BackendStatus("gpu-1", "ready", "its figures are not known: garbage", NOW - 60, generates=True)
    snapshot = snapshots.snapshot(sample(NOW, backends=[unread]), Window(), ENTITLEMENTS, 1)
    snapshots.carry_down({}, snapshot, Window())
    row = snapshot["backends"]["gpu-1"]
    assert (row["generates"], row["unseen_since"], "down_since" in row) == (True, NOW - 60, False)
    unseen = snapshots.snapshot(sample(NOW, backends=[replace(unread, generates=False)]), Window(), ENTITLEMENTS, 2)
    snapshots.carry_down(snapshot, unseen, Window())
    assert unseen["backends"]["gpu-1"]["down_since"] == NOW - 60


def test_a_replica_that_was_drained_is_not_lost_and_members_do_not_see_whose_requests_were() -> None:
    window = filled(globex(2, outcome="failed", reason="backend_lost", slo_met=False))
    drained = snapshots.snapshot(down(NOW, "draining", NOW - 60), window, ENTITLEMENTS, 1)
    snapshots.carry_down({}, drained, window)
    assert "down_since" not in drained["backends"]["gpu-1"]
    lost = snapshots.snapshot(down(NOW), window, ENTITLEMENTS, 1)
    snapshots.carry_down({}, lost, window)
    seen = snapshots.visible(lost, {"acme"})
    assert seen is not None
    assert "lost" not in seen["backends"]["gpu-1"]


def test_a_replica_shows_its_adapters_and_an_unseen_one_says_that_they_are_unknown() -> None:
    pool = replace(sample().pool, adapters=(AdapterSpec("sql", "llama-sql", "sql-v2"),))
    status = AdapterStatus({"sql-v2": "failed", "stray": "unconfigured"}, "sql-v2 could not be loaded: no such path")
    seen = BackendStatus("gpu-1", "ready", "answered a probe", NOW, adapters=status)
    rows = [
        snapshots.snapshot(sample(pool=pool, backends=backends), Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]
        for backends in ([seen], [replace(seen, observed_s=NOW - 60)], [])
    ]
    assert rows[0]["adapters"] == {"sql-v2": "failed", "stray": "unconfigured"}
    assert rows[0]["adapters_why"] == "sql-v2 could not be loaded: no such path"
    assert [row["adapters"] for row in rows[1:]] == [{"sql-v2": "unknown"}] * 2
    assert "adapters" not in snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]


def test_a_replica_that_is_slower_than_others_says_what_that_means() -> None:
    def shown(**of: Any) -> dict[str, Any]:
        status = BackendStatus("gpu-1", "ready", "answered", NOW, **of)
        view = PoolView({"gpu-1": BackendView("gpu-1", 32, 100_000)}, {})
        return snapshots.snapshot(sample(view=view, backends=[status]), Window(), ENTITLEMENTS, 1)["backends"]["gpu-1"]

    slow = shown(token_s=0.06, speed=0.333, speed_why=speed_why(TokenTime(0.06, speed=333, token_us=60_000)))
    assert (slow["token_ms"], slow["speed"]) == (60.0, 0.333)
    assert slow["speed_why"].startswith("a token of an answer takes 60 ms, 3.0 times as long as on the fastest replica")
    assert "less than 70.6 ms between tokens" in slow["speed_why"]
    assert not {"token_ms", "speed", "speed_why"} & shown().keys(), "not known"
    assert "speed_why" not in shown(token_s=0.02, speed=1.0, speed_why=speed_why(TokenTime(0.02, speed=1000)))
