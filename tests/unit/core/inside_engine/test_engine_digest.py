"""What a gateway tells an engine's scheduler: it comes out as it went in, and nothing else is believed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.estimate.distribution import distribution
from scheduling.core.inside_engine.digest import MAX_CHARS, POINTS, condensed, decode, encode, plain
from scheduling.core.policies.order.gittins import Gittins
from scheduling.core.types import QueuedRequest, ServiceClass, Slo

lengths = st.lists(st.integers(1, 50_000), min_size=1, max_size=200, unique=True).map(sorted)


def queued(**given: object) -> QueuedRequest:
    values: dict[str, object] = {
        "id": "r", "seq": 1, "arrival_s": 50.0, "entitlement": "acme-chat", "tenant": "acme", "tier": "premium",
        "rank": 1, "weight": 3.0, "service_class": ServiceClass.ELASTIC, "input_tokens": 100, "output_bound": 400,
        "output_tokens": 120.0, "kv_tokens": 500,
    }  # fmt: skip
    return QueuedRequest(**values | given)  # type: ignore[arg-type]


def test_it_comes_out_as_it_went_in_on_the_clock_of_the_engine() -> None:
    sent = queued(ttft_deadline_s=52.0, output_lengths=(10.0, 200.0), output_probabilities=(0.25, 0.75))
    text = encode(sent, Slo(ttft_s=2.0, tbt_s=0.05), now_s=50.5)
    got, pace = decode(text, "x", 7, 9000.0, 111, 300)
    assert got.ttft_deadline_s == pytest.approx(9001.5), "what was left of it, whatever the engine's clock says"
    assert got.ttlt_deadline_s is None
    assert pace == 0.05
    assert (got.id, got.seq, got.arrival_s, got.input_tokens, got.output_bound) == ("x", 7, 9000.0, 111, 300)
    assert (got.rank, got.weight, got.service_class, got.output_tokens) == (1, 3.0, ServiceClass.ELASTIC, 120.0)
    assert (got.output_lengths, got.output_probabilities) == ((10.0, 200.0), (0.25, 0.75))


def test_entitlements_are_told_apart_and_no_name_is_sent() -> None:
    one, other = (encode(queued(entitlement=name), Slo(), 50.0) for name in ("acme-chat", "acme-batch"))
    assert one != other
    assert not any(name in one for name in ("acme", "chat", "premium"))


def test_a_deadline_that_has_passed_is_passed_for_the_engine_too() -> None:
    text = encode(queued(ttlt_deadline_s=40.0), Slo(ttlt_s=5.0), 50.0)
    assert decode(text, "x", 1, 100.0, 1, 1)[0].ttlt_deadline_s == pytest.approx(90.0)


@given(lengths, st.data())
def test_a_long_distribution_is_condensed_to_one_of_the_same_mean(values: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 1), min_size=len(values), max_size=len(values)))
    probabilities = [weight / sum(weights) for weight in weights]
    points = condensed([float(value) for value in values], probabilities)
    assert len(points) <= POINTS
    assert sum(probability for _, probability in points) == pytest.approx(1)
    mean = sum(value * probability for value, probability in zip(values, probabilities, strict=True))
    assert sum(length * probability for length, probability in points) == pytest.approx(mean)
    assert [length for length, _ in points] == sorted({length for length, _ in points})
    sent = queued(output_lengths=tuple(map(float, values)), output_probabilities=tuple(probabilities))
    text = encode(sent, Slo(ttft_s=1.0, tbt_s=0.1), 50.0)
    assert len(text) <= MAX_CHARS
    got, _ = decode(text, "x", 1, 0.0, 100, 400)
    assert sum(got.output_probabilities) == pytest.approx(1)
    Gittins().key(got)  # what comes out can be ranked


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["1", "0", "-", "nan", "inf", "5:0.5", "1e300", "-3"])).map(" ".join)
)
def test_what_is_no_digest_is_refused_or_read_and_can_be_ranked(text: str) -> None:
    try:
        got, pace = decode(text, "x", 1, 0.0, 100, 400)
    except ValueError:
        return
    assert pace is None or pace > 0
    Gittins().key(got)


def test_a_request_without_a_digest_promises_nothing() -> None:
    got = plain("x", 1, 5.0, 100, 400, -3)
    assert (got.rank, got.ttft_deadline_s, got.ttlt_deadline_s, got.output_tokens) == (-3, None, None, 400.0)


def test_lengths_that_are_written_alike_are_one() -> None:
    sent = queued(output_lengths=(3.9089996, 3.909, 50.0), output_probabilities=(0.2, 0.3, 0.5))
    got, _ = decode(encode(sent, Slo(), 50.0), "x", 1, 0.0, 100, 400)
    assert (got.output_lengths, got.output_probabilities) == ((3.909, 50.0), (0.5, 0.5))


def test_what_similar_prompts_say_of_answers_with_few_lengths_can_be_read() -> None:
    """Sums of weights give a length twice, apart by their rounding."""
    draw = random.Random(1)
    alike = 0
    for _ in range(300):
        samples = [(float(draw.choice((20, 23, 41, 50))), draw.random() < 0.5, draw.random()) for _ in range(40)]
        prediction = distribution(samples, "similar", 1.0).truncated(41)
        alike += any(0 < b - a < 1e-6 for a, b in pairwise(prediction.lengths))
        request = replace(plain("a", 1, 0.0, 5, 41, 0), output_lengths=prediction.lengths,
                          output_probabilities=prediction.probabilities)  # fmt: skip
        read, _ = decode(encode(request, Slo(), 0.0), "a", 1, 0.0, 5, 41)
        assert sum(read.output_probabilities) == pytest.approx(1.0)
    assert alike, "no such pair was met"
