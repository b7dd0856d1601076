"""Long answers are read beside: what comes of them is the same, and this process does other things meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from scheduling.gateway.answers import long_answers
from scheduling.gateway.answers.answer_types import Asked, Broken, read_answer
from scheduling.gateway.answers.long_answers import LONG, LongAnswers
from scheduling.gateway.answers.pooled_answers import read_vectors

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
ASKED = Asked(True, 512, 10)
NAMES = b",".join(b'"%x":0' % n for n in range(800_000))


def _answer(more: bytes = b"") -> bytes:
    return (
        b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
        b'"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":5}%b}'
    ) % more


@pytest.fixture
async def beside() -> AsyncIterator[LongAnswers]:
    made = LongAnswers()
    yield made
    await made.stop()


async def test_what_is_read_beside_is_what_would_be_read_here(beside: LongAnswers) -> None:
    data = _answer(b',"x":"%b"' % (b"y" * 3 * LONG))
    for model in (None, "ours"):
        assert await beside.read("acme", CHAT, data, ASKED, model) == read_answer(data, ASKED, model)
    vector = b"[%b]" % b",".join([b"0.25"] * 4096)
    rows = b",".join(b'{"index":%d,"embedding":%b}' % (n, vector) for n in range(64))
    data = b'{"data":[%b],"usage":{"prompt_tokens":9,"total_tokens":9}}' % rows
    asked = replace(ASKED, choices=64)
    assert await beside.read("acme", EMBEDDINGS, data, asked, "m") == read_vectors(data, asked, "m")


async def test_what_is_no_answer_is_said_as_here(beside: LongAnswers) -> None:
    for data in (b"[%b]" % NAMES, _answer(b',"error":{"message":"no"}'), b"x" * LONG, b""):
        with pytest.raises(Broken) as here:
            read_answer(data, ASKED, None)
        with pytest.raises(Broken) as there:
            await beside.read("acme", CHAT, data, ASKED, None)
        assert (there.value.why, there.value.by_engine) == (here.value.why, here.value.by_engine)


async def test_this_process_spends_little_on_an_answer_that_is_costly_to_read(beside: LongAnswers) -> None:
    data = _answer(b"," + NAMES)
    began = time.process_time()
    read_answer(data, ASKED, None)
    here_s = time.process_time() - began
    await beside.read("acme", CHAT, data, ASKED, None)  # which starts the process
    began = time.process_time()
    await beside.read("acme", CHAT, data, ASKED, None)
    assert time.process_time() - began < here_s / 4


async def test_a_request_that_ends_in_the_middle_and_a_process_that_dies_leave_nothing_for_the_next(
    beside: LongAnswers,
) -> None:
    data, other = _answer(b"," + NAMES), _answer(b',"y":"%b"' % (b"z" * LONG))
    await beside.read("acme", CHAT, other, ASKED, None)
    given_up = asyncio.create_task(beside.read("acme", CHAT, data, ASKED, None))
    waits = asyncio.create_task(beside.read("acme", CHAT, other, ASKED, None))
    await asyncio.sleep(0.05)
    given_up.cancel()
    assert await waits == read_answer(other, ASKED, None)
    assert beside._process is not None
    os.kill(beside._process.pid, signal.SIGKILL)
    assert await beside.read("acme", CHAT, other, ASKED, None) == read_answer(other, ASKED, None)


async def test_what_cannot_be_read_of_the_process_leaves_nothing_for_the_next(
    beside: LongAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _answer(b',"y":"%b"' % (b"z" * LONG))
    with monkeypatch.context() as broken:
        broken.setattr(long_answers, "_decode_told", msgspec.json.Decoder(int).decode)
        with pytest.raises(msgspec.ValidationError):
            await beside.read("acme", CHAT, other, ASKED, None)
    assert await beside.read("acme", CHAT, other, ASKED, None) == read_answer(other, ASKED, None)


async def _left(beside: LongAnswers, data: bytes) -> int:
    """The process that was in the middle of this answer when its request ended."""
    given_up = asyncio.create_task(beside.read("acme", CHAT, data, ASKED, None))
    await asyncio.sleep(0.05)
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    assert beside._process is not None
    return beside._process.pid


async def test_who_leaves_again_and_again_makes_nobody_wait_for_another_process(
    beside: LongAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "LEFT_S", 60.0)
    data, other = _answer(b"," + NAMES), _answer(b',"y":"%b"' % (b"z" * LONG))
    await beside.read("acme", CHAT, other, ASKED, None)
    pids = set()
    for _ in range(3):
        pids.add(await _left(beside, data))
        assert await beside.read("globex", CHAT, other, ASKED, None) == read_answer(other, ASKED, None)
    assert len(pids) == 1


async def test_what_is_left_of_an_answer_holds_nobody_up_for_long(
    beside: LongAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "LEFT_S", 0.2)
    other = _answer(b',"y":"%b"' % (b"z" * LONG))
    await beside.read("acme", CHAT, other, ASKED, None)
    assert beside._process is not None
    os.kill(beside._process.pid, signal.SIGSTOP)
    pid = await _left(beside, other)
    assert await beside.read("globex", CHAT, other, ASKED, None) == read_answer(other, ASKED, None)
    assert beside._process.pid != pid


async def test_an_answer_that_takes_too_long_is_none() -> None:
    beside = LongAnswers(longest_s=0.01)
    with pytest.raises(Broken, match="takes more than") as told:
        await beside.read("acme", CHAT, _answer(b"," + NAMES), ASKED, None)
    assert told.value.ours
    await beside.stop()


async def test_an_answer_that_takes_too_much_memory_is_none_and_the_next_is_read() -> None:
    beside = LongAnswers(memory=200 * 1024 * 1024)
    with pytest.raises(Broken, match="takes more memory"):
        await beside.read("acme", CHAT, _answer(b"," + NAMES), ASKED, None)
    other = _answer(b',"y":"%b"' % (b"z" * LONG))
    assert await beside.read("acme", CHAT, other, ASKED, None) == read_answer(other, ASKED, None)
    await beside.stop()


async def test_tenants_take_turns(beside: LongAnswers) -> None:
    data, ended = _answer(b',"y":"%b"' % (b"z" * LONG)), []

    async def read(tenant: str) -> None:
        await beside.read(tenant, CHAT, data, ASKED, None)
        ended.append(tenant)

    await asyncio.gather(*[read("many") for _ in range(6)], read("one"))
    assert ended.index("one") < 2


async def test_where_no_process_can_be_had_the_replica_is_not_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_answers, "_PROGRAM", "raise SystemExit(1)")
    with pytest.raises(Broken, match="the process that reads long answers failed") as told:
        await LongAnswers().read("acme", CHAT, _answer(), ASKED, None)
    assert told.value.ours


@pytest.mark.parametrize(
    "before",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (800 << 20, 800 << 20))",
        "import sys; sys.meta_path.insert(0, type('Says', (), {'find_spec': lambda *_: print('x' * 9999)})())",
    ],
    ids=["a memory limit of its own", "modules that print"],
)
async def test_it_is_read_whatever_the_process_is_started_in(
    beside: LongAnswers, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    main = "from scheduling.gateway.answers.long_answers import main"
    monkeypatch.setattr(long_answers, "_PROGRAM", f"{main}\n{before}\nmain()")
    data = _answer(b',"y":"%b"' % (b"z" * LONG))
    assert await beside.read("acme", CHAT, data, ASKED, None) == read_answer(data, ASKED, None)


async def test_modules_beside_the_folder_it_is_started_in_are_not_ours(
    beside: LongAnswers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr("sys.path", [path or os.getcwd() for path in sys.path])
    monkeypatch.chdir(tmp_path)
    data = _answer()
    assert await beside.read("acme", CHAT, data, ASKED, None) == read_answer(data, ASKED, None)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
async def test_where_memory_is_short_it_ends_before_the_web_process(beside: LongAnswers) -> None:
    await beside.read("acme", CHAT, _answer(), ASKED, None)
    assert beside._process is not None
    assert Path(f"/proc/{beside._process.pid}/oom_score_adj").read_text() == "1000\n"
