"""Names of policies, and how one is made from its name and parameters.

A policy is one file: a frozen dataclass whose fields are its parameters (:mod:`scheduling.core.policies.parameters`),
under ``@ordering("name")`` in ``scheduling/core/policies/order/``, ``@routing("name")`` in
``scheduling/core/policies/routing.py`` or ``@modifier("name")`` in ``scheduling/core/policies/queues/``. Nothing else
has to be edited: modules of the package are imported on the first look-up, and tests and documentation walk this
registry. What a parameter may be is checked here and nowhere else; a policy itself checks only what concerns several of
its parameters at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from scheduling.core.policies.contracts import Modifier, OrderingPolicy, RoutingPolicy
from scheduling.core.policies.parameters import Parameter, parameters_of

Params = Mapping[str, float | int | str]
C = TypeVar("C", bound=type[Any])

_ORDERINGS: dict[str, type[Any]] = {}
_ROUTINGS: dict[str, type[Any]] = {}
_MODIFIERS: dict[str, type[Any]] = {}
_discovered: set[str] = set()


class PolicyError(ValueError):
    """A policy name or parameter that does not exist or is out of range. ``param`` is None when the name is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def ordering(name: str) -> Callable[[C], C]:
    """Class decorator: registers an ordering policy. Raises ``PolicyError`` when the name is taken."""
    return _register("ordering policy", name, _ORDERINGS)


def routing(name: str) -> Callable[[C], C]:
    """Class decorator: registers a routing policy. Raises ``PolicyError`` when the name is taken."""
    return _register("routing policy", name, _ROUTINGS)


def modifier(name: str) -> Callable[[C], C]:
    """Class decorator: registers a modifier of ordering policies. Raises ``PolicyError`` when the name is taken."""
    return _register("modifier", name, _MODIFIERS)


def orderings() -> Mapping[str, type[Any]]:
    """All ordering policies by name, sorted."""
    _discover("scheduling.core.policies.order")
    return dict(sorted(_ORDERINGS.items()))


def routings() -> Mapping[str, type[Any]]:
    """All routing policies by name, sorted."""
    _discover("scheduling.core.policies.routing")
    return dict(sorted(_ROUTINGS.items()))


def modifiers() -> Mapping[str, type[Any]]:
    """All modifiers by name, outermost first: the order in which they are laid around a policy."""
    _discover("scheduling.core.policies.queues")
    return dict(sorted(_MODIFIERS.items(), key=lambda item: (item[1].layer, item[0])))


def make_ordering(name: str, params: Params | None = None) -> OrderingPolicy:
    """The ordering policy of that name with those parameters; missing ones take the policy's defaults.

    Raises ``PolicyError`` that says what was wrong and what would be right.
    """
    return cast(OrderingPolicy, _make("ordering policy", orderings(), name, params or {}))


def make_routing(name: str, params: Params | None = None) -> RoutingPolicy:
    """As :func:`make_ordering`, for routing."""
    return cast(RoutingPolicy, _make("routing policy", routings(), name, params or {}))


def make_modifier(name: str, params: Params | None = None) -> Modifier:
    """As :func:`make_ordering`, for modifiers."""
    return cast(Modifier, _make("modifier", modifiers(), name, params or {}))


def _register(kind: str, name: str, table: dict[str, type[Any]]) -> Callable[[C], C]:
    def decorate(cls: C) -> C:
        taken = table.get(name)
        # The same class may come twice: ``dataclass(slots=True)`` replaces it and a module can be reloaded.
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise PolicyError(f"{kind} {name!r} is already {taken.__module__}.{taken.__qualname__}")
        if not dataclasses.is_dataclass(cls):
            raise PolicyError(f"{kind} {name!r} must be a frozen dataclass: its fields are its parameters")
        try:
            parameters_of(cls)
        except ValueError as error:
            raise PolicyError(f"{kind} {name!r}: {error}") from error
        cls.name = name  # type: ignore[attr-defined]  # a class attribute, so that it is no parameter
        table[name] = cls
        return cls

    return decorate


def _discover(package: str) -> None:
    if package in _discovered:
        return
    module = importlib.import_module(package)
    for submodule in pkgutil.iter_modules(getattr(module, "__path__", [])):
        importlib.import_module(f"{package}.{submodule.name}")
    _discovered.add(package)


def _make(kind: str, table: Mapping[str, type[Any]], name: str, params: Params) -> object:
    cls = table.get(name)
    if cls is None:
        raise PolicyError(f"unknown {kind} {name!r}{_hint(name, table)}; there are: {', '.join(table)}")
    known = {each.name: each for each in parameters_of(cls)}
    values: dict[str, float | int | str] = {}
    for key, value in params.items():
        if key not in known:
            accepted = ", ".join(known) or "none"
            raise PolicyError(
                f"{kind} {name!r} has no parameter {key!r}{_hint(key, known)}; its parameters are: {accepted}", key
            )
        values[key] = _read(f"{kind} {name!r}", known[key], value)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{kind} {name!r}: {error}") from error


def _read(owner: str, parameter: Parameter, value: float | int | str) -> float | int | str:
    wrong = parameter.refusal(value)
    if wrong is not None:
        raise PolicyError(f"parameter {parameter.name!r} of {owner} {wrong}", parameter.name)
    return float(value) if parameter.type == "float" else value


def _hint(name: str, names: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
