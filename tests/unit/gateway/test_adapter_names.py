"""What keys open where pools have LoRA adapters: names, parents, and what engines are asked for."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from scheduling.core.outcomes import Reason
from scheduling.core.types import (
    AdapterSpec,
    BackendSpec,
    Catalog,
    EntitlementSpec,
    EntitlementState,
    FallbackSpec,
    KeySpec,
    PoolSpec,
    ProjectSpec,
)
from scheduling.gateway.entry.auth import Access, Keyring
from tests.support.gateway_world import TIER

POOL = PoolSpec(
    "llama", "llama-8b", "meta/llama", (BackendSpec("b1", "llama", "http://b1", 8, 1000),), aliases=("default",),
    adapters=(AdapterSpec("sql", "llama-sql", "sql-v2"), AdapterSpec("law", "llama-law", "law-v1")),
)  # fmt: skip
BASE = EntitlementSpec("base", "acme", "llama", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 8)
SQL = replace(BASE, id="sql", adapter="sql", concurrency=2)
LAW = replace(BASE, id="law", adapter="law")
PROJECT = ProjectSpec(
    "team", "acme", ("base", "sql"), aliases={"query": "llama-sql"}, default_model="llama-sql",
    fallbacks={"llama-sql": FallbackSpec("llama-8b", frozenset({"unavailable"}))},
)  # fmt: skip


def access(pool: PoolSpec = POOL, **key: object) -> Access:
    specs = {e.id: e for e in (BASE, SQL, LAW)}
    spec = KeySpec("k", hashlib.sha256(b"s").digest(), **({"entitlement": "", "project": "team"} | key))  # type: ignore[arg-type]
    catalog = Catalog(1, {pool.id: pool}, specs, {"k": spec}, projects={"team": PROJECT})
    opened = Keyring(catalog).opened("k")
    assert opened is not None
    return opened


def test_a_key_of_a_project_opens_its_adapters_beside_their_base():
    opened = access()
    assert {name: card.parent for name, card in opened.cards().items()} == {
        "llama-8b": None, "default": None, "llama-sql": "llama-8b", "query": "llama-8b",
    }  # fmt: skip
    sql, base = opened.at("llama-sql"), opened.at("llama-8b")
    assert sql is not None
    assert base is not None
    assert (sql.entitlement.id, base.entitlement.id) == ("sql", "base")
    assert opened.at("query") is not None
    assert opened.at("llama-law") is None, "the project has no entitlement to it"
    assert opened.at("sql-v2") is None
    assert opened.entitlement.id == "sql", "the default model of the project"


def test_an_adapter_has_the_id_and_the_figures_of_its_pool_and_another_model():
    sql = access().at("llama-sql")
    assert sql is not None
    assert (sql.pool.id, sql.pool.model, sql.pool.upstream_model, sql.pool.adapter) == (
        "llama", "llama-sql", "sql-v2", "sql-v2",
    )  # fmt: skip
    assert sql.pool.base is POOL
    assert sql.pool.backends is POOL.backends
    assert sql.rename is not None
    assert sql.rename(b'{"model":"sql-v2","x":"\\"model\\":\\"sql-v2\\""}') == (
        b'{"model":"llama-sql","x":"\\"model\\":\\"sql-v2\\""}'
    )


def test_sglang_is_asked_for_base_and_adapter_together():
    sql = access(replace(POOL, engine="sglang")).at("llama-sql")
    assert sql is not None
    assert (sql.pool.upstream_model, sql.pool.adapter) == ("meta/llama:sql-v2", "sql-v2")


def test_a_key_of_one_entitlement_opens_its_adapter_and_not_the_base():
    opened = access(project="", entitlement="law")
    assert set(opened.cards()) == {"llama-law"}
    assert opened.at("llama-8b") is None
    assert opened.one_model


def test_prompts_of_an_adapter_and_of_its_base_are_counted_and_cached_apart():
    opened = access()
    sql, base = opened.at("llama-sql"), opened.at("llama-8b")
    assert sql is not None
    assert base is not None
    assert sql.salt == base.salt, "the engine itself keeps blocks of adapters apart"
    assert sql.door != base.door


def test_the_base_takes_over_where_the_project_says_so_and_the_adapter_cannot_be_had():
    opened = access()
    other = opened.instead(Reason.NO_ADAPTER)
    assert other is not None
    assert other.pool is POOL
    assert opened.instead(Reason.CONCURRENCY) is None


def test_an_entitlement_to_an_adapter_that_the_pool_has_no_more_opens_nothing():
    opened = access(replace(POOL, adapters=()))
    assert set(opened.cards()) == {"llama-8b", "default"}
