"""The declaration of a policy's parameter: its meaning, its unit and its range.

A policy's field is declared as ``rate: float = parameter(0.01, "What it does.", "ranks/s", above(0))``. The registry
refuses what is not allowed; REST, the console's form and ``docs/reference/policy-parameters.md`` read the same
declaration, and tuning stays within it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeVar, cast

Value = float | int | str
V = TypeVar("V", bound=float | int | str)

NO_UNIT = "none"
_DECLARED = "parameter"
_TYPES: dict[Any, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers between two bounds; None is no bound on that side."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False

    def fault(self, value: Value) -> str | None:
        """Why a value is not allowed; None where it is, "" where :meth:`__str__` says all."""
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if not isfinite(number):
            return "it is not finite"
        low, high = self.minimum, self.maximum
        below = low is not None and (number <= low if self.exclusive_minimum else number < low)
        beyond = high is not None and (number >= high if self.exclusive_maximum else number > high)
        return "" if below or beyond else None

    def __str__(self) -> str:
        low = "" if self.minimum is None else f"{'above' if self.exclusive_minimum else 'at least'} {self.minimum:g}"
        high = "" if self.maximum is None else f"{'below' if self.exclusive_maximum else 'at most'} {self.maximum:g}"
        return " and ".join(filter(None, (low, high))) or "any number"


@dataclass(frozen=True, slots=True)
class Choices:
    """One of a few values."""

    values: tuple[int | str, ...]

    def fault(self, value: Value) -> str | None:
        return None if value in self.values else ""

    def __str__(self) -> str:
        *others, last = map(str, self.values)
        return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True, slots=True)
class Form:
    """A text that ``read`` can read: it raises ValueError that says what it cannot."""

    says: str
    read: Callable[[str], object]

    def fault(self, value: Value) -> str | None:
        try:
            self.read(str(value))
        except ValueError as error:
            return str(error)
        return None

    def __str__(self) -> str:
        return self.says


Allowed = Range | Choices | Form

ANY_NUMBER = Range()


def above(low: float) -> Range:
    return Range(minimum=low, exclusive_minimum=True)


def at_least(low: float) -> Range:
    return Range(minimum=low)


def one_of(*values: int | str) -> Choices:
    return Choices(values)


@dataclass(frozen=True, slots=True)
class Parameter:
    """``type``: int, float or str, as the policy's field has it."""

    name: str
    type: str
    default: Value
    meaning: str
    unit: str
    allowed: Allowed

    def refusal(self, value: Value) -> str | None:
        """What is wrong with a value from JSON or YAML, and what would be right; None for one that is allowed.

        1 is a fine float; "1" and true are no numbers.
        """
        if isinstance(value, bool) or not isinstance(value, _TYPES[self.type]):
            return f"must be {self.type}, not {value!r}"
        fault = self.allowed.fault(value)
        if fault is None:
            return None
        unit = "" if self.unit == NO_UNIT else f" [{self.unit}]"
        return f"must be {self.allowed}{unit}, not {value!r}{fault and f': {fault}'}"


def parameter(default: V, meaning: str, unit: str, allowed: Allowed) -> V:
    """The field of a policy's dataclass. ``unit`` is as people write it, ``NO_UNIT`` for a plain number or a word."""
    described = {"meaning": meaning, "unit": unit, "allowed": allowed}
    return dataclasses.field(default=default, metadata={_DECLARED: described})


def parameters_of(policy: type[Any]) -> tuple[Parameter, ...]:
    """Those of a policy's class, as it declares them. Raises ValueError for one that is not declared here."""
    found = []
    for field in dataclasses.fields(policy):
        if not field.init:
            continue
        described: dict[str, Any] | None = field.metadata.get(_DECLARED)
        if described is None or field.type not in _TYPES:
            raise ValueError(f"declare {field.name!r} with parameter(), as int, float or str")
        found.append(Parameter(field.name, str(field.type), cast(Value, field.default), **described))
    return tuple(found)
