"""Admission for another gateway: what Envoy's ext_authz asks, what it is told, and how its leases end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import yaml

from scheduling.catalog import CatalogCache
from scheduling.core.outcomes import Outcome
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.beside import DONE, ENDS, MAX_DONE_BYTES, MAX_ENDS_BYTES, Beside
from scheduling.gateway.conclusion import send_answer
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.endpoints import ENDPOINTS
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import Head
from scheduling.gateway.errors import Answer
from scheduling.gateway.stages import Call
from tests.support.gateway_world import World, gateway_world, until
from tests.support.instance import ROOT
from tests.support.kept_responses import Memory

ASK = {"model": "demo", "prompt": "hello", "max_tokens": 50}
CHECK = "/ext-authz/v1/completions"
TOKEN = "token-of-the-data-plane"


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=GatewayConfig(renew_every_s=0.2)) as made:
        yield made


@asynccontextmanager
async def envoy(world: World, app: GatewayApp | None = None, held_s: float = 600.0) -> AsyncIterator[httpx.AsyncClient]:
    """What Envoy would send, with the client's own key."""
    transport = httpx.ASGITransport(app=Beside(app or world.app, held_s, TOKEN))
    headers = {"authorization": f"Bearer {world.key}", "x-quartermaster-authz-token": TOKEN}
    async with httpx.AsyncClient(transport=transport, base_url="http://qm", headers=headers, timeout=60) as client:
        yield client


async def end(client: httpx.AsyncClient, check: httpx.Response, **said: Any) -> httpx.Response:
    return await client.post(DONE, json=said, headers={"x-quartermaster-lease": check.headers["x-quartermaster-lease"]})


@pytest.mark.parametrize("shown", [None, "", "another-token-of-it"])
async def test_a_client_with_a_key_alone_is_told_nothing_and_takes_no_slot(world: World, shown: str | None) -> None:
    async with envoy(world) as client:
        del client.headers["x-quartermaster-authz-token"]
        check = await client.post(
            CHECK, json=ASK, headers={} if shown is None else {"x-quartermaster-authz-token": shown}
        )
        assert check.status_code == 403
        assert not [name for name in check.headers if name.startswith(("x-gateway", "x-quartermaster", "x-llm-d"))]
        assert world.engines[0].url.removeprefix("http://") not in check.text
        assert await world.running() == (0, 0)


async def test_a_check_holds_a_slot_until_its_completion_is_told(world: World) -> None:
    async with envoy(world) as client:
        check = await client.post(CHECK, json=ASK)
        assert check.status_code == 200
        assert check.headers["x-gateway-destination-endpoint"] == world.engines[0].url.removeprefix("http://")
        for prefix in ("x-gateway-inference", "x-llm-d-inference"):
            assert check.headers[f"{prefix}-fairness-id"] == "acme"
            assert check.headers[f"{prefix}-objective"] == world.entitlement.tier.name
        assert await world.running() == (1, 0)
        assert world.engines[0].heads == []  # somebody else sends it
        done = await end(client, check, prompt_tokens=7, completion_tokens=11)
        assert done.status_code == 200
        [record] = await world.ledger_of(1)
        assert (record.outcome, record.input_tokens, record.output_tokens) == (Outcome.COMPLETED, 7, 11)
        await world.settled()
        assert (await end(client, check)).status_code == 410  # once


async def test_a_refusal_is_the_one_that_v1_gives(world: World) -> None:
    await world.configure(concurrency=1)
    async with envoy(world) as client, world.http() as direct:
        check = await client.post(CHECK, json=ASK)
        beside = await client.post(CHECK, json=ASK)
        plain = await direct.post("/v1/completions", json=ASK)
        assert beside.status_code == plain.status_code == 429
        assert beside.headers["x-quartermaster-reason"] == plain.headers["x-quartermaster-reason"] == "concurrency"
        assert int(beside.headers["retry-after"]) >= 1
        stranger = await client.post(CHECK, json=ASK, headers={"authorization": "Bearer sk-none"})
        assert stranger.status_code == 401
        assert (await client.post(CHECK, json=ASK | {"model": "other"})).status_code == 404
        assert (await client.post(CHECK, content=b"{")).status_code == 400
        await end(client, check)
        await world.settled()


