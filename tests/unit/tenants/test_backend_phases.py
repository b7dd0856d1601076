"""Which part of a request a backend does: what may be set, and where it is refused."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from scheduling.core.types import Phase
from tenants.models import Backend
from tenants.specs import load_catalog
from tests.support import worlds

pytestmark = pytest.mark.django_db
BACKEND, POOL = "/api/v1/backends/gpu-1", "/api/v1/pools/llama"


@pytest.fixture
def adam() -> APIClient:
    client = APIClient()
    client.force_login(worlds.build().users["adam"])
    return client


def test_a_backend_does_both_unless_it_says_otherwise_and_the_catalog_has_it(adam: APIClient) -> None:
    assert adam.get(BACKEND).json()["phase"] == "both"
    answer = adam.patch(BACKEND, {"phase": "decode"}, format="json")
    assert (answer.status_code, answer.json()["phase"]) == (200, "decode")
    assert [b.phase for b in load_catalog().pools["llama"].backends if b.id == "gpu-1"] == [Phase.DECODE]


def test_an_unknown_phase_is_refused_with_its_field(adam: APIClient) -> None:
    answer = adam.patch(BACKEND, {"phase": "decoding"}, format="json")
    assert (answer.status_code, list(answer.json())) == (400, ["phase"])


def test_engines_that_hand_no_kv_cache_over_have_no_phases(adam: APIClient) -> None:
    assert adam.patch(POOL, {"engine": "sglang", "prefix_cache": "unsalted"}, format="json").status_code == 200
    answer = adam.patch(BACKEND, {"phase": "prefill"}, format="json")
    assert answer.status_code == 400
    assert "cannot hand a prompt's KV cache over" in answer.json()["phase"][0]


def test_a_pool_with_phases_keeps_an_engine_that_can(adam: APIClient) -> None:
    Backend.objects.filter(slug="gpu-1").update(phase="prefill")
    answer = adam.patch(POOL, {"engine": "sglang", "prefix_cache": "unsalted"}, format="json")
    assert answer.status_code == 400
    assert "set their phase to 'both' first" in answer.json()["engine"][0]
