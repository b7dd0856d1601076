"""Rates out of an engine's counters."""

from __future__ import annotations

import pytest

from scheduling.dispatch.progress import ProgressWatch
from scheduling.engines.client import EngineMetrics


def scrape(watch: ProgressWatch, at_s: float, prompt: float, generated: float) -> None:
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