async def test_a_lease_whose_end_nobody_tells_ends_by_itself_and_is_charged_to_its_bound(world: World) -> None:
    async with envoy(world, held_s=0.5) as client:
        check = await client.post(CHECK, json=ASK)
        assert check.status_code == 200
        [record] = await world.ledger_of(1)
        assert record.reason == "gateway_lost"
        assert record.output_tokens == 50
        await world.settled()
        assert (await end(client, check, completion_tokens=1, prompt_tokens=1)).status_code == 410


async def test_a_check_waits_for_its_turn_and_a_client_that_leaves_leaves_nothing_behind(world: World) -> None:
    one = replace(world.pool.backends[0], slots=1)
    await world.configure(pool={"backends": (one,)})
    await world.store.set_ready(world.epoch, one.id, one)
    async with envoy(world) as client:
        first = await client.post(CHECK, json=ASK)
        second = asyncio.create_task(client.post(CHECK, json=ASK))
        await until(lambda: world.app._in_flight.waiting == 1)
        await end(client, first, prompt_tokens=1, completion_tokens=1)
        granted = await second
        assert granted.status_code == 200
        await end(client, granted)
        await world.settled()


async def test_what_was_not_told_counts_as_the_bound_and_what_cannot_be_true_too(world: World) -> None:
    async with envoy(world) as client:
        for said in ({}, {"prompt_tokens": 1, "completion_tokens": 90_000_000}):
            await end(client, await client.post(CHECK, json=ASK), **said)
        for record in await world.ledger_of(2):
            assert record.output_tokens == 50
        await end(client, await client.post(CHECK, json=ASK), status=499, prompt_tokens=2, completion_tokens=3)
        left = (await world.ledger_of(3))[-1]
        assert (left.reason, left.output_tokens) == ("client_left", 3)
        await end(client, await client.post(CHECK, json=ASK), status=503)
        failed = (await world.ledger_of(4))[-1]
        assert (failed.reason, failed.output_tokens) == ("backend_error", 0)


async def test_an_answer_without_a_bound_of_its_client_is_charged_as_long_as_it_was(world: World) -> None:
    """The engine gets the body as it came, without the bound that a pool gives to who asks for none."""
    ask = {name: value for name, value in ASK.items() if name != "max_tokens"}
    async with envoy(world) as client:
        longer = world.pool.default_output_tokens + 100
        assert longer < world.pool.max_model_len
        await end(client, await client.post(CHECK, json=ask), prompt_tokens=2, completion_tokens=longer)
        assert [record.output_tokens for record in await world.ledger_of(1)] == [longer]
        check = await client.post(CHECK, json=ask)
        await end(client, check, prompt_tokens=2, completion_tokens=world.pool.max_model_len)
        believed = (await world.ledger_of(2))[-1].output_tokens
        assert believed == world.pool.default_output_tokens, "no engine can have written so much"


@pytest.mark.parametrize("priority", [-(2**31), 5])
async def test_no_client_tells_an_engine_in_which_order_it_runs(world: World, priority: int) -> None:
    async with envoy(world) as client:
        check = await client.post(CHECK, json=ASK | {"priority": priority})
        assert (check.status_code, check.json()["error"]["param"]) == (400, "priority")
        assert await world.running() == (0, 0)
        await end(client, await client.post(CHECK, json=ASK | {"priority": 0}))


async def test_a_kept_answer_sends_nothing_to_an_engine(redis_url: str, pool_id: str) -> None:
    """A 200 without a lease would be sent there by Envoy, again and again, and cost nothing."""
    keeping = GatewayConfig(renew_every_s=0.2, idempotency_answers=True, idempotency_secret=b"of this deployment")
    async with gateway_world(redis_url, pool_id, config=keeping) as world, envoy(world) as client:
        key = {"idempotency-key": "once"}
        async with world.http() as direct:
            assert (await direct.post("/v1/completions", json=ASK, headers=key)).status_code == 200
            again = await direct.post("/v1/completions", json=ASK, headers=key)
            assert again.headers["idempotent-replayed"] == "true"
        check = await client.post(CHECK, json=ASK, headers=key)
        assert (check.status_code, check.json()["error"]["code"]) == (409, "already_done")
        assert "x-quartermaster-lease" not in check.headers


