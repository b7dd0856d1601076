"""One corpus of requests, sent to an engine and through the gateway: the same answers, or a reason why not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec
from scheduling.gateway.bodies.prepare_audio import TOKENS_PER_S
from tests.support.corpus import FAILS, GENERATING, HEARING, READING, Case, differences, tone
from tests.support.gateway_world import World, gateway_world
from tests.support.real_vllm import real_vllm
from tests.support.simulated_world import simulated_world
from tests.support.tiny_models import CLASSIFIER, WHISPER

Seen = tuple[int, str, str]
HEARS_TOKENS = 448  # context of the tiny recogniser, as of every Whisper


async def ask(client: httpx.AsyncClient, path: str, case: Case, model: str) -> Seen:
    body = {"model": model, **case.body}
    if case.tasks == "transcribe":
        answer = await client.post(path, data=body, files={"file": ("tone.wav", tone())})
    else:
        answer = await client.post(path, json=body)
    kind = answer.headers["content-type"].replace(" ", "").lower()
    return answer.status_code, kind, answer.text


async def both_ways(world: World, url: str, model: str, case: Case) -> list[str]:
    async with world.http() as through, httpx.AsyncClient(base_url=url, timeout=300) as direct:
        theirs = await ask(direct, case.engine_path or case.path, case, model)
        ours = await ask(through, case.path, case, "demo")
    return differences(case, theirs, ours)


def judge(case: Case, found: list[str]) -> None:
    if found == ["status: 500 -> 502"]:
        case = replace(case, differs=FAILS)
    print(f"{case.name}: {'; '.join(found) or 'the same'}" + (f" ({case.differs})" if found and case.differs else ""))
    assert not found or case.differs, f"{case.name}: a difference without an explanation"


# --- the simulated engine


@pytest.fixture
async def simulated(redis_url: str, pool_id: str) -> AsyncIterator[tuple[World, str, str]]:
    async with simulated_world(redis_url, pool_id, prefix_cache=False, max_model_len=4096) as (world, [server]):
        yield world, server.url, server.options.model


@pytest.mark.parametrize("case", [*GENERATING, *READING], ids=lambda case: case.name)
async def test_a_simulated_engine_answers_alike_directly_and_through_us(
    simulated: tuple[World, str, str], case: Case
) -> None:
    world, url, model = simulated
    judge(case, await both_ways(world, url, model, case))
    await world.settled()


# --- the real one


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_vllm(tmp_path_factory.mktemp("vllm")) as address:
        yield address


@pytest.fixture(scope="module")
def reading_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same model, asked for vectors."""
    with real_vllm(
        tmp_path_factory.mktemp("reading"), "--runner", "pooling", "--convert", "embed", task="/v1/embeddings"
    ) as address:
        yield address


@pytest.fixture(scope="module")
def judging_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model with a head for three classes."""
    folder = tmp_path_factory.mktemp("judging")
    with real_vllm(folder, "--runner", "pooling", task="/classify", model=CLASSIFIER) as address:
        yield address


@pytest.fixture(scope="module")
def hearing_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A recogniser of speech."""
    folder = tmp_path_factory.mktemp("hearing")
    options = ("--max-model-len", str(HEARS_TOKENS))
    with real_vllm(folder, *options, task="/v1/audio/transcriptions", model=WHISPER) as address:
        yield address


@asynccontextmanager
async def real_world(url: str, redis_url: str, pool_id: str, max_model_len: int) -> AsyncIterator[World]:
    """A gateway in front of this server."""
    async with gateway_world(redis_url, pool_id, engines=0) as world:
        backend = BackendSpec(f"{pool_id}-v", pool_id, url, serve.SLOTS, 131_072)
        await world.configure(
            pool={
                "backends": (backend,), "upstream_model": serve.MODEL_NAME, "max_model_len": max_model_len,
                "max_output_tokens": min(2048, max_model_len // 2),
            }
        )  # fmt: skip
        await world.store.set_ready(world.epoch, backend.id, backend)
        yield world


async def compare_with_real(
    url: str, redis_url: str, pool_id: str, case: Case, max_model_len: int = serve.MAX_MODEL_LEN
) -> None:
    async with real_world(url, redis_url, pool_id, max_model_len) as world:
        judge(case, await both_ways(world, url, serve.MODEL_NAME, case))
        await world.settled()


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", GENERATING, ids=lambda case: case.name)
async def test_a_real_vllm_answers_alike_directly_and_through_us(
    vllm_url: str, redis_url: str, pool_id: str, case: Case
) -> None:
    await compare_with_real(vllm_url, redis_url, pool_id, case)


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [case for case in READING if case.tasks == "embed"], ids=lambda case: case.name)
async def test_a_real_vllm_that_embeds_answers_alike(
    reading_url: str, redis_url: str, pool_id: str, case: Case
) -> None:
    await compare_with_real(reading_url, redis_url, pool_id, case)


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [case for case in READING if case.tasks == "classify"], ids=lambda case: case.name)
async def test_a_real_vllm_that_classifies_answers_alike(
    judging_url: str, redis_url: str, pool_id: str, case: Case
) -> None:
    await compare_with_real(judging_url, redis_url, pool_id, case)


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", HEARING, ids=lambda case: case.name)
async def test_a_real_vllm_that_transcribes_answers_alike(
    hearing_url: str, redis_url: str, pool_id: str, case: Case
) -> None:
    await compare_with_real(hearing_url, redis_url, pool_id, case, HEARS_TOKENS)


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_the_sdk_gets_what_a_real_vllm_has_heard_and_the_ledger_its_seconds(
    hearing_url: str, redis_url: str, pool_id: str
) -> None:
    async with real_world(hearing_url, redis_url, pool_id, HEARS_TOKENS) as world:
        answer = await world.sdk().audio.transcriptions.create(model="demo", file=("tone.wav", tone()), language="en")
        assert len(answer.text) > 20  # nonsense, perhaps without a space
        await world.settled()
        [record] = await world.ledger()
    assert (record.outcome, record.input_tokens) == ("completed", 3 * TOKENS_PER_S)
    assert record.output_tokens > 0
