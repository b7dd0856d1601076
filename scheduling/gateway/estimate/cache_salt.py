"""Whose prefix cache is it? Keys and salts that keep one tenant's prompts from being found, or timed, by another.

vLLM computes a prompt's KV once and reuses it for whoever sends the same beginning: who is answered sooner learns that
somebody asked it before. Its ``cache_salt`` goes into the first block's hash, so that only requests with the same salt
share. Ours is a keyed digest of pool and tenant: the same in every gateway and after a restart, nobody's to guess, and
told to the engines only.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

from scheduling.core.types import PrefixCache

_CLIENT = b"client\0"


def tenant_key(secret: bytes, pool: str, tenant: str) -> bytes:
    """What salts of a tenant in a pool are made with. ``secret``: the deployment's. Computed once per catalog."""
    return hmac.digest(secret, b"cache salt\0%b\0%b" % (pool.encode(), tenant.encode()), "sha256")


def tenant_salt(key: bytes, client_salt: str | None = None) -> str:
    """43 characters: the tenant's own, or where the client sent a ``cache_salt``, that one within the tenant's. A
    client's salt divides what its tenant shares; it never reaches another tenant's."""
    salt = b"tenant" if client_salt is None else _CLIENT + client_salt.encode(errors="surrogatepass")
    return urlsafe_b64encode(hmac.digest(key, salt, "sha256")).rstrip(b"=").decode("ascii")


def salt_for(mode: PrefixCache, key: bytes, own: str, client_salt: str | None) -> str | None:
    """What the engine is sent as ``cache_salt``; None: the field is left out. ``own``: ``tenant_salt(key)``."""
    if mode is PrefixCache.UNSALTED:
        return None
    if client_salt is not None:
        return tenant_salt(key, client_salt)
    return own if mode is PrefixCache.ISOLATED else None


def prefix_key(secret: bytes, pool: str, tenant: str, mode: PrefixCache) -> bytes:
    """What prefixes for routing are hashed with: the pool's where its tenants share a cache, else the tenant's."""
    whose = b"pool\0" if mode is PrefixCache.SHARED else b"tenant\0" + tenant.encode()
    return hmac.digest(secret, b"routing prefix\0%b\0%b" % (pool.encode(), whose), "sha256")
