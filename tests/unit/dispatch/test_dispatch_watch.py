"""Rates out of an engine's counters."""

from __future__ import annotations

import pytest

from scheduling.dispatch.replicas.progress import DOUBTFUL_S, IDLE_S, STALLED_S, HealthStep, ProgressWatch
from scheduling.engines.client import EngineMetrics


def scrape(watch: ProgressWatch, at_s: float, prompt: float | None, generated: float | None) -> None:
    watch.seen(EngineMetrics(4, 0, 0.5, generated, prompt, 0.0, 0.0), leases=4, now_s=at_s)


def test_a_prompt_counted_at_once_is_a_mean_of_five_seconds_not_a_spike() -> None:
    watch, total, seen = ProgressWatch(), 0.0, []
    for second in range(30):
        total += 2000.0 if second % 5 == 0 else 0.0  # 400 tokens/s
        scrape(watch, float(second), total, 100.0 * second)
        seen.append((watch.rates.input_tokens_per_s, watch.rates.output_tokens_per_s))
    assert seen[0] == (None, None)
    assert all(rate == pytest.approx(400.0) for rate, _ in seen[5:])
    assert all(rate == pytest.approx(100.0) for _, rate in seen[1:])


def test_the_mean_ends_five_seconds_after_the_last_prompt_whatever_scrapes_were_missed() -> None:
    watch = ProgressWatch()
    scrape(watch, 0.0, 0.0, 0.0)
    scrape(watch, 1.0, 1000.0, 1.0)
    assert watch.rates.input_tokens_per_s == pytest.approx(1000.0)
    watch.failed("no answer")
    assert watch.rates.input_tokens_per_s is None
    scrape(watch, 4.0, 1000.0, 2.0)
    assert watch.rates.input_tokens_per_s == pytest.approx(250.0)
    scrape(watch, 6.0, 1000.0, 3.0)
    assert watch.rates.input_tokens_per_s == 0.0


def test_a_restarted_engine_begins_anew() -> None:
    watch = ProgressWatch()
    scrape(watch, 0.0, 5000.0, 500.0)
    scrape(watch, 1.0, 6000.0, 510.0)
    scrape(watch, 2.0, 10.0, 1.0)
    assert watch.rates.input_tokens_per_s is None
    scrape(watch, 3.0, 30.0, 2.0)
    assert watch.rates.input_tokens_per_s == pytest.approx(20.0)


def test_counters_that_an_engine_does_not_say_make_rates_that_are_not_known_and_never_zero() -> None:
    watch = ProgressWatch()
    for second in range(8):
        scrape(watch, float(second), None, None)
        assert (watch.rates.input_tokens_per_s, watch.rates.output_tokens_per_s) == (None, None)
    scrape(watch, 8.0, 5000.0, None)
    scrape(watch, 9.0, 5400.0, 70.0)
    assert (watch.rates.input_tokens_per_s, watch.rates.output_tokens_per_s) == (pytest.approx(400.0), None)
    scrape(watch, 10.0, 5800.0, 170.0)
    assert (watch.rates.input_tokens_per_s, watch.rates.output_tokens_per_s) == (
        pytest.approx(400.0),
        pytest.approx(100.0),
    )
    scrape(watch, 11.0, None, None)
    scrape(watch, 12.0, 6600.0, 370.0)
    assert watch.rates.input_tokens_per_s is None, "not the mean over a time in which it said nothing"


def test_an_engine_that_counts_nothing_while_it_runs_requests_is_asked_for_a_token() -> None:
    watch = ProgressWatch()
    steps = []
    for second in range(int(STALLED_S) + 2):
        watch.seen(EngineMetrics(4, 0, None, None, None, None, None), leases=4, now_s=float(second))
        steps.append(watch.seen(EngineMetrics(4, 0, None, None, None, None, None), leases=4, now_s=float(second)))
    assert steps[-1] is HealthStep.PROBE
    assert steps[0] is HealthStep.KEEP


def test_one_that_reports_nothing_is_doubted_only_while_it_has_leases_and_no_token_is_seen() -> None:
    watch = ProgressWatch()
    for second in range(60):
        assert watch.answered(0, False, float(second)) is HealthStep.KEEP, "nothing runs there"
    for second in range(60, 120):
        assert watch.answered(3, True, float(second)) is HealthStep.KEEP, "gateways see its tokens"
    steps = [watch.answered(3, False, float(second)) for second in range(120, 130)]
    assert steps == [HealthStep.KEEP] * int(DOUBTFUL_S) + [HealthStep.PROBE] * 2
    assert watch.why == "3 leases, and gateways saw no token for 9 s"
    watch.alive()
    assert watch.answered(3, False, 130.0) is HealthStep.KEEP


def test_failures_that_gateways_report_have_one_that_reports_nothing_asked_for_a_token_too() -> None:
    watch = ProgressWatch()
    for _ in range(3):
        watch.suspected()
        step = watch.answered(1, False, 1.0)
    assert step is HealthStep.PROBE
    watch.alive()
    assert watch.answered(1, False, 1.0) is HealthStep.KEEP
    watch = ProgressWatch()
    for _ in range(9):
        watch.suspected()
        assert watch.answered(1, True, 1.0) is HealthStep.KEEP
    watch.suspected()
    assert watch.failed("no answer") is HealthStep.PROBE


def test_an_engine_that_computes_one_long_prompt_works_and_one_whose_cache_stays_as_it_is_does_not() -> None:
    watch = ProgressWatch()

    def look(at_s: int, kv_usage: float | None) -> HealthStep:
        return watch.seen(EngineMetrics(1, 0, kv_usage, 10.0, 100.0, 1.0, 0.0), leases=1, now_s=float(at_s))

    long = 4 * int(STALLED_S)
    assert {look(at_s, 0.1 + at_s // 5 * 0.01) for at_s in range(long)} == {HealthStep.KEEP}
    hangs = [look(long + at_s, 0.2 - at_s // 5 * 0.01) for at_s in range(int(STALLED_S) + 1)]
    assert (hangs[0], hangs[-1]) == (HealthStep.KEEP, HealthStep.PROBE), "a cache that empties is no work"


def test_the_token_that_an_idle_engine_is_asked_for_is_no_traffic() -> None:
    watch = ProgressWatch()

    def look(at_s: float, prompt: float, generated: float) -> HealthStep:
        return watch.seen(EngineMetrics(0, 0, 0.0, generated, prompt, 0.0, 0.0), leases=0, now_s=at_s)

    steps = [look(float(second), 100.0, 10.0) for second in range(int(IDLE_S) + 3)]
    assert steps.index(HealthStep.PROBE) == IDLE_S + 1
    watch.alive()
    assert look(IDLE_S + 3, 108.0, 11.0) is HealthStep.KEEP
    assert (watch.rates.input_tokens_per_s, watch.rates.output_tokens_per_s) == (0.0, 0.0)
    assert look(IDLE_S + 4, 508.0, 61.0) is HealthStep.KEEP
    assert watch.rates.output_tokens_per_s == pytest.approx(50.0), "what follows is traffic"