async def test_a_completion_that_reaches_another_gateway_is_handed_on(world: World, redis_url: str) -> None:
    other = GatewayApp(
        replace(world.config, gateway_id="gw-other"), CatalogCache(world.load, world.version), redis_url, world.metrics
    )
    await other.start()
    try:
        async with envoy(world) as client, envoy(world, other) as elsewhere:
            check = await client.post(CHECK, json=ASK)
            done = await end(elsewhere, check, prompt_tokens=4, completion_tokens=5, finish_reason="length")
            assert done.status_code == 202
            [record] = await world.ledger_of(1)
            assert (record.reason, record.input_tokens, record.output_tokens) == ("length", 4, 5)
            await world.settled()
    finally:
        await other.drain(0)
        await other.stop()


async def test_nobody_ends_a_lease_without_its_secret(world: World) -> None:
    async with envoy(world) as client:
        check = await client.post(CHECK, json=ASK)
        lease = check.headers["x-quartermaster-lease"]
        gateway, request, secret = lease.split("/")
        for wrong in (f"{gateway}/{request}/{'0' * len(secret)}", f"{gateway}/req_0/{secret}"):
            assert (await client.post(DONE, json={"lease": wrong})).status_code == 410
        for wrong in ("", "x", "a/b", "a b/c/d", "é/a/b", f"{lease}/more"):
            assert (await client.post(DONE, json={"lease": wrong})).status_code == 400
        assert await world.running() == (1, 0)
        assert (await client.post(DONE, json={"lease": lease})).status_code == 200
        await world.settled()


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"statu": 1}', b'{"prompt_tokens": -1}', b'{"completion_tokens": 1e400}', b"\xff"]
)
async def test_a_completion_that_cannot_be_read_is_refused_and_ends_nothing(world: World, body: bytes) -> None:
    async with envoy(world) as client:
        assert (await client.post(DONE, content=body)).status_code == 400
        assert (await client.post(DONE, content=b" " * (MAX_DONE_BYTES + 1))).status_code == 413
        assert (await client.get(DONE)).status_code == 405


async def test_a_part_of_a_body_is_refused_with_what_to_change(world: World) -> None:
    async with envoy(world) as client:
        part = await client.post(CHECK, json=ASK, headers={"x-envoy-auth-partial-body": "true"})
        assert part.status_code == 413
        assert "max_request_bytes" in part.text


async def test_what_is_refused_here_is_told_in_the_apis_form(world: World) -> None:
    async with envoy(world) as client:
        answers = [
            await client.post(CHECK, json=ASK, headers={"x-quartermaster-authz-token": "x"}),
            await client.post(CHECK, json=ASK, headers={"x-envoy-auth-partial-body": "true"}),
            await client.get(DONE),
            await client.post(DONE, json={}),
        ]
    for answer, status in zip(answers, (403, 413, 405, 400), strict=True):
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "invalid_request"


async def test_paths_that_take_no_slot_are_only_checked_for_their_key(world: World) -> None:
    async with envoy(world) as client:
        models = await client.get("/ext-authz/v1/models")
        assert (models.status_code, models.content) == (200, b"{}")
        assert "x-quartermaster-lease" not in models.headers
        stranger = await client.get("/ext-authz/v1/models", headers={"authorization": "Bearer sk-none"})
        assert stranger.status_code == 401
        assert (await client.get("/ext-authz/metrics")).status_code == 404


def test_envoy_sends_to_engines_what_takes_a_slot_and_the_rest_to_quartermaster() -> None:
    config = yaml.safe_load((ROOT / "deploy/envoy/envoy.yaml").read_text())
    [listener] = config["static_resources"]["listeners"]
    [manager] = listener["filter_chains"][0]["filters"]
    routes = manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]

    def matches(match: dict[str, Any], path: str) -> bool:
        if "safe_regex" in match:
            return re.fullmatch(match["safe_regex"]["regex"], path) is not None
        return path.startswith(match["prefix"])

    def goes_to(path: str) -> tuple[str, bool]:
        """Which cluster, and whether after a check."""
        route = next(one for one in routes if matches(one["match"], path))
        overrides = route.get("typed_per_filter_config", {}).get("envoy.filters.http.ext_authz", {})
        return route["route"]["cluster"], not overrides.get("disabled", False)

    slots = {path for path in ENDPOINTS if path.startswith("/v1/")}
    assert {path for path in slots if goes_to(path) != ("engines", True)} == {"/v1/classify"}  # at engines: /classify
    for path in ("/v1/models", "/v1/models/demo", "/v1/files", "/v1/files/x/content", "/v1/batches", "/v1/batches/x",
                 "/v1/responses/x", "/v1/messages/count_tokens", "/v1/tokenize", "/v1/classify"):  # fmt: skip
        assert goes_to(path) == ("quartermaster", False)


