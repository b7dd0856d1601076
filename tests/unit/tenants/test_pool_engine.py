"""A pool's kind of engine: what it may be, and which settings it rules out."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from scheduling.engines.kinds import kinds
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Pool
from tenants.specs import load_catalog
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture
def adam() -> APIClient:
    client = APIClient()
    client.force_login(worlds.build().users["adam"])
    return client


def change(adam: APIClient, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = adam.patch("/api/v1/pools/llama", fields, format="json")
    return answer.status_code, answer.json()


def test_it_is_vllm_unless_it_says_otherwise_and_the_catalog_has_it(adam: APIClient) -> None:
    assert Pool.objects.get(slug="llama").engine == "vllm"
    assert load_catalog().pools["llama"].engine == "vllm"
    status, pool = change(adam, engine="openai", prefix_cache="unsalted")
    assert (status, pool["engine"]) == (200, "openai")
    assert load_catalog().pools["llama"].engine == "openai"


def test_an_unknown_kind_is_refused_by_the_form_and_by_the_model(adam: APIClient) -> None:
    status, body = change(adam, engine="vlm")
    assert status == 400
    assert list(body) == ["engine"]
    pool = Pool.objects.get(slug="llama")
    pool.engine = "vlm"
    with pytest.raises(Exception, match="did you mean 'vllm'"):
        services.save(actor=SYSTEM, instance=pool)


@pytest.mark.parametrize("kind", [kind for kind in kinds().values() if not kind.takes_cache_salt], ids=lambda k: k.name)
@pytest.mark.parametrize("mode", ["isolated", "shared"])
def test_a_kind_without_salts_cannot_claim_to_keep_tenants_apart(adam: APIClient, kind: Any, mode: str) -> None:
    status, body = change(adam, engine=kind.name, prefix_cache=mode)
    assert status == 400
    assert list(body) == ["prefix_cache"]
    assert "set 'unsalted'" in body["prefix_cache"][0]
    assert Pool.objects.get(slug="llama").engine == "vllm"


def test_what_a_silent_kind_cannot_honour_is_named_by_field(adam: APIClient) -> None:
    fields = {"engine": "openai", "prefix_cache": "unsalted"}
    status, body = change(adam, **fields, prefill_credit=1024, tokenizer="backend")
    assert (status, sorted(body)) == (400, ["prefill_credit", "tokenizer"])
    assert change(adam, **fields, prefill_credit=0, tokenizer="")[0] == 200
    assert change(adam, engine="vllm", prefix_cache="isolated", prefill_credit=1024, tokenizer="backend")[0] == 200
    assert change(adam, engine="sglang", prefix_cache="unsalted", tokenizer="")[0] == 200, "it reports its work"


def test_the_schema_offers_the_kinds_that_there_are(adam: APIClient) -> None:
    schema = adam.get("/api/v1/schema?format=json").json()
    choices = schema["components"]["schemas"]["EngineEnum"]["enum"]
    assert sorted(choices) == sorted(kinds())


def test_a_member_does_not_read_it() -> None:
    world = worlds.build()
    client = APIClient()
    client.force_login(next(user for name, user in world.users.items() if name not in ("adam", "olga")))
    rows = client.get("/api/v1/pools").json()["results"]
    assert rows
    assert all("engine" not in row for row in rows)
