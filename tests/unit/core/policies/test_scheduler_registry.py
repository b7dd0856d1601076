"""Policies by name: found, made, and refused with a message that helps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scheduling.core.policies import registry
from scheduling.core.policies.parameters import NO_UNIT, above, at_least, one_of, parameter
from scheduling.core.policies.registry import PolicyError, make_ordering, ordering, orderings


@dataclass(frozen=True, slots=True)
class Tunable:
    rate: float = parameter(1.0, "How fast.", "tokens/s", above(0))
    window: int = parameter(5, "How long.", "s", at_least(1))
    mode: str = parameter("soft", "How.", NO_UNIT, one_of("soft", "hard"))

    def __post_init__(self) -> None:
        if self.rate > self.window:
            raise ValueError("rate must be at most window")

    def queue(self) -> None:
        return None


@pytest.fixture
def tunable(monkeypatch: pytest.MonkeyPatch) -> str:
    orderings()  # discovery happens before the copy, so that it is kept
    monkeypatch.setattr(registry, "_ORDERINGS", dict(registry._ORDERINGS))
    ordering("tunable")(Tunable)
    return "tunable"


def test_modules_of_the_package_are_found_without_being_named_anywhere():
    assert {"fifo", "priority"} <= set(orderings())


def test_a_name_can_be_given_only_once(tunable: str):
    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(PolicyError, match="'tunable' is already"):
        ordering("tunable")(Other)


def test_a_policy_must_be_a_dataclass():
    class Plain:
        pass

    with pytest.raises(PolicyError, match="must be a frozen dataclass"):
        ordering("plain")(Plain)


def test_a_parameter_that_says_nothing_of_itself_is_not_registered():
    @dataclass(frozen=True)
    class Silent:
        rate: float = 1.0

    with pytest.raises(PolicyError, match=r"'silent': declare 'rate' with parameter\(\)"):
        ordering("silent")(Silent)


def test_parameters_reach_the_policy_and_whole_numbers_are_floats(tunable: str):
    policy = make_ordering(tunable, {"rate": 2, "mode": "hard"})
    assert policy == Tunable(rate=2.0, window=5, mode="hard")
    assert policy.name == "tunable"


@pytest.mark.parametrize(
    ("name", "params", "message", "param"),
    [
        ("tunabel", {}, "unknown ordering policy 'tunabel', did you mean 'tunable'.*there are: .*fifo", None),
        ("tunable", {"rat": 1}, "has no parameter 'rat', did you mean 'rate'.*rate, window, mode", "rat"),
        ("fifo", {"rate": 1}, "its parameters are: none", "rate"),
        ("tunable", {"window": 1.5}, "'window' of ordering policy 'tunable' must be int, not 1.5", "window"),
        ("tunable", {"rate": True}, "must be float, not True", "rate"),
        ("tunable", {"rate": "2"}, "must be float, not '2'", "rate"),
        ("tunable", {"window": 0}, r"'window' of .*'tunable' must be at least 1 \[s\], not 0$", "window"),
        ("tunable", {"rate": 0}, r"'rate' of .*'tunable' must be above 0 \[tokens/s\], not 0$", "rate"),
        ("tunable", {"rate": float("nan")}, "must be above 0 .*, not nan: it is not finite", "rate"),
        ("tunable", {"rate": 10**400}, "must be above 0 .*: it is not finite", "rate"),
        ("tunable", {"mode": "firm"}, "'mode' of .*'tunable' must be soft or hard, not 'firm'$", "mode"),
        ("tunable", {"rate": 9}, "'tunable': rate must be at most window", None),
    ],
)
def test_a_wrong_name_or_parameter_is_explained(tunable: str, name: str, params: dict, message: str, param: str | None):
    with pytest.raises(PolicyError, match=message) as caught:
        make_ordering(name, params)
    assert caught.value.param == param