class Notes:
    """Paths without a slot, and what was done there."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def serves(self, path: str) -> bool:
        return path.startswith("/v1/files")

    async def serve(self, call: Call, access: Access, head: Head) -> None:
        self.done.append(call.scope["method"])
        call.closed = True
        await send_answer(call, Answer(200, [], b""))


async def test_a_check_does_nothing_of_what_the_request_asks(redis_url: str, pool_id: str) -> None:
    files = Notes()
    async with gateway_world(redis_url, pool_id, routes=[files]) as world, envoy(world) as client:
        for method, path in (("POST", "/v1/files"), ("DELETE", "/v1/files/x"), ("POST", "/tokenize")):
            check = await client.request(method, f"/ext-authz{path}", json={"model": "demo", "prompt": "hello"})
            assert (check.status_code, check.content) == (200, b"{}")
            assert "x-quartermaster-lease" not in check.headers
        stranger = await client.post("/ext-authz/v1/files", headers={"authorization": "Bearer sk-none"})
        assert stranger.status_code == 401
        assert (files.done, world.engines[0].heads) == ([], [])
        async with world.http() as direct:
            assert (await direct.post("/v1/files")).status_code == 200
        assert files.done == ["POST"]


async def test_a_response_that_could_not_be_kept_or_continued_is_refused_before_it_is_sent(
    redis_url: str, pool_id: str
) -> None:
    async with gateway_world(redis_url, pool_id, responses=Memory()) as world, envoy(world) as client:
        for field, value in (("store", True), ("previous_response_id", "resp_1")):
            body = {"model": "demo", "input": "hello", "max_output_tokens": 9, field: value}
            check = await client.post("/ext-authz/v1/responses", json=body)
            assert (check.status_code, check.json()["error"]["param"]) == (400, field)
            assert "stored here" in check.json()["error"]["message"]
        assert await world.running() == (0, 0)


async def test_engines_are_told_whose_a_request_is_and_how_important(world: World) -> None:
    async with world.http() as client:
        assert (await client.post("/v1/completions", json=ASK)).status_code == 200
    head = world.engines[0].heads[-1]
    for prefix in ("x-gateway-inference", "x-llm-d-inference"):
        assert head[f"{prefix}-fairness-id"] == "acme"
        assert head[f"{prefix}-objective"] == world.entitlement.tier.name


@pytest.mark.parametrize(("flags", "status"), [("DC", 499), ("UC", 502), ("UC,UR", 502), ("UPE,DC", 499), ("DPE", 499)])
async def test_an_end_that_only_the_access_log_knows_ends_the_lease(world: World, flags: str, status: int) -> None:
    async with envoy(world) as client:
        check = await client.post(CHECK, json=ASK)
        lease = check.headers["x-quartermaster-lease"]
        strange = f"quartermaster lease={lease.rpartition('/')[0]}/0000 flags=DC;".encode()
        line = f"quartermaster lease={lease} flags={flags};".encode()
        assert (await client.post(ENDS, content=b"\n\x05" + strange)).status_code == 200
        assert await world.running() == (1, 0)
        # as protobuf has it: a tag and a length before the text, and other records around it
        batch = b"".join(b"\n" + bytes([len(one)]) + one for one in (b"other", strange, line, b"\xff\x00", line))
        assert (await client.post(ENDS, content=batch)).status_code == 200
        [record] = await world.ledger_of(1)
        assert record.outcome == (Outcome.CANCELLED if status == 499 else Outcome.FAILED)
        assert record.output_tokens == (50 if status == 499 else 0)
        await world.settled()
        assert (await end(client, check)).status_code == 410


async def test_a_batch_of_the_access_log_is_bounded_and_posted(world: World) -> None:
    async with envoy(world) as client:
        assert (await client.post(ENDS, content=b"x" * (MAX_ENDS_BYTES + 1))).status_code == 413
        assert (await client.get(ENDS)).status_code == 405
