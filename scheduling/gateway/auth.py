"""Whose key is this? From an ``Authorization`` header to what that key may use.

Keys look like ``qm-<id>.<secret>``. The id finds the entry, the secret is compared as SHA-256 in constant time. A
missing, malformed, unknown, expired or revoked key is always answered alike: nobody learns which ids exist.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from scheduling.core.engine_order import EngineOrder, engine_order
from scheduling.core.types import BackendSpec, Catalog, EntitlementSpec, KeySpec, PoolSpec
from scheduling.gateway.cache_salt import prefix_key, tenant_key, tenant_salt
from scheduling.gateway.headers import Limits

ID_LENGTH = 12
MAX_KEY_CHARS = 128
ARRIVALS = EngineOrder()
_NO_DIGEST = hashlib.sha256(b"no such key").digest()


@dataclass(slots=True)
class Access:
    """A key with everything it leads to, in one catalog."""

    key: KeySpec
    entitlement: EntitlementSpec
    pool: PoolSpec
    limits: Limits
    rename: Callable[[bytes], bytes] | None  # replaces the engine's name of the model in its answers
    salt_key: bytes = b""  # what the tenant's salts for engines' prefix caches are made with
    salt: str = ""  # its own one
    prefix_key: bytes = b""  # what its prompts' prefixes are hashed with, for routing
    order: EngineOrder = ARRIVALS  # of its pool's policy, for engines


class Keyring:
    """All keys and replicas of one catalog, ready for lookups. ``secret``: the deployment's, of tenants' prefixes."""

    __slots__ = ("_by_id", "backends", "next_expiry_s", "version")

    def __init__(self, catalog: Catalog, secret: bytes = b"") -> None:
        self.version = catalog.version
        self._by_id: dict[str, Access] = {}
        self.backends: dict[str, BackendSpec] = {b.id: b for p in catalog.pools.values() for b in p.backends}
        limits: dict[str, Limits] = {}
        prefixes: dict[tuple[str, str], tuple[bytes, str, bytes]] = {}
        ranks: dict[str, set[int]] = {}
        for entitled in catalog.entitlements.values():
            ranks.setdefault(entitled.pool, set()).add(entitled.tier.rank)
        orders = {p.id: engine_order(p, ranks.get(p.id, ())) for p in catalog.pools.values()}
        renames = {p.id: _rename(p) for p in catalog.pools.values()}
        for key in catalog.keys.values():
            entitlement = catalog.entitlements.get(key.entitlement)
            pool = catalog.pools.get(entitlement.pool) if entitlement is not None else None
            if entitlement is None or pool is None:
                continue
            shared = limits.get(entitlement.id)
            if shared is None:
                shared = limits[entitlement.id] = Limits(entitlement, pool.max_model_len)
            whose = pool.id, entitlement.tenant
            if whose not in prefixes:
                salt_key = tenant_key(secret, *whose)
                prefixes[whose] = salt_key, tenant_salt(salt_key), prefix_key(secret, *whose, pool.prefix_cache)
            self._by_id[key.id] = Access(
                key, entitlement, pool, shared, renames[pool.id], *prefixes[whose], orders[pool.id]
            )
        self.next_expiry_s = self.expiry_after(float("-inf"))

    def expiry_after(self, now_s: float) -> float:
        """When the next of its keys expires, ``inf`` when none does. O(keys)."""
        ends = (a.key.expires_s for a in self._by_id.values() if a.key.expires_s is not None)
        return min((end_s for end_s in ends if end_s > now_s), default=float("inf"))

    def without(self, other: Keyring) -> bool:
        """Whether ``other`` has keys that are not here."""
        return not other._by_id.keys() <= self._by_id.keys()

    def holds(self, key_id: str, now_s: float) -> bool:
        """Whether the key is valid, for who has shown its secret before."""
        access = self._by_id.get(key_id)
        return access is not None and (access.key.expires_s is None or access.key.expires_s > now_s)

    def opened(self, key_id: str) -> Access | None:
        """What a key opens, for who acts in the name of somebody that has shown its secret."""
        return self._by_id.get(key_id)

    def find(self, key_id: str, secret: bytes, now_s: float) -> Access | None:
        """The access of a valid key, else None. Takes the same steps whether the id exists or not."""
        access = self._by_id.get(key_id)
        digest = hashlib.sha256(secret).digest()
        if not hmac.compare_digest(digest, access.key.digest if access is not None else _NO_DIGEST):
            return None
        if access is None or (access.key.expires_s is not None and access.key.expires_s <= now_s):
            return None
        return access


def _rename(pool: PoolSpec) -> Callable[[bytes], bytes] | None:
    if pool.upstream_model == pool.model:
        return None
    theirs, ours = msgspec.json.encode(pool.upstream_model), msgspec.json.encode(pool.model)
    # an unescaped quote cannot occur inside a JSON string, so this never touches what the model said
    return partial(re.compile(b'"model": ?' + re.escape(theirs)).sub, b'"model":' + ours.replace(b"\\", b"\\\\"))


def split_key(header: bytes | None) -> tuple[str, bytes] | None:
    """``Bearer qm-<id>.<secret>`` -> (id, secret), or None where it cannot be a key."""
    if header is None or len(header) > MAX_KEY_CHARS or header[:7].lower() != b"bearer ":
        return None
    token = header[7:].strip()
    if token[:3] != b"qm-":
        return None
    key_id, dot, secret = token[3:].partition(b".")
    if not dot or len(key_id) != ID_LENGTH or not key_id.isalnum() or not secret:
        return None
    return key_id.decode("ascii"), secret
