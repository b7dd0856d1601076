"""What every parameter of every policy says of itself, judged over the registry: a new one is tested the day it is
added."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import inf, nan, nextafter
from pathlib import Path
from typing import Any

import pytest

from scheduling.core.policies.parameter_page import page
from scheduling.core.policies.parameters import NO_UNIT, Choices, Form, Parameter, Range, parameters_of
from scheduling.core.policies.registry import (
    PolicyError,
    make_modifier,
    make_ordering,
    make_routing,
    modifiers,
    orderings,
    routings,
)
from scheduling.tuning.space import SPACES, params_of, queues_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policy-parameters.md"
KINDS = ((orderings, make_ordering), (modifiers, make_modifier), (routings, make_routing))
DECLARED = [
    pytest.param(make, name, each, id=f"{name}-{each.name}")
    for registry, make in KINDS
    for name, policy in registry().items()
    for each in parameters_of(policy)
]
every_parameter = pytest.mark.parametrize(("make", "name", "parameter"), DECLARED)
BESIDE = {("hybrid", "alpha_ms"): {"alpha_low_ms": 0.0}, ("hybrid", "alpha_low_ms"): {"alpha_ms": 1e9}}


def _step(parameter: Parameter, value: float, towards: float) -> float:
    """The next value of its type."""
    if parameter.type == "int":
        return int(value) + (1 if towards > value else -1)
    return nextafter(value, towards)


def _inside(parameter: Parameter) -> Iterator[float | int | str]:
    """What is allowed, up to its bounds."""
    allowed = parameter.allowed
    if isinstance(allowed, Choices):
        yield from allowed.values
    elif isinstance(allowed, Range):
        for bound, excluded, inwards in (
            (allowed.minimum, allowed.exclusive_minimum, inf),
            (allowed.maximum, allowed.exclusive_maximum, -inf),
        ):
            if bound is not None:
                yield _step(parameter, bound, inwards) if excluded else _as_typed(parameter, bound)
        if allowed.minimum is None:
            yield _as_typed(parameter, -1e9)
        if allowed.maximum is None:
            yield _as_typed(parameter, 1e9)


def _outside(parameter: Parameter) -> Iterator[Any]:
    """What is not, beginning at its bounds."""
    allowed = parameter.allowed
    if isinstance(allowed, Choices):
        numbers = [value for value in allowed.values if isinstance(value, int)]
        yield from (min(numbers) - 1, max(numbers) + 1) if numbers else ("", "other")
    elif isinstance(allowed, Form):
        yield "\0"
    else:
        for bound, excluded, outwards in (
            (allowed.minimum, allowed.exclusive_minimum, -inf),
            (allowed.maximum, allowed.exclusive_maximum, inf),
        ):
            if bound is not None:
                yield _as_typed(parameter, bound) if excluded else _step(parameter, bound, outwards)
        if parameter.type == "float":
            yield from (nan, inf, -inf, 10**400)


def _as_typed(parameter: Parameter, value: float) -> float:
    return int(value) if parameter.type == "int" else value


@every_parameter
def test_it_says_what_it_means_in_which_unit_and_what_is_allowed(make: Any, name: str, parameter: Parameter):
    assert parameter.meaning[0].isupper()
    assert parameter.meaning.endswith(".")
    assert ". " not in parameter.meaning, "one sentence"
    assert len(parameter.meaning) <= 160
    assert parameter.unit
    assert str(parameter.allowed)
    if isinstance(parameter.allowed, Range):
        assert parameter.type in ("int", "float")
    if isinstance(parameter.allowed, Form):
        assert parameter.type == "str"


@pytest.mark.parametrize(("suffix", "unit"), [("_s", "s"), ("_ms", "ms"), ("_us", "µs"), ("_tokens", "tokens")])
def test_a_name_that_ends_in_a_unit_has_that_unit(suffix: str, unit: str):
    named = [each for _, _, each in (case.values for case in DECLARED) if each.name.endswith(suffix)]
    assert named
    assert all(each.unit == unit or each.unit.startswith(f"{unit}/") for each in named), named


@every_parameter
def test_its_default_is_allowed(make: Any, name: str, parameter: Parameter):
    assert parameter.refusal(parameter.default) is None
    make(name, {parameter.name: parameter.default})


@every_parameter
def test_what_lies_within_its_range_up_to_the_bounds_makes_a_policy(make: Any, name: str, parameter: Parameter):
    """So no policy has a second, narrower bound of its own."""
    for value in _inside(parameter):
        made = make(name, {parameter.name: value, **BESIDE.get((name, parameter.name), {})})
        assert getattr(made, parameter.name) == value


@every_parameter
def test_what_lies_just_outside_is_refused_with_the_parameter_the_value_and_what_is_allowed(
    make: Any, name: str, parameter: Parameter
):
    for value in _outside(parameter):
        with pytest.raises(PolicyError) as caught:
            make(name, {parameter.name: value})
        said = str(caught.value)
        unit = "" if parameter.unit == NO_UNIT else f" [{parameter.unit}]"
        assert f"{parameter.name!r}" in said
        assert f"{name!r} must be {parameter.allowed}{unit}, not {value!r}" in said
        assert caught.value.param == parameter.name


def test_what_is_allowed_reads_well():
    assert [str(each) for each in (Range(0), Range(0, exclusive_minimum=True), Range(0, 1), Range())] == [
        "at least 0", "above 0", "at least 0 and at most 1", "any number",
    ]  # fmt: skip
    assert [str(Choices(values)) for values in ((0,), (0, 1), ("a", "b", "c"))] == ["0", "0 or 1", "a, b or c"]


def test_the_page_of_parameters_is_what_the_policies_declare():
    assert PAGE.read_text() == page(), (
        "run: python -m scheduling.core.policies.parameter_page > docs/reference/policy-parameters.md"
    )


@pytest.mark.parametrize("policy", sorted(SPACES))
def test_tuning_stays_within_what_the_policy_allows(policy: str):
    """At each corner of its space; a knob that is a parameter has the default that the policy has."""
    space = SPACES[policy]
    known = {each.name: each for each in parameters_of(orderings()[policy])}
    for knob in space:
        if knob.name in known:
            assert known[knob.name].refusal(knob.low if not knob.whole else int(knob.low)) is None
            assert known[knob.name].refusal(knob.high if not knob.whole else int(knob.high)) is None
            assert knob.default == known[knob.name].default
    for corner in itertools.product(*((knob.low, knob.high) for knob in space)):
        values = {knob.name: value for knob, value in zip(space, corner, strict=True)}
        make_ordering(policy, params_of(values, queues_of(values, [10, 200, 3000])))
