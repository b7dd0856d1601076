"""Slots and KV cache that are left empty are read from the engine when its backend is added. Real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from rest_framework.test import APIClient

from tenants.models import Backend
from tests.support import worlds
from tests.unit.controlplane.test_settings_engines import METRICS, models, server

pytestmark = pytest.mark.django_db

BUSY = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
INFO = {"vllm_config": {"scheduler_config": {"max_num_seqs": 48, "max_num_batched_tokens": 2048}}}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def adam() -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {worlds.build().tokens['adam'].credential.text}")


@pytest.fixture
def engine() -> Iterator[str]:
    said = {
        "/v1/models": models("m", max_model_len=4096),
        "/metrics": (200, BUSY + METRICS),
        "/server_info?config_format=json": (200, json.dumps(INFO)),
    }
    with server(said) as url:
        yield url


def add(adam: APIClient, url: str, **more: object) -> Backend:
    body = {"slug": "new", "pool": "llama", "url": url, **more}
    answer = adam.post("/api/v1/backends", body, format="json")
    assert answer.status_code == 201, answer.content
    return Backend.objects.get(slug="new")


@pytest.mark.parametrize("left", [{}, {"slots": None, "kv_tokens": None}, {"slots": "", "kv_tokens": ""}])
def test_what_is_left_empty_is_what_the_engine_says(adam: APIClient, engine: str, left: dict[str, object]) -> None:
    row = add(adam, engine, **left)
    assert (row.slots, row.kv_tokens) == (48, 131_072)


def test_what_is_typed_is_kept_and_may_be_emptied_later(adam: APIClient, engine: str) -> None:
    row = add(adam, engine, slots=7, kv_tokens=1000)
    assert (row.slots, row.kv_tokens) == (7, 1000)
    assert adam.patch("/api/v1/backends/new", {"description": "x"}, format="json").status_code == 200
    row.refresh_from_db()
    assert row.slots == 7, "a change of something else asks nobody"
    assert adam.patch("/api/v1/backends/new", {"slots": None}, format="json").status_code == 200
    row.refresh_from_db()
    assert (row.slots, row.kv_tokens) == (48, 1000)


def test_an_engine_that_does_not_say_its_slots_gets_vllms_own_default(adam: APIClient) -> None:
    with server({"/v1/models": models("m"), "/metrics": (200, BUSY)}) as url:
        row = add(adam, url)
    assert (row.slots, row.kv_tokens) == (256, Backend._meta.get_field("kv_tokens").default)


def test_an_engine_that_is_not_there_yet_can_be_added(adam: APIClient) -> None:
    row = add(adam, NOWHERE)
    assert (row.slots, row.kv_tokens) == (32, 200_000)
    assert adam.patch("/api/v1/backends/new", {"slots": None}, format="json").status_code == 200
    row.refresh_from_db()
    assert row.slots == 32, "nothing is known, nothing is changed"


def test_a_form_as_a_whole_reads_its_engine_too(adam: APIClient, engine: str) -> None:
    body = {"pool": {"slug": "fresh", "model": "m"}, "backend": {"slug": "new", "url": engine}}
    assert adam.post("/api/v1/setup", body, format="json").status_code == 201
    row = Backend.objects.get(slug="new")
    assert (row.slots, row.kv_tokens) == (48, 131_072)


def test_who_may_not_write_makes_nobody_ask(engine: str) -> None:
    alice = APIClient(HTTP_AUTHORIZATION=f"Bearer {worlds.build().tokens['alice'].credential.text}")
    assert (
        alice.post("/api/v1/backends", {"slug": "new", "pool": "llama", "url": engine}, format="json").status_code
        == 403
    )
