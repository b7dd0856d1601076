"""A tenant's tokens of the day: what the leaders say, what ended here since, and what is open here."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import Catalog, QuotaSpec
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.errors import Refusal, render
from scheduling.state.resp import RespConnection
from scheduling.state.usage import PoolUsage, decode_usage, encode_usage, period_bounds_s
from tests.support.telemetry_world import record

NOW = datetime(2026, 11, 21, 22, 0, tzinfo=UTC).timestamp()
HARD = (QuotaSpec("day", None, 1000),)


def _quotas(limits: tuple[QuotaSpec, ...] = HARD) -> Quotas:
    quotas = Quotas(RespConnection("redis://127.0.0.1:1/0", name="unused"))
    quotas.configure(Catalog(1, {}, {}, {}, {"acme": limits}))
    return quotas


def _told(tokens: int, as_of_s: float = NOW - 5, day: str = "2026-11-21") -> dict[str, PoolUsage]:
    return {"llama": PoolUsage(as_of_s, day, day[:7], {"acme": (tokens, tokens * 3)})}


def _ended(number: int, tokens: int, done_s: float, **changes):  # type: ignore[no-untyped-def]
    return replace(
        record(number), tenant="acme", pool="llama", input_tokens=tokens, output_tokens=0, received_s=done_s - 1,
        done_s=done_s, outcome="completed", **changes,
    )  # fmt: skip


def test_a_reached_hard_limit_refuses_until_the_day_ends() -> None:
    quotas = _quotas()
    quotas.take(_told(999), NOW)
    quotas.begin("acme", "k1", "a", 0, NOW)
    quotas.take(_told(1000), NOW)
    with pytest.raises(Refusal) as caught:
        quotas.begin("acme", "k1", "b", 10, NOW)
    answer = render(caught.value)
    headers = dict(answer.headers)
    assert answer.status == 429
    assert headers[b"x-quartermaster-reason"] == b"quota_exceeded"
    assert headers[b"x-should-retry"] == b"false"
    assert 7200 <= int(headers[b"retry-after"]) <= 7200 + 61
    assert b"1000 tokens a day" in answer.body
    assert b"in 2h0m0s" in answer.body


def test_a_soft_limit_refuses_nobody_and_other_tenants_are_not_asked() -> None:
    quotas = _quotas((QuotaSpec("day", 10, None),))
    quotas.take(_told(5000), NOW)
    quotas.begin("acme", "k1", "a", 10, NOW)
    _quotas().begin("globex", "k2", "b", 10**9, NOW)


def test_what_ended_here_counts_until_the_leader_knows_it_and_never_twice() -> None:
    quotas = _quotas()
    quotas.take(_told(300), NOW)
    quotas.end(_ended(1, 200, NOW))
    assert quotas.used("acme", "day", NOW) == 500
    quotas.take(_told(300), NOW + 1)
    assert quotas.used("acme", "day", NOW + 1) == 500
    quotas.take(_told(500, as_of_s=NOW + 0.2), NOW + 2)
    assert quotas.used("acme", "day", NOW + 2) == 500


def test_open_requests_count_at_their_estimate_until_they_end() -> None:
    quotas = _quotas()
    first = _ended(1, 100, NOW)
    quotas.begin("acme", "k1", first.request_id, 700, NOW)
    assert quotas.used("acme", "day", NOW) == 700
    quotas.end(first)
    assert quotas.used("acme", "day", NOW) == 100


def test_refused_requests_cost_nothing() -> None:
    quotas = _quotas()
    quotas.end(replace(_ended(1, 100, NOW), outcome="refused", reason=Reason.LOW_PRIORITY.value))
    assert quotas.used("acme", "day", NOW) == 0


def test_a_new_day_begins_at_nothing_and_the_month_goes_on() -> None:
    quotas = _quotas((QuotaSpec("day", None, 1000), QuotaSpec("month", None, 9000)))
    quotas.take(_told(1000), NOW)
    tomorrow = NOW + 3 * 3600
    assert quotas.used("acme", "day", tomorrow) == 0
    assert quotas.used("acme", "month", tomorrow) == 3000
    quotas.begin("acme", "k1", "a", 0, tomorrow)


@pytest.mark.parametrize(
    ("at", "period", "ends"),
    [
        ("2026-12-31T23:59:59", "day", "2027-01-01"),
        ("2026-12-31T23:59:59", "month", "2027-01-01"),
        ("2028-02-29T12:00:00", "month", "2028-03-01"),
    ],
)
def test_periods_end_at_midnight_utc(at: str, period: str, ends: str) -> None:
    _, end_s = period_bounds_s(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp(), period)
    assert end_s == datetime.fromisoformat(ends).replace(tzinfo=UTC).timestamp()


def test_figures_survive_the_wire_and_foreign_ones_are_ignored() -> None:
    usage = _told(5)["llama"]
    assert decode_usage(encode_usage(usage)) == usage
    assert decode_usage(b'{"other": 1}') is None
