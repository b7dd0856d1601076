"""Salts of engines' prefix caches: a tenant's own, within it a client's, and nobody else's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.types import PrefixCache
from scheduling.gateway.estimate.cache_salt import salt_for, tenant_key, tenant_salt

SECRET = b"of this deployment"


def test_tenants_pools_and_deployments_differ() -> None:
    keys = [
        tenant_key(secret, pool, tenant)
        for secret in (SECRET, b"another")
        for pool in ("llama", "qwen")
        for tenant in ("acme", "globex")
    ]
    assert len({tenant_salt(key) for key in keys}) == len(keys)
    assert tenant_key(SECRET, "llama", "acme") == keys[0], "the same whenever and wherever it is made"


@given(client=st.text(min_size=1, max_size=256))
def test_no_salt_of_a_client_is_another_tenants_or_the_tenants_own(client: str) -> None:
    acme, globex = tenant_key(SECRET, "llama", "acme"), tenant_key(SECRET, "llama", "globex")
    found = tenant_salt(globex, client)
    assert found not in {tenant_salt(acme), tenant_salt(globex), tenant_salt(acme, client), client}
    assert len(found) == 43
    assert found.isascii()


@pytest.mark.parametrize(
    ("mode", "plain", "own"),
    [(PrefixCache.ISOLATED, True, True), (PrefixCache.SHARED, False, True), (PrefixCache.UNSALTED, False, False)],
)
def test_what_is_sent_is_the_pools_choice(mode: PrefixCache, plain: bool, own: bool) -> None:
    key = tenant_key(SECRET, "llama", "acme")
    assert salt_for(mode, key, tenant_salt(key), None) == (tenant_salt(key) if plain else None)
    assert salt_for(mode, key, tenant_salt(key), "mine") == (tenant_salt(key, "mine") if own else None)
