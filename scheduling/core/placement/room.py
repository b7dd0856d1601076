"""Which replicas have room for a request: a slot, KV cache and prefill credit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scheduling.core.frozen import quickly_made
from scheduling.core.placement.cache_wait import LEAST_AGAIN, cache_wait
from scheduling.core.placement.cached_prompts import counted_of
from scheduling.core.placement.rule import Warmth, place
from scheduling.core.types import BackendView


@quickly_made
@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs of the replica that runs it."""

    kv: int  # KV cache [tokens]
    prefill: int = 0  # prefill credit [prompt tokens]
    owner: bool = False  # it is within reserved capacity: others' prompts and an overcommitted cache are not in its way
    adapter: str = ""  # empty: the base model
    exclude: str = ""  # replica on which it may not run; empty: none
    warmth: Warmth | None = None  # what replicas have cached of its prompt; None: not known
    least_again: int = LEAST_AGAIN  # prompt tokens to compute again that are worth waiting for
    pace_us: int = 0  # most that a replica may take between tokens; 0: none was promised


def choose_backend(backends: Iterable[BackendView], need: Need) -> str | None:
    """The replica with room, and the adapter, that the rule of :mod:`scheduling.core.placement.rule` names, or None."""
    chosen = place(with_room(at_pace(able_to_serve(backends, need), need), need), need.warmth)
    return None if chosen is None else chosen.id


def able_to_serve(backends: Iterable[BackendView], need: Need) -> list[BackendView]:
    """The replicas that could run it, were nothing else there."""
    return [b for b in backends if b.id != need.exclude and b.serves(need.adapter) and b.takes(need.kv)]


def at_pace(able: list[BackendView], need: Need) -> list[BackendView]:
    """Of the replicas that could run it, those that keep the time between tokens it was promised, if one of them has
    room; else all."""
    return keeping if (keeping := keeping_pace(able, need)) and with_room(keeping, need) else able


def keeping_pace(able: list[BackendView], need: Need) -> list[BackendView]:
    """Those that keep that time; all, where there is none to keep."""
    return [b for b in able if b.keeps(need.pace_us)] if need.pace_us else able


def with_room(
    able: Sequence[BackendView], need: Need, serving: Sequence[BackendView] | None = None
) -> list[BackendView]:
    """Of the replicas that may run it, those that have room; what is cached of a prompt need not count against their
    prefill credit.

    An owner of reserved capacity goes beside others' prompts, which its own would wait for inside the engine, where
    its prompt is cached (of those ``serving`` it; None: of these), or where none has room without that; there where the
    fewest of their tokens are left."""
    plain = replace(need, owner=False) if need.owner else need
    fitting = [b for b in able if has_room(b, plain)]
    if not need.owner or (fitting and need.warmth is None):
        return fitting
    beside = [b for b in able if has_room(b, need)]
    fewest = min((b.prefill_used for b in beside), default=0)
    fitting = fitting or [b for b in beside if b.prefill_used == fewest]
    wait = cache_wait(able if serving is None else serving, fitting, need.prefill, need.warmth, need.least_again)
    own = [b for b in beside if wait is not None and b.id == wait.replica.id]
    return own or fitting


def has_room(backend: BackendView, need: Need) -> bool:
    """Whether a replica has a slot, KV cache and prefill credit for it."""
    return backend.has_slot_and_kv(need.kv, need.owner) and has_credit(backend, need)


def has_credit(backend: BackendView, need: Need) -> bool:
    """Whether its prefill credit has room, whatever else it lacks."""
    if backend.has_credit(need.prefill, need.owner):
        return True
    if need.warmth is None or not backend.cache_trust or not backend.has_credit(1, need.owner):
        return False
    return backend.has_credit(counted_of(backend, need.prefill, need.warmth), need.owner)


def any_with_slot_and_kv(backends: Iterable[BackendView], need: Need) -> bool:
    """Whether a replica that has the adapter has a slot and KV cache free, whatever its prefill credit."""
    return any(_has_slot_and_kv(b, need) and b.serves(need.adapter) for b in backends)


def any_without_adapter(backends: Iterable[BackendView], need: Need) -> bool:
    """Whether a replica that lacks the adapter has a slot and KV cache free."""
    return any(_has_slot_and_kv(b, need) and not b.serves(need.adapter) for b in backends)


def _has_slot_and_kv(backend: BackendView, need: Need) -> bool:
    return backend.id != need.exclude and backend.has_slot_and_kv(need.kv, need.owner)
