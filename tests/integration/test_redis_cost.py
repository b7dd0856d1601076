"""What a request asks of Redis stays as little as it is: commands inside the scripts, bytes, and instructions.

The bounds are what was counted on 1 December 2026. Who adds a command pays 5,000 to 15,000 instructions for it
in each request (``docs/internals/decisions/shared-state.md``), and writes down here why that is worth it.
"""

from __future__ import annotations

import asyncio
import shutil

import pytest

from tests.support.redis_cost import SITUATIONS, Situation, cost, instructions

# Of one request: how often its scripts run each command, bytes of its calls, and bytes for the append-only file. The
# commands of a call are shared by those that come together, so there are parts of one.
WHOLE = {
    "get": 1, "hdel": 2, "hget": 6, "hgetall": 1, "hincrby": 2, "hmget": 8, "hset": 5, "set": 1, "time": 2, "xadd": 1,
    "zadd": 3, "zrem": 3,
}  # fmt: skip
STREAM = WHOLE | {
    "hdel": 3, "hget": 9, "hincrby": 3, "hmget": 9, "hset": 7, "time": 3, "zadd": 2, "zrangebyscore": 1, "zrem": 2,
}  # fmt: skip
TOGETHER = {
    "get": 1, "hdel": 1.2, "hget": 4.3, "hgetall": 0.1, "hincrby": 2, "hmget": 4.5, "hset": 6, "set": 1, "time": 0.2,
    "xadd": 1, "zadd": 2.1, "zrem": 2.1,
}  # fmt: skip
BOUNDS = {
    "whole answer, 1 replica": (WHOLE, 2_560, 4_060),
    "stream, 1 replica": (STREAM, 2_700, 5_360),
    "whole answer, 4 replicas": (WHOLE, 2_560, 4_060),
    "stream, 4 replicas": (STREAM, 2_700, 5_360),
    # others hold credit beside it, so a sum is set that else is deleted, and how fast the replica is counts
    "whole answer, 4 replicas, 20 others": (WHOLE | {"hset": 6}, 2_560, 4_160),
    "stream, 4 replicas, 20 others": (STREAM | {"hdel": 2, "hmget": 10, "hset": 8}, 2_700, 5_400),
    "whole answer, 4 replicas, 32 at once": (TOGETHER, 2_380, 3_820),
    "stream, 4 replicas, 32 at once": (
        TOGETHER
        | {"hdel": 1.3, "hget": 5.5, "hincrby": 2.2, "hmget": 4.7, "hset": 7.1, "zadd": 1.1, "zrem": 1.1}
        | {"zrangebyscore": 0.2},
        2_425, 4_860,
    ),
    # two scopes with three limits each, six points, cached tokens that do not count, and a bucket
    "stream of a conversation with limits": (
        STREAM
        | {"hdel": 7, "hget": 17, "hincrby": 11, "hmget": 16, "hset": 13, "zadd": 4, "zscore": 1}
        | {"pexpire": 6, "zremrangebyscore": 2},
        2_950, 8_660,
    ),
}  # fmt: skip
INSTRUCTIONS = {  # counted, and 5 % more: two runs differ by up to 2 %
    "whole answer, 1 replica": 1_090_000,
    "stream, 4 replicas": 1_475_000,
    "whole answer, 4 replicas, 32 at once": 865_000,
}
NAMED = {situation.name: situation for situation in SITUATIONS}


def test_every_situation_has_a_bound() -> None:
    assert BOUNDS.keys() == NAMED.keys()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_a_request_needs_no_more_commands_and_bytes_than_it_did(situation: Situation) -> None:
    allowed, received, appended = BOUNDS[situation.name]
    spent = asyncio.run(cost(situation, 64))
    more = {
        name: f"{calls:g} instead of {allowed.get(name, 0):g}"
        for name, calls in spent.commands.items()
        if calls > allowed.get(name, 0)
    }
    assert not more, f"a request runs more commands: {more}"
    assert spent.received <= received, "arguments of a request are longer"
    assert spent.appended <= appended, "a request writes more into the append-only file"


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts them")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_request_needs_no_more_instructions_than_it_did(name: str) -> None:
    counted, functions = asyncio.run(instructions(NAMED[name], 320))
    most = ", ".join(f"{function} {own:,.0f}" for function, own in functions.most_common(8))
    assert counted <= INSTRUCTIONS[name], f"most of it: {most}"
