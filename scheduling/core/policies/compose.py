"""A policy with modifiers around it is a policy again.

Modifiers answer questions that every ordering has: whose class comes first, who has had his share, who is too late to
be saved. Each lays itself around the queue of any policy. How far out each stands is its own (``layer``), so that a
composition is a set: the same modifiers mean the same, however they are written.

Declarative form, in a pool's settings and in scenarios: names with parameters, such as
``{"bands": {}, "fair": {"output_weight": 2.0}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.core.policies.contracts import Maker, Modifier, OrderingPolicy, RequestQueue, weighs_bursts
from scheduling.core.policies.registry import Params, PolicyError, make_modifier, make_ordering


@dataclass(frozen=True, slots=True)
class Composed:
    """An ordering policy inside modifiers."""

    name: str
    policy: OrderingPolicy
    modifiers: tuple[Modifier, ...]  # outermost first

    def queue(self) -> RequestQueue:
        make: Maker = self._plain
        for modifier in reversed(self.modifiers):
            make = modifier.around(make)
        return make("")

    @property
    def weighs_bursts(self) -> bool:
        """Whether any part does."""
        return any(weighs_bursts(part) for part in (self.policy, *self.modifiers))

    def _plain(self, group: str) -> RequestQueue:
        return self.policy.queue()


def compose(policy: OrderingPolicy, modifiers: Mapping[str, Params]) -> OrderingPolicy:
    """The policy with these modifiers around it; itself where there are none.

    Raises ``PolicyError`` that says what was wrong and what would be right.
    """
    layers = sorted((_modifier(name, params) for name, params in _by_name(modifiers)), key=lambda each: each.layer)
    if not layers:
        return policy
    return Composed("+".join([*(each.name for each in layers), policy.name]), policy, tuple(layers))


def make_policy(
    name: str, params: Params | None = None, modifiers: Mapping[str, Params] | None = None
) -> OrderingPolicy:
    """The policy of that name with those parameters and modifiers. Raises ``PolicyError``."""
    return compose(make_ordering(name, params), modifiers or {})


def make_named(name: str, params: Params | None = None) -> OrderingPolicy:
    """The policy that a composition's name says, such as ``bands+fair+edf``: its modifiers have their defaults, the
    parameters are the policy's. Raises ``PolicyError``."""
    *around, policy = name.split("+")
    return make_policy(policy, params, {modifier: {} for modifier in around})


def _by_name(modifiers: Mapping[str, Params]) -> list[tuple[str, Params]]:
    if not isinstance(modifiers, Mapping):
        raise PolicyError(f'write modifiers by name with parameters, such as {{"bands": {{}}}}, not {modifiers!r}')
    return list(modifiers.items())


def _modifier(name: str, params: Params) -> Modifier:
    if not isinstance(params, Mapping):
        raise PolicyError(f"write the parameters of modifier {name!r} by name, {{}} for the defaults, not {params!r}")
    return make_modifier(name, params)
