"""Whose key is this? From an ``Authorization`` header to what that key may use.

Keys look like ``qm-<id>.<secret>``. The id finds the entry, the secret is compared as SHA-256 in constant time. A
missing, malformed, unknown, expired or revoked key is always answered alike: nobody learns which ids exist.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec

from scheduling.core.inside_engine.order import EngineOrder, engine_order
from scheduling.core.outcomes import Reason
from scheduling.core.types import (
    AdapterSpec,
    BackendSpec,
    Catalog,
    EntitlementSpec,
    EntitlementState,
    KeySpec,
    PoolSpec,
    RateLimits,
)
from scheduling.engines.kinds import kind_of
from scheduling.gateway.estimate.cache_salt import prefix_key, tenant_key, tenant_salt
from scheduling.gateway.headers import Limits

ID_LENGTH = 12
MAX_KEY_CHARS = 128
ARRIVALS = EngineOrder()
_KEY = re.compile(rb"(?i:bearer) \s*qm-([0-9A-Za-z]{%d})\.(\S(?:.*\S)?)\s*" % ID_LENGTH, re.DOTALL).fullmatch
_NO_DIGEST = hashlib.sha256(b"no such key").digest()


# What a fallback's case means at a request's end: see ``scheduling.core.types.FallbackSpec``.
CASES: Mapping[str, frozenset[Reason]] = {
    "unavailable": frozenset({Reason.NO_BACKEND, Reason.NO_ADAPTER}),
    "no_room": frozenset({Reason.LOW_PRIORITY, Reason.QUEUE_FULL}),
    "over_limit": frozenset({Reason.CONCURRENCY, Reason.TOKEN_BUDGET, Reason.KV_BUDGET}),
    "too_long": frozenset({Reason.TOO_LONG}),
}
_USABLE = frozenset({EntitlementState.BOUND, EntitlementState.DEGRADED})


class OpensNothing(Exception):
    """The key is valid, and its project may use no entitlement."""


@dataclass(slots=True)
class Access:
    """A key and one entitlement that it opens, with everything that belongs to it, in one catalog."""

    key: KeySpec
    entitlement: EntitlementSpec
    pool: PoolSpec
    limits: Limits
    rename: Callable[[bytes], bytes] | None  # replaces the engine's name of the model in its answers
    salt_key: bytes = b""  # what the tenant's salts for engines' prefix caches are made with
    salt: str = ""  # its own one
    prefix_key: bytes = b""  # what its prompts' prefixes are hashed with, for routing
    order: EngineOrder = ARRIVALS  # of its pool's policy, for engines
    reach: Reach | None = None  # what else the key opens; None: nothing
    user_limits: RateLimits | None = None  # of each user of its project

    def at(self, model: str) -> Access | None:
        """What the key opens under this name; empty: the project's default. None: nothing."""
        reach = self.reach
        if reach is None:
            return self if model == self.pool.model or model in self.pool.aliases else None
        entitlement = reach.names.get(model) if model else reach.default
        if entitlement is None or entitlement == self.entitlement.id:
            return None if entitlement is None else self
        return reach.access(self.key, entitlement)

    def instead(self, reason: Reason) -> Access | None:
        """What takes its requests when they are refused with ``reason``; None: nothing does."""
        rule = self.reach.fallbacks.get(self.entitlement.id) if self.reach is not None else None
        if self.reach is None or rule is None or reason not in rule[1]:
            return None
        return self.reach.access(self.key, rule[0])

    @property
    def supersedes(self) -> bool:
        """Whether a request that finds its entitlement full may take the place of a late one of it: not where another
        entitlement would take it."""
        rule = self.reach.fallbacks.get(self.entitlement.id) if self.reach is not None else None
        return rule is None or rule[1].isdisjoint((Reason.CONCURRENCY, Reason.QUEUE_FULL))

    @property
    def one_model(self) -> bool:
        """Whether every request of the key is for this entitlement, whatever it says."""
        return self.reach is None or self.reach.single

    @property
    def door(self) -> str:
        """Names the key at this entitlement."""
        return self.key.id if self.one_model else f"{self.key.id}:{self.entitlement.id}"

    def cards(self) -> dict[str, Card]:
        """The names of models that it opens, with what there is to say of each."""
        if self.reach is None:
            return dict.fromkeys((self.pool.model, *self.pool.aliases), _card(self.pool))
        return self.reach.cards


