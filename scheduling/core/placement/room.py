"""Which replicas have room for a request: a slot, KV cache and prefill credit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduling.core.placement.cache_wait import LEAST_AGAIN, cache_wait
from scheduling.core.placement.cached_prompts import counted_of
from scheduling.core.placement.rule import Warmth, place
from scheduling.core.types import BackendView


def choose_backend(
    backends: Iterable[BackendView],
    kv: int,
    exclude: str,
    prefill: int = 0,
    warmth: Warmth | None = None,
    owner: bool = False,
    adapter: str = "",
    least_again: int = LEAST_AGAIN,
) -> str | None:
    """The replica with room, and the adapter, that the rule of :mod:`scheduling.core.placement.rule` names, or None."""
    able = [b for b in backends if b.id != exclude and b.serves(adapter) and b.takes(kv)]
    chosen = place(with_room(able, kv, prefill, owner, warmth, least_again), warmth)
    return None if chosen is None else chosen.id


def with_room(
    backends: Sequence[BackendView],
    kv: int,
    prefill: int,
    owner: bool,
    warmth: Warmth | None = None,
    least_again: int = LEAST_AGAIN,
    serving: Sequence[BackendView] | None = None,
) -> list[BackendView]:
    """The replicas that have room; what is cached of a prompt need not count against their prefill credit.

    An ``owner`` of reserved capacity goes beside others' prompts, which its own would wait for inside the engine, where
    its prompt is cached (of those ``serving`` it; None: of these), or where none has room without that; there where the
    fewest of their tokens are left."""
    fitting = [b for b in backends if has_room(b, kv, prefill, warmth)]
    if not owner or (fitting and warmth is None):
        return fitting
    beside = [b for b in backends if has_room(b, kv, prefill, warmth, owner)]
    fewest = min((b.prefill_used for b in beside), default=0)
    fitting = fitting or [b for b in beside if b.prefill_used == fewest]
    wait = cache_wait(backends if serving is None else serving, fitting, prefill, warmth, least_again)
    own = [b for b in beside if wait is not None and b.id == wait.replica.id]
    return own or fitting


def has_room(backend: BackendView, kv: int, prefill: int, warmth: Warmth | None, owner: bool = False) -> bool:
    """Whether a replica has room for the prompt; ``warmth``: what replicas have cached of it."""
    return backend.has_slot_and_kv(kv, owner) and has_credit(backend, prefill, warmth, owner)


def has_credit(backend: BackendView, prefill: int, warmth: Warmth | None, owner: bool) -> bool:
    """Whether its prefill credit has room, whatever else it lacks."""
    if backend.has_credit(prefill, owner):
        return True
    if warmth is None or not backend.cache_trust or not backend.has_credit(1, owner):
        return False
    return backend.has_credit(counted_of(backend, prefill, warmth), owner)


def any_with_slot_and_kv(
    backends: Iterable[BackendView], kv: int, exclude: str, adapter: str = "", owner: bool = False
) -> bool:
    """Whether a replica that has the adapter has a slot and KV cache free, whatever its prefill credit."""
    return any(b.id != exclude and b.has_slot_and_kv(kv, owner) and b.serves(adapter) for b in backends)


def any_without_adapter(backends: Iterable[BackendView], kv: int, exclude: str, adapter: str, owner: bool) -> bool:
    """Whether a replica that lacks the adapter has a slot and KV cache free."""
    return any(b.id != exclude and b.has_slot_and_kv(kv, owner) and not b.serves(adapter) for b in backends)
