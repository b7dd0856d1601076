"""A team with chat, coder, adapter and embedding models on one key: listed, used, limited, billed and shown, on a whole
instance with simulated engines; and the key of somebody who is removed opens nothing any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from scheduling.engines.simulated.server import EngineOptions, serving
from tests.support.instance import Up

LIMIT_S = 100
MODELS = {"chat": "talker", "coder": "coder", "adapter": "talker-law", "embed": "vectors"}
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    instance = Up(tmp_path_factory.mktemp("team") / "home", QUARTERMASTER_SIM_REPLICAS="3").start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The address of a simulated engine that has an adapter beside its model."""
    loop, ready, url = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def serve() -> None:
        options = EngineOptions(model="base", adapters=(("law", "/adapters/law"),))
        async with serving(options) as server:
            url.append(server.url)
            ready.set()
            await stopped.wait()

    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(LIMIT_S)
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


@pytest.fixture(scope="module")
def api(up: Up) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{up.url}/api/v1/", headers=up.admin(), timeout=60) as client:
        yield client


def done(answer: httpx.Response, status: int = 201) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def soon(ask: Callable[[], Any], what: str) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not ask():
        assert time.monotonic() - began < LIMIT_S, what
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def key(up: Up, api: httpx.Client, engine: str) -> dict[str, Any]:
    """Three pools, one with an adapter; a project with an entitlement for each."""
    demo = done(api.get(f"pools/{up.demo()['pool']}"), 200)
    upstream = demo["upstream_model"] or demo["model"]
    for number, (pool, model) in enumerate((("chat", "talker"), ("coder", "coder"), ("embed", "vectors"))):
        done(api.post("pools", json={
            "slug": pool, "model": model, "upstream_model": "base" if pool == "chat" else upstream,
            "max_model_len": demo["max_model_len"],
        }))  # fmt: skip
        done(api.post("prices", json={
            "pool": pool, "valid_from": "2026-01-01T00:00:00Z", "per_million_input": "1000",
            "per_million_output": "2000",
        }))  # fmt: skip
        if pool == "chat":
            done(api.post("backends", json={"slug": "lora", "pool": pool, "url": engine, "slots": 8}))
        else:
            done(api.patch(f"backends/engine-{number}", json={"pool": pool}), 200)
    done(api.post("adapters", json={
        "slug": "law", "pool": "chat", "model": "talker-law", "upstream_model": "law",
    }))  # fmt: skip
    done(api.post("tenants", json={"slug": "team"}))
    done(api.post("projects", json={"slug": "team-all", "tenant": "team", "aliases": {"gpt-4o": "talker"}}))
    for name in MODELS:
        pool = "chat" if name == "adapter" else name
        done(api.post("entitlements", json={
            "slug": f"team-{name}", "tenant": "team", "project": "team-all", "pool": pool, "tier": "standard",
            "adapter": "law" if name == "adapter" else None, "concurrency": 4,
        }))  # fmt: skip
    made: dict[str, Any] = done(
        api.post("keys", json={"name": "all", "project": "team-all", "user": "ada", "tokens_per_day": 10_000_000})
    )
    return made


def use(client: openai.OpenAI, name: str) -> Any:
    model = MODELS[name]
    if name == "embed":
        return client.embeddings.create(model=model, input="where is Oslo")
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4)


def served(client: openai.OpenAI, name: str) -> bool:
    with suppress(openai.APIStatusError):
        return bool(use(client, name))
    return False


def test_a_team_uses_all_its_models_with_one_key_until_its_user_is_removed(
    up: Up, api: httpx.Client, key: dict[str, Any]
):
    client = openai.OpenAI(base_url=f"{up.url}/v1", api_key=key["key"], max_retries=0, timeout=60)
    # listed
    names = {model.id for model in client.models.list()}
    assert names == {*MODELS.values(), "gpt-4o"}
    # used: once the leaders of the new pools know their engines, and the adapter is loaded
    for name in MODELS:
        soon(lambda name=name: served(client, name), f"{name} is not served")
    assert client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    ).model == "talker"  # fmt: skip
    assert len(client.embeddings.create(model="vectors", input=["a", "b"]).data) == 2

    # limited: in each pool, the adapter together with its base
    done(api.patch(f"keys/{key['id']}", json={"concurrency": 3, "requests_per_minute": 1}), 200)

    def refused(name: str) -> bool:
        with suppress(openai.RateLimitError):
            use(client, name)
            return False
        return True

    took_s = soon(lambda: refused("chat"), "the limit does not hold")
    print(f"a changed limit holds after {took_s:.2f} s")
    with pytest.raises(openai.RateLimitError) as caught:
        use(client, "adapter")  # its base has used up the pool's minute
    assert caught.value.response.headers["x-quartermaster-reason"] == "key_limit"
    soon(lambda: refused("coder"), "the limit does not hold in the other pool")
    done(api.patch(f"keys/{key['id']}", json={"concurrency": None, "requests_per_minute": None}), 200)
    soon(lambda: served(client, "chat"), "the limit stays")

    # billed and shown: each model under its own name, with its price, attributed to the user
    def billed() -> dict[str, dict[str, Any]]:
        rows = done(api.get("usage", params={"group_by": "model", "tenant": "team", "key": key["id"]}), 200)["rows"]
        return {row["model"]: row for row in rows}

    def whole() -> bool:
        rows = billed()
        return set(rows) == set(MODELS.values()) and all(row["input_tokens"] and row["cost"] for row in rows.values())

    soon(whole, "not every model is in the usage")
    for model, row in billed().items():
        assert row["input_tokens"] > 0, model
        assert float(row["cost"]) > 0, row
    assert billed()["vectors"]["output_tokens"] == 0
    rows = done(api.get("requests", params={"key_id": key["id"], "limit": 200}), 200)["results"]
    assert {row["model"] for row in rows} == set(MODELS.values())
    assert {row["user"] for row in rows} == {"ada"}

    def shown() -> set[str]:
        pools = done(api.get("live"), 200)["pools"]
        return {e for pool in pools.values() for e in pool["entitlements"] if e.startswith("team-")}

    soon(lambda: shown() == {f"team-{name}" for name in MODELS}, "not every entitlement is shown")

    # removed: whoever asks with the key, and what runs under it
    stream = client.chat.completions.create(
        model="talker", messages=[{"role": "user", "content": "a long story"}], max_tokens=2000, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    ended = done(api.post("tenants/team/revoke-user", json={"user": "ada"}), 200)
    assert ended == {"revoked": [key["id"]]}

    def closed() -> bool:
        with suppress(openai.AuthenticationError):
            client.models.list()
            return False
        return True

    took_s = soon(closed, "the key of a removed user opens still")
    print(f"a removed user's key opens nothing after {took_s:.2f} s")
    with pytest.raises(openai.APIError, match="revoked"):
        for _ in stream:
            pass
