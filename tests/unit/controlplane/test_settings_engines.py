"""What an instance learns from engines that it did not start."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.embedded import engines
from controlplane.embedded.ask import KV_TOKENS_UNKNOWN, ask
from controlplane.embedded.home import CannotStart, Home
from controlplane.embedded.plan import Engine, Plan
from controlplane.embedded.prepare import slug
from controlplane.env import SettingsError
from controlplane.env_loading import load
from scheduling.engines.kinds import VLLM, kinds
from scheduling.engines.simulated.server import EngineOptions
from tests.support.engines import server_of

METRICS = 'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="1024"} 1.0\n'


@contextmanager
def server(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


def models(name: str, **more: object) -> tuple[int, str]:
    return 200, json.dumps({"object": "list", "data": [{"id": name, **more}]})


def plan(*urls: str) -> Plan:
    return Plan([Engine(f"engine-{i}", url, 256) for i, url in enumerate(urls)], patience_s=0)


def test_model_length_and_cache_are_asked_for():
    with server({"/v1/models": models("a/B", max_model_len=4096), "/metrics": (200, METRICS)}) as url:
        found = ask(plan(url))
    assert (found.model, found.max_model_len) == ("a/B", 4096)
    assert found.engines == [Engine("engine-0", url, 256, 131072)]


def test_an_engine_without_the_cache_metric_gets_a_size_that_any_gpu_has():
    with server({"/v1/models": models("b")}) as url:
        assert ask(plan(url)).engines[0].kv_tokens == KV_TOKENS_UNKNOWN


def test_what_the_plan_knows_is_not_asked():
    known = Plan([Engine("e", "http://127.0.0.1:9", 4, 100)], model="m", max_model_len=10)
    assert ask(known) is known


def test_engines_of_two_models_do_not_make_one_pool():
    with (
        server({"/v1/models": models("a")}) as one,
        server({"/v1/models": models("b")}) as two,
        pytest.raises(CannotStart, match=r"'b'.*'a'"),
    ):
        ask(plan(one, two))


@pytest.mark.parametrize("page", [(200, "<html>"), (200, '{"data": []}'), (404, "")])
def test_a_server_that_is_no_engine_is_named_with_what_to_do(page: tuple[int, str]):
    with server({"/v1/models": page}) as url, pytest.raises(CannotStart, match=f"{url}.*QUARTERMASTER_ENGINE_KIND"):
        ask(plan(url))


@pytest.mark.parametrize("kind", sorted(kinds()))
async def test_an_engine_of_each_kind_is_asked_as_its_kind_is_and_the_plan_keeps_the_kind(kind: str):
    standing_in = server_of(kind)(EngineOptions(model="a/B", slots=8, kv_tokens=8192))
    await standing_in.start()
    try:
        url = f"http://127.0.0.1:{standing_in.port}"
        made = await asyncio.to_thread(ask, replace(plan(url), kind=kind))
    finally:
        await standing_in.close()
    assert (made.model, made.kind) == ("a/B", kind)
    assert made.engines[0].kv_tokens == (8192 if kind.startswith(VLLM) else KV_TOKENS_UNKNOWN)


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    env = load({"ENGINE": "http://a:8000", "QUARTERMASTER_ENGINE_KIND": "sgalng"})
    with pytest.raises(CannotStart, match=r"QUARTERMASTER_ENGINE_KIND.*did you mean 'sglang'"):
        engines.plan(env, Home(tmp_path), lambda line: None)


@pytest.mark.parametrize(("given", "kind"), [("", ""), ("sglang", "sglang")])
def test_the_plan_has_the_kind_that_was_given(given: str, kind: str, tmp_path: Path) -> None:
    env = load({"ENGINE": "http://a:8000", "QUARTERMASTER_ENGINE_KIND": given})
    assert engines.plan(env, Home(tmp_path), lambda line: None).kind == kind


@pytest.mark.parametrize("given", ["", "wrong"])
async def test_an_engine_that_wants_a_key_says_where_to_put_it(given: str) -> None:
    standing_in = server_of(VLLM)(EngineOptions(model="a/B", slots=8, kv_tokens=8192, api_key="right"))
    await standing_in.start()
    try:
        there = plan(f"http://127.0.0.1:{standing_in.port}")
        with pytest.raises(CannotStart, match="API key: set QUARTERMASTER_ENGINE_API_KEY"):
            await asyncio.to_thread(ask, there, given)
        assert (await asyncio.to_thread(ask, there, "right")).model == "a/B"
    finally:
        await standing_in.close()


@pytest.mark.parametrize("key", ["two words", "a\nb", "schlüssel", "x" * 501])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(SettingsError, match=r"QUARTERMASTER_ENGINE_API_KEY=\(hidden\)"):
        load({"QUARTERMASTER_ENGINE_API_KEY": key})


@pytest.mark.parametrize(
    ("model", "name"),
    [("meta-llama/Llama-3.1-8B", "llama-3-1-8b"), ("tiny", "tiny"), ("Über/Ünï_code", "n-code"), ("!!", "pool")],
)
def test_a_pool_is_named_after_its_model(model, name):
    assert slug(model) == name


def test_an_engine_may_be_named_as_its_clients_name_it(tmp_path: Path) -> None:
    env = load({"ENGINE": "http://a:8000 http://b:8000/ http://c:8000/v1,https://d/v1/"})
    urls = [engine.url for engine in engines.plan(env, Home(tmp_path), lambda line: None).engines]
    assert urls == ["http://a:8000", "http://b:8000", "http://c:8000", "https://d"]
