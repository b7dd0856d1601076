"""LoRA adapters on a real vLLM on the CPU, behind a real gateway and leader.

Needs ``python -m controlplane.embedded.vllm_cpu`` (or one ``ENGINE=vllm make up``) before.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import AdapterSpec, BackendSpec
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from tests.integration.test_adapters import catalog_with, entitlements_of
from tests.support import tiny_lora
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.gateway_world import gateway_world
from tests.support.real_vllm import FOLDER, real_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the tiny model, on disk."""
    if not (FOLDER / "installed.json").exists():
        pytest.skip(f"no vLLM in {FOLDER}")
    made = {name: tmp_path_factory.mktemp("adapters") / name for name in ("sql-v2", "law-v1")}
    for seed, path in enumerate(made.values()):
        python = FOLDER / "venv" / "bin" / "python"
        subprocess.run([python, tiny_lora.__file__, FOLDER / "model", path, str(seed)], check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def url(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that starts with one of them and may be asked for others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        options = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", str(tiny_lora.RANK), "--lora-modules")
        with real_vllm(tmp_path_factory.mktemp("vllm"), *options, f"sql-v2={adapters['sql-v2']}") as address:
            yield address


async def test_base_and_adapters_answer_through_us_as_they_do_directly(
    url: str, adapters: dict[str, Path], redis_url: str, pool_id: str
):
    async with gateway_world(redis_url, pool_id, engines=0, lead=False) as world, control_http() as http:
        world.granting = False
        world.pool = replace(
            world.pool,
            backends=(BackendSpec(f"{pool_id}-0", pool_id, url, 8, 100_000),),
            upstream_model=serve.MODEL_NAME,
            adapters=tuple(
                AdapterSpec(name.partition("-")[0], f"demo-{name.partition('-')[0]}", name, str(path))
                for name, path in adapters.items()
            ),
            load_adapters=True,
        )
        specs = entitlements_of(world, {})
        world._catalog = lambda version: catalog_with(world, specs, version)  # type: ignore[method-assign]
        await world.configure()
        engine = VllmClient(url, http=http)
        assert [(m.id, m.parent) for m in await engine.models()][1:] == [("sql-v2", serve.MODEL_NAME)]
        async with dispatching(redis_url, catalog_of(world.pool, *specs), over_http=True) as leader, world.http() as us:
            await until(lambda: leader._term is not None and "ready" in _states(leader), 120)
            names = {"demo": serve.MODEL_NAME, "demo-sql": "sql-v2", "demo-law": "law-v1"}
            ours = {name: await _said(us, name) for name in names}
            assert [(m.id, m.parent) for m in await engine.models()][1:] == [
                ("sql-v2", serve.MODEL_NAME), ("law-v1", serve.MODEL_NAME),
            ], "the second one was loaded for its first request"  # fmt: skip
            async with httpx.AsyncClient(base_url=url, timeout=60) as directly:
                theirs = {name: await _said(directly, upstream) for name, upstream in names.items()}
    assert {name: text for name, (_, text) in ours.items()} == {name: text for name, (_, text) in theirs.items()}
    assert {name: model for name, (model, _) in ours.items()} == {name: name for name in names}
    assert len({text for _, text in ours.values()}) == 3, "three models answer in three ways"


def _states(leader: object) -> list[str]:
    return [status.state for status in leader._term.monitor.statuses()]  # type: ignore[attr-defined]


async def _said(http: httpx.AsyncClient, model: str) -> tuple[str, str]:
    """Which model an answer is of, and its text."""
    body = {"model": model, "prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["model"], answer.json()["choices"][0]["text"]
