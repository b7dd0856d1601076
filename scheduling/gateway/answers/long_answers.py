"""Long whole answers are read in a process beside.

Reading one takes time that follows its length, and nothing else runs in a process meanwhile: an embedding of 1,100
texts (58 MB) is 0.25 s for everybody's streams, and 30 MB that are nothing but names of fields 4 s. A thread would not
help, as the parser keeps the interpreter's lock. So what is longer than :data:`LONG` goes through a pipe, one at a
time, to a process that reads it as this one would and sends back what a client may have. Tenants take turns: however
many answers one has, another's waits for one of them. The process is started for the first one, has lower priority and
so much memory, and ends when it has nothing to do, and with this one, whose end of the pipe closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from scheduling.gateway.answers.answer_types import Asked, Broken, WholeAnswer

log = logging.getLogger(__name__)

LONG: Final = 1024 * 1024  # bytes; what is shorter takes 0.05 s at most
LONGEST_S: Final = 30.0  # for one answer: ten times what 64 MiB take on a busy machine
# bytes of the process: 64 MB of vectors take 535 MB, and a container with 1 GiB has a web process as well
MEMORY: Final = 768 * 1024 * 1024
NICE = 5
LEFT_S: Final = 1.0  # for the rest of an answer whose request has ended: as long as another process takes to start
IDLE_S: Final = 60.0  # without an answer, and the process ends: it keeps what memory the longest took
_PIECE = 1024 * 1024
_LENGTHS = struct.Struct("!IQ")  # of the head, and of what follows it
_PROGRAM = "from scheduling.gateway.answers.long_answers import main; main()"
Reading = Callable[[bytes, Asked, str | None], WholeAnswer]


class _Question(msgspec.Struct):
    path: str  # of the endpoint, which says how its answers are read
    asked: Asked
    model: str | None


class _Told(msgspec.Struct):
    """``answer``: without its body, which follows; None: it is none, and ``why``."""

    answer: WholeAnswer | None
    why: str = ""
    by_engine: bool = False


_Telling = asyncio.Task[tuple[_Told, bytes]]
_encode = msgspec.json.Encoder().encode
_decode_question = msgspec.json.Decoder(_Question).decode
_decode_told = msgspec.json.Decoder(_Told).decode


class LongAnswers:
    """The process beside, and the way to it."""

    def __init__(self, longest_s: float = LONGEST_S, memory: int = MEMORY) -> None:
        self._longest_s = longest_s
        self._memory = memory
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of tenants
        self._process: asyncio.subprocess.Process | None = None
        self._left: _Telling | None = None  # whose request has ended in the middle

    async def read(self, tenant: str, path: str, data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
        """As the endpoint with this path reads it. Raises :class:`Broken`."""
        question = _encode(_Question(path, asked, model))
        async with self._turns.setdefault(tenant, asyncio.Lock()), self._turn:
            await self._rest()
            for again in (True, False):  # the process may have died since the last answer
                telling = asyncio.create_task(self._told(question, data), name="long answer")
                telling.add_done_callback(_looked_at)
                try:
                    async with asyncio.timeout(self._longest_s):
                        told, body = await asyncio.shield(telling)
                    break
                except TimeoutError:
                    telling.cancel()
                    self._kill()
                    raise Broken(f"it takes more than {self._longest_s:.0f} s to read", ours=True) from None
                except (OSError, EOFError) as error:
                    self._kill()
                    if not again:
                        log.error("the process that reads long answers failed twice (%s)", error)
                        raise Broken("the process that reads long answers failed", ours=True) from None
                except asyncio.CancelledError:
                    self._leave(telling)
                    raise
                except Exception:  # what it said cannot be read: the next must not get the rest of it
                    self._kill()
                    raise
        if told.answer is None:
            raise Broken(told.why, by_engine=told.by_engine)
        return replace(told.answer, body=body)

    async def stop(self) -> None:
        """Ends the process."""
        process = self._process
        self._kill()
        if process is not None:
            await process.wait()
        if self._left is not None:
            self._left.cancel()

    def _leave(self, telling: _Telling) -> None:
        """The next must not get the rest of this one. Who leaves again and again would make it wait for a process that
        starts anew each time, so this one may finish, if it is soon."""
        self._left = telling
        asyncio.get_running_loop().call_later(LEFT_S, self._give_up, telling)

    def _give_up(self, telling: _Telling) -> None:
        if not telling.done():
            telling.cancel()
            self._kill()

    async def _rest(self) -> None:
        """Waits until nothing is left of the answer before."""
        if self._left is not None:
            await asyncio.wait([self._left])
            if self._left.cancelled() or self._left.exception() is not None:
                self._kill()
            self._left = None

    def _kill(self) -> None:
        """The next answer starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _told(self, question: bytes, data: bytes) -> tuple[_Told, bytes]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await _started(self._memory)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_LENGTHS.pack(len(question), len(data)) + question)
        whole = memoryview(data)
        for at in range(0, len(data), _PIECE):
            process.stdin.write(whole[at : at + _PIECE])
            await process.stdin.drain()
        head, length = _LENGTHS.unpack(await process.stdout.readexactly(_LENGTHS.size))
        told = _decode_told(await process.stdout.readexactly(head))
        return told, await process.stdout.readexactly(length)


def _looked_at(telling: _Telling) -> None:
    """Nobody waits for what was left."""
    if not telling.cancelled():
        telling.exception()


async def _started(memory: int) -> asyncio.subprocess.Process:
    env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}  # no secrets of ours
    env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the folder that we were started in has no modules of ours
        "-c",
        _PROGRAM,
        str(memory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2 * _PIECE,
        env=env,
        start_new_session=True,  # a terminal's Ctrl-C is for the web process
    )


# --- in the process


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    memory = int(sys.argv[1])
    with contextlib.suppress(OSError, ValueError):  # where no more than this is allowed anyway, or it cannot be set
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory is short this process ends, and not the one with everybody's streams
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints is no answer
    from scheduling.gateway.endpoints import ENDPOINTS

    readings = {endpoint.upstream: endpoint.read for endpoint in ENDPOINTS.values()}
    while select.select([questions], [], [], IDLE_S)[0] and _one(questions, answers, readings):
        pass


def _one(questions: BinaryIO, answers: BinaryIO, readings: dict[str, Reading]) -> bool:
    """One answer, of which nothing stays in memory; False where no more come."""
    lengths = questions.read(_LENGTHS.size)
    if not lengths:
        return False
    head, length = _LENGTHS.unpack(lengths)
    question = _decode_question(questions.read(head))
    told, body = _read(readings[question.path], question, questions.read(length))
    text = _encode(told)
    answers.write(_LENGTHS.pack(len(text), len(body)) + text)
    answers.write(body)
    answers.flush()
    return True


def _read(reading: Reading, question: _Question, data: bytes) -> tuple[_Told, bytes]:
    try:
        answer = reading(data, question.asked, question.model)
    except Broken as exc:
        return _Told(None, exc.why, exc.by_engine), b""
    except MemoryError:
        return _Told(None, "it takes more memory to read than any answer does"), b""
    return _Told(replace(answer, body=b"")), answer.body