class Card(NamedTuple):
    """What a list of models says of one."""

    max_model_len: int
    parent: str | None  # of an adapter: the name of the model that it adapts


@dataclass(slots=True)
class Reach:
    """What keys of the same right open. Shared by all of them."""

    names: dict[str, str]  # of models and aliases, to entitlements
    cards: dict[str, Card]  # of the names
    default: str | None  # the entitlement of requests that name no model; None: they must
    fallbacks: dict[str, tuple[str, frozenset[Reason]]]  # by entitlement, which one instead and after which refusals
    first: str  # the entitlement that stands for the key where no model was named yet
    single: bool  # there is only one
    access: Callable[[KeySpec, str], Access]


class Keyring:
    """All keys and replicas of one catalog. What a key opens is put together when it is used first.

    ``secret``: the deployment's, of tenants' prefixes.
    """

    __slots__ = (
        "_accesses", "_catalog", "_limits", "_orders", "_pools", "_prefixes", "_reaches", "_renames", "_secret",
        "backends", "next_expiry_s", "version",
    )  # fmt: skip

    def __init__(self, catalog: Catalog, secret: bytes = b"") -> None:
        self.version = catalog.version
        self._catalog, self._secret = catalog, secret
        self.backends: dict[str, BackendSpec] = {b.id: b for p in catalog.pools.values() for b in p.backends}
        self._accesses: dict[tuple[str, str], Access] = {}
        self._reaches: dict[tuple[str, tuple[str, ...]], Reach | None] = {}
        self._limits: dict[str, Limits] = {}
        self._prefixes: dict[tuple[str, str], tuple[bytes, str, bytes]] = {}
        ranks: dict[str, set[int]] = {}
        for entitled in catalog.entitlements.values():
            ranks.setdefault(entitled.pool, set()).add(entitled.tier.rank)
        self._orders = {p.id: engine_order(p, ranks.get(p.id, ())) for p in catalog.pools.values()}
        self._pools = {(p.id, ""): p for p in catalog.pools.values()}
        for pool in catalog.pools.values():
            self._pools |= {(pool.id, adapter.id): adapted(pool, adapter) for adapter in pool.adapters}
        self._renames = {whose: _rename(p) for whose, p in self._pools.items()}
        self.next_expiry_s = self.expiry_after(float("-inf"))

    def expiry_after(self, now_s: float) -> float:
        """When the next of its keys expires, ``inf`` when none does. O(keys)."""
        ends = (key.expires_s for key in self._catalog.keys.values() if key.expires_s is not None)
        return min((end_s for end_s in ends if end_s > now_s), default=float("inf"))

    def without(self, other: Keyring) -> bool:
        """Whether ``other`` has keys that are not here."""
        return not other._catalog.keys.keys() <= self._catalog.keys.keys()

    def holds(self, key_id: str, now_s: float) -> bool:
        """Whether the key is still valid. Its secret was checked before."""
        key = self._catalog.keys.get(key_id)
        if key is None or (key.expires_s is not None and key.expires_s <= now_s):
            return False
        return self._reach(key) is not None or not key.entitlement

    def opened(self, key_id: str) -> Access | None:
        """What a key opens, for a caller that acts for the key's owner and has shown its secret."""
        key = self._catalog.keys.get(key_id)
        reach = None if key is None else self._reach(key)
        return None if key is None or reach is None else self._access(key, reach.first)

    def find(self, key_id: str, secret: bytes, now_s: float) -> Access | None:
        """The access of a valid key, at the entitlement that stands for it, else None. Takes the same steps whether
        the id exists or not.

        Raises:
            OpensNothing: the key is valid, and its project has nothing yet.
        """
        key = self._catalog.keys.get(key_id)
        digest = hashlib.sha256(secret).digest()
        if not hmac.compare_digest(digest, key.digest if key is not None else _NO_DIGEST):
            return None
        if key is None or (key.expires_s is not None and key.expires_s <= now_s):
            return None
        reach = self._reach(key)
        if reach is not None:
            return self._access(key, reach.first)
        if key.entitlement:
            return None
        raise OpensNothing

    def _reach(self, key: KeySpec) -> Reach | None:
        """What the key opens; None: nothing."""
        whose = (key.project, key.subset) if key.project else ("", (key.entitlement,))
        if whose not in self._reaches:
            self._reaches[whose] = self._make_reach(key)
        return self._reaches[whose]

    def _make_reach(self, key: KeySpec) -> Reach | None:
        catalog = self._catalog
        project = catalog.projects.get(key.project)
        open_to = (key.entitlement,) if project is None else project.entitlements
        specs = [e for name in open_to if (e := catalog.entitlements.get(name)) and _served(e) in self._pools]
        if project is not None and key.subset:
            specs = [e for e in specs if e.id in key.subset]
        if not specs:
            return None
        specs.sort(key=lambda e: e.state not in _USABLE)  # of two for one model, one that may be used
        names: dict[str, str] = {}
        for spec in specs:
            names.setdefault(self._pools[_served(spec)].model, spec.id)
        for spec in specs:
            for alias in self._pools[_served(spec)].aliases:
                names.setdefault(alias, spec.id)
        targets = names | {spec.id: spec.id for spec in specs}
        default, fallbacks = None, {}
        if project is not None:
            aliases = {alias: targets[to] for alias, to in project.aliases.items() if to in targets}
            names |= aliases
            targets |= aliases
            default = targets.get(project.default_model)
            for name, rule in project.fallbacks.items():
                if name in targets and rule.to in targets and targets[name] != targets[rule.to]:
                    reasons = frozenset().union(*(CASES[case] for case in rule.when if case in CASES))
                    fallbacks[targets[name]] = (targets[rule.to], reasons)
        cards = {e.id: _card(self._pools[_served(e)]) for e in specs}
        return Reach(
            names,
            {name: cards[entitlement] for name, entitlement in names.items()},
            default,
            fallbacks,
            default or specs[0].id,
            project is None,
            self._access,
        )

    def _access(self, key: KeySpec, entitlement_id: str) -> Access:
        cached = self._accesses.get((key.id, entitlement_id))
        if cached is not None:
            return cached
        entitlement = self._catalog.entitlements[entitlement_id]
        pool = self._pools[_served(entitlement)]
        limits = self._limits.get(entitlement_id)
        if limits is None:
            limits = self._limits[entitlement_id] = Limits(entitlement, pool.max_model_len)
        whose = pool.id, entitlement.tenant
        if whose not in self._prefixes:
            salt_key = tenant_key(self._secret, *whose)
            hashed = prefix_key(self._secret, *whose, pool.prefix_cache)
            self._prefixes[whose] = salt_key, tenant_salt(salt_key), hashed
        access = self._accesses[key.id, entitlement_id] = Access(
            key, entitlement, pool, limits, self._renames[_served(entitlement)], *self._prefixes[whose],
            self._orders[pool.id], self._reach(key),
            project.user_limits if (project := self._catalog.projects.get(key.project)) else None,
        )  # fmt: skip
        return access


