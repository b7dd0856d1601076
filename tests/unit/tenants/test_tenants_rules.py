"""Rules that need no database: key texts, addresses, binding."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db.models import FloatField, Model
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.pool import RESERVING, Amounts
from scheduling.core.types import EntitlementState, ServiceClass
from tenants import keys, validators
from tenants.binding import Claim, judge
from tenants.models import Backend, Entitlement, Pool, Slo, Tier

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def test_a_key_reads_back_as_it_was_made_and_keeps_only_a_digest() -> None:
    made = keys.make()
    assert keys.parse(made.text) == made
    assert made.text.startswith("qm-")
    assert (len(made.public_id), len(made.secret)) == (12, 43)
    assert made.digest == hashlib.sha256(made.secret.encode()).hexdigest()
    assert keys.matches(made, made.digest)
    assert not keys.matches(keys.make(), made.digest)


def test_the_secret_does_not_show_in_logs() -> None:
    made = keys.make()
    assert made.secret not in repr(made)
    assert made.public_id in repr(made)


@pytest.mark.parametrize(
    "text",
    ["", "qm-", "sk-abcdefabcdef." + "x" * 43, "qm-short." + "x" * 43, "qm-abcdefabcdef." + "x" * 42,
     "qm-abcdefabcdef." + "x" * 43 + "\n", "qm-abcdefabcdéf." + "x" * 43, "qm-abcdef abcde." + "x" * 43],
)  # fmt: skip
def test_text_of_another_shape_is_no_key(text: str) -> None:
    assert keys.parse(text) is None


@pytest.mark.parametrize("url", ["http://10.0.0.7:8000", "https://engine.internal", "http://[::1]:8000"])
def test_an_engines_address_is_scheme_host_and_port(url: str) -> None:
    validators.validate_base_url(url)


@pytest.mark.parametrize(
    "url",
    ["10.0.0.7:8000", "ftp://host", "http://", "http://host/", "http://host/v1", "http://host?x=1", "http://host#f",
     "http://user:pw@host", "http://host:99999", "http://host:0", "http://ho st", "http://host\n", "unix:///tmp/s", "http://[::1"],
)  # fmt: skip
def test_anything_more_or_less_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        validators.validate_base_url(url)
    assert "http://10.0.0.7:8000" in refused.value.messages[0] or "API key field" in refused.value.messages[0]


@pytest.mark.parametrize("value", [{"a": True}, {"a": [1]}, {"a": None}, {"a": float("nan")}, [1], "x"])
def test_policy_parameters_are_numbers_or_words(value: object) -> None:
    with pytest.raises(ValidationError):
        validators.validate_policy_params(value)


def _claim(name: str, slots: int, kv_tokens: int = 0, tokens_per_s: float = 0.0, **other: object) -> Claim:
    values = {"service_class": ServiceClass.GUARANTEED, "state": EntitlementState.PENDING} | other
    return Claim(id=name, share=Amounts(slots, kv_tokens, tokens_per_s), **values)  # type: ignore[arg-type]


def _states(room: Amounts, *claims: Claim, live: Amounts | None = None) -> list[str]:
    return [verdict.state.value for verdict in judge(room, live or room, claims, NOW)]


def test_reservations_bind_in_order_until_the_capacity_is_spoken_for() -> None:
    assert _states(Amounts(10, 1000), _claim("a", 6), _claim("b", 5), _claim("c", 4)) == ["bound", "pending", "bound"]


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ([(1, 800, 0.0), (1, 300, 0.0)], "needs 300 KV tokens, the pool has 200 left"),
        ([(1, 0, 800.0), (1, 0, 300.0)], "needs 300 tokens/s, the pool has 200 left"),
        ([(10, 0, 0.0), (1, 0, 0.0)], "needs 1 slot, the pool has 0 left"),
    ],
)
def test_slots_kv_cache_and_throughput_are_reserved(shares: list[tuple[int, int, float]], reason: str) -> None:
    room = Amounts(10, 1000, 1000.0)
    claims = [_claim(str(n), *share) for n, share in enumerate(shares)]
    [_, short] = judge(room, room, claims, NOW)
    assert short.state == EntitlementState.PENDING
    assert reason in short.reason


def test_what_was_bound_is_degraded_not_refused_when_a_backend_leaves() -> None:
    claim = _claim("a", 8, state=EntitlementState.BOUND)
    assert _states(Amounts(4), claim) == ["degraded"]
    assert _states(Amounts(8), _claim("a", 8, state=EntitlementState.DEGRADED)) == ["bound"]


def test_backends_that_do_not_answer_degrade_the_last_promises_first_and_take_none_back() -> None:
    bound = [_claim(name, 4, state=EntitlementState.BOUND) for name in "ab"]
    assert _states(Amounts(8), *bound, live=Amounts(4)) == ["bound", "degraded"]
    [_, verdict] = judge(Amounts(8), Amounts(4), bound, NOW)
    assert verdict.reason == "needs 4 slots, the pool has 0 left to reserve while backends do not answer"
    late = _claim("late", 1)
    assert _states(Amounts(8), *bound, late, live=Amounts(4)) == ["bound", "degraded", "pending"]


def test_surplus_classes_reserve_nothing() -> None:
    for service_class in set(ServiceClass) - RESERVING:
        assert _states(Amounts(), _claim("a", 5, service_class=service_class)) == ["bound"]


def test_dates_decide_before_capacity() -> None:
    hour = timedelta(hours=1)
    room = Amounts(10)
    assert _states(room, _claim("a", 1, valid_from=NOW + hour)) == ["pending"]
    assert _states(room, _claim("a", 1, valid_until=NOW)) == ["expired"]
    assert _states(room, _claim("a", 1, valid_from=NOW, valid_until=NOW + hour)) == ["bound"]


@given(
    st.integers(0, 50),
    st.integers(0, 500),
    st.lists(
        st.tuples(
            st.integers(1, 20), st.integers(0, 200), st.sampled_from(ServiceClass), st.sampled_from(EntitlementState)
        ),
        max_size=12,
    ),
)
def test_never_is_more_reserved_than_there_is(
    slots: int, kv_tokens: int, rows: list[tuple[int, int, ServiceClass, EntitlementState]]
) -> None:
    claims = [Claim(str(n), kind, Amounts(size, kv), state) for n, (size, kv, kind, state) in enumerate(rows)]
    room = Amounts(slots, kv_tokens)
    verdicts = list(judge(room, room, claims, NOW))
    bound = [
        claim
        for claim, verdict in zip(claims, verdicts, strict=True)
        if verdict.state == EntitlementState.BOUND and claim.service_class in RESERVING
    ]
    assert sum(claim.share.slots for claim in bound) <= slots
    assert sum(claim.share.kv_tokens for claim in bound) <= kv_tokens
    assert all((verdict.reason == "") == (verdict.state == EntitlementState.BOUND) for verdict in verdicts)


@pytest.mark.parametrize("model", [Slo, Tier, Pool, Backend, Entitlement])
def test_amounts_of_the_catalog_can_be_added_up(model: type[Model]) -> None:
    """A deadline of 1.7e308 s was taken, and its requests failed: later ones are infinite."""
    amounts = [field for field in model._meta.get_fields() if isinstance(field, FloatField)]
    assert amounts
    for amount in amounts:
        for wrong in (1.7e308, math.inf, math.nan):
            with pytest.raises(ValidationError):
                amount.run_validators(wrong)
