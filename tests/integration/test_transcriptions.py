"""``/v1/audio/transcriptions``: a form with a recording, through the same admission, limits and ledger as a chat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from scheduling.core.types import RateLimits
from scheduling.gateway.bodies.prepare_audio import BOUNDARY, TOKENS_PER_S
from tests.support.gateway_world import World, gateway_world, until

PATH = "/v1/audio/transcriptions"
SOUND = bytes(range(256)) * 250  # 64 kB: four seconds of compressed speech, with every byte in it
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        await made.lead()
        made.engines[0].script = replace(made.engines[0].script, tokens=5, usage={"type": "duration", "seconds": 4})
        yield made


def form_of(world: World, at: int = -1) -> dict[str, list[bytes]]:
    """What the engine got, field by field."""
    parts = world.engines[0].bodies[at]["form"].split(b"--" + BOUNDARY.encode())
    assert (parts[0], parts[-1]) == (b"", b"--\r\n")
    found: dict[str, list[bytes]] = {}
    for part in parts[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]+)"', head)
        assert name is not None
        found.setdefault(name[1].decode(), []).append(value.removesuffix(b"\r\n"))
    return found


async def send(world: World, file: Any = SOUND, **fields: Any) -> httpx.Response:
    async with world.http() as client:
        given = {"model": "demo"} | fields
        return await client.post(PATH, data=given, files={"file": ("a.wav", file)})


async def test_the_sdk_gets_the_text_and_the_engine_the_same_bytes_under_its_own_name(world: World) -> None:
    answer = await world.sdk().audio.transcriptions.create(
        model="demo", file=("talk.mp3", SOUND), language="en", prompt="Names: Oslo", temperature=0.5
    )
    assert answer.text == " word" * 5
    got = form_of(world)
    assert got["file"] == [SOUND]
    assert got["model"] == [b"fake-upstream"]
    assert (got["language"], got["prompt"], got["temperature"]) == ([b"en"], [b"Names: Oslo"], [b"0.5"])
    assert int(got["max_completion_tokens"][0]) == world.pool.default_output_tokens
    assert "stream" not in got
    await world.settled()
    [record] = await world.ledger()
    assert (record.outcome, record.input_tokens) == ("completed", 4 * TOKENS_PER_S)
    assert 0 < record.output_tokens <= 10


async def test_a_recording_counts_in_pieces_and_fields_reach_the_engine_as_they_are_meant(world: World) -> None:
    long = b"x" * (3 * 30 * 16_000)  # a minute and a half
    answer = await send(
        world, long, max_completion_tokens="20", response_format="verbose_json", user="ada",
        **{"timestamp_granularities[]": ["word", "segment"]},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    charged = int(answer.headers["x-quartermaster-estimate-tokens"])
    assert charged >= 90 * TOKENS_PER_S + 3 * 20
    got = form_of(world)
    assert got["timestamp_granularities[]"] == [b"word", b"segment"]
    assert "user" not in got
    await world.settled()
    assert [record.user for record in await world.ledger()] == ["ada"]


async def test_a_file_cannot_end_its_field_and_say_more(world: World) -> None:
    evil = b'\r\n--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nother\r\n--x--\r\n'
    assert (await send(world, evil)).status_code == 200
    got = form_of(world)
    assert (got["file"], got["model"]) == ([evil], [b"fake-upstream"])


def raw(*fields: bytes, mark: bytes = b"x", end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--" + mark + b"\r\ncontent-disposition: form-data; " + one + b"\r\n" for one in fields) + end


FILE = b'name="file"; filename="a"\r\n\r\nsound'
MODEL = b'name="model"\r\n\r\ndemo'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no form"),
        (b'{"model": "demo"}', "no form"),
        (b"--x\r\n", "cannot be read"),
        (raw(MODEL, FILE, end=b""), "cannot be read"),
        (raw(MODEL, FILE, end=b"--xy"), "cannot be read"),
        (raw(MODEL), "file is missing"),
        (raw(MODEL, b'name="file"\r\n\r\n'), "The file is empty"),
        (raw(MODEL, MODEL, FILE), "given twice"),
        (raw(MODEL, FILE, FILE), "given twice"),
        (raw(MODEL, FILE, b'name="prompt"\r\n\r\n\xff'), "no UTF-8"),
        (raw(MODEL, FILE, b'name="better"\r\n\r\n1'), "not known here"),
        (raw(MODEL, FILE, b'name="stream"\r\n\r\ntrue'), "not streamed"),
        (raw(MODEL, FILE, b'name="temperature"\r\n\r\nhot'), "temperature"),
        (raw(MODEL, FILE, b'name="response_format"\r\n\r\nsrt'), "response_format"),
        (raw(MODEL, FILE, b'name="max_completion_tokens"\r\n\r\n900000'), "output tokens"),
        (raw(MODEL, FILE, b'name="prompt"\r\n\r\n' + b"x" * 5000), "prompt"),
        (raw(MODEL, *[b'name="n%d"\r\n\r\n1' % n for n in range(40)], FILE), "cannot be read"),
        (raw(MODEL, b'name="' + b"n" * 2000 + b'"\r\n\r\n1', FILE), "cannot be read"),
    ],
)
async def test_what_is_no_form_or_asks_for_more_is_refused_with_what_is_wrong(
    world: World, body: bytes, words: str
) -> None:
    async with world.http() as client:
        answer = await client.post(PATH, content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert not world.engines[0].bodies


async def test_an_upload_is_bounded_by_its_bytes_and_by_its_length(world: World) -> None:
    limit = world.app.config.max_body_bytes
    assert (await send(world, b"x" * (limit + 1))).status_code == 413
    await world.configure(concurrency=2)
    refused = await send(world, b"x" * (3 * 30 * 16_000))  # three pieces, where two may run
    assert refused.status_code == 400
    assert "2 that may run at once" in refused.json()["error"]["message"]
    assert not world.engines[0].bodies


async def test_limits_hold_as_for_a_chat(world: World) -> None:
    world.key_spec = replace(world.key_spec, limits=RateLimits(requests_per_minute=1))
    world.catalog = world._catalog(world.catalog.version + 1)
    await world.app._catalog.refreshed(10)
    assert (await send(world)).status_code == 200
    refused = await send(world)
    assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (429, "key_limit")
    async with httpx.AsyncClient(base_url=world.base) as stranger:
        answer = await stranger.post(PATH, data={"model": "demo"}, files={"file": ("a", b"x")})
    assert answer.status_code == 401


async def test_a_client_that_leaves_ends_its_transcription(world: World) -> None:
    engine = world.engines[0]
    engine.script = replace(engine.script, stall_after=0)
    waiting = asyncio.create_task(send(world))
    await until(lambda: engine.open == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: engine.open == 0)
    await world.settled()
    assert [record.reason for record in await world.ledger()] == ["client_left"]


async def test_a_long_recording_in_few_bytes_is_charged_by_the_seconds_that_the_engine_counts(world: World) -> None:
    """Ten minutes of silence, as long as vLLM decodes, have a few kilobytes."""
    world.engines[0].script = replace(world.engines[0].script, usage={"type": "duration", "seconds": 600})
    assert (await send(world, b"fLaC" * 500)).status_code == 200
    [record] = await world.ledger_of(1)
    assert (record.input_tokens, world.metrics.usage_rejections) == (600 * TOKENS_PER_S, [])


async def test_seconds_that_cannot_be_true_are_not_charged(world: World) -> None:
    world.engines[0].script = replace(world.engines[0].script, usage={"seconds": 10**9})
    assert (await send(world)).status_code == 200
    await world.settled()
    [record] = await world.ledger()
    assert record.input_tokens < 1000
    with pytest.raises(openai.NotFoundError):
        await world.sdk().audio.transcriptions.create(model="other", file=("a", SOUND))