def adapted(pool: PoolSpec, adapter: AdapterSpec) -> PoolSpec:
    """The pool under an adapter's name: another model of the same capacity, which is why it has the pool's id."""
    try:
        form = kind_of(pool.engine).adapter_model
    except LookupError:  # of a newer release; the pool itself cannot be served either
        form = "{adapter}"
    name = form.format(model=pool.upstream_model, adapter=adapter.name)
    return replace(pool, model=adapter.model, upstream_model=name, aliases=(), adapter=adapter.name, base=pool)


def _served(entitlement: EntitlementSpec) -> tuple[str, str]:
    return entitlement.pool, entitlement.adapter


def _card(pool: PoolSpec) -> Card:
    return Card(pool.max_model_len, None if pool.base is None else pool.base.model)


def _rename(pool: PoolSpec) -> Callable[[bytes], bytes] | None:
    if pool.upstream_model == pool.model:
        return None
    theirs, ours = msgspec.json.encode(pool.upstream_model), msgspec.json.encode(pool.model)
    # an unescaped quote cannot occur inside a JSON string, so this never touches what the model said
    return partial(re.compile(b'"model": ?' + re.escape(theirs)).sub, b'"model":' + ours.replace(b"\\", b"\\\\"))


def split_key(header: bytes | None) -> tuple[str, bytes] | None:
    """``Bearer qm-<id>.<secret>`` -> (id, secret), or None where it cannot be a key."""
    if header is None or len(header) > MAX_KEY_CHARS:
        return None
    found = _KEY(header)
    return None if found is None else (found[1].decode("ascii"), found[2])
