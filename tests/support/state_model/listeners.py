"""Who listens for what is published."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from scheduling.state.resp import RespConnection
from scheduling.state.types import (
    EJECTED_CHANNEL,
)
from tests.support.connected import connected


class Ears:
    """Who listens on the real Redis, and what was heard."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(EJECTED_CHANNEL)
        self._next()
        self.listening: set[str] = set()  # channels

    def listen(self, channels: set[str]) -> None:
        """From now on exactly these are listened on."""
        for names, change, said in (
            (channels - self.listening, self._pubsub.subscribe, "subscribe"),
            (self.listening - channels, self._pubsub.unsubscribe, "unsubscribe"),
        ):
            if names:
                change(*names)
                assert [self._next()["type"] for _ in names] == [said] * len(names)
        self.listening = set(channels)

    def heard(self, count: int) -> list[tuple[str, bytes]]:
        """The next ``count`` notifications that were published (channel, payload), in order."""
        if not count:
            return []
        self._pubsub.ping()  # the server answers after all that was published before: nobody waits for what never was
        messages = list(iter(self._published, None))
        assert len(messages) >= count, "a gateway heard too little"
        return [(m["channel"].decode(), m["data"]) for m in messages]

    def _published(self) -> dict[str, Any] | None:
        """The next notification; none where the answer to our ping comes instead."""
        message = self._next()
        return None if message["type"] == "pong" else message

    def _next(self) -> dict[str, Any]:
        message = self._pubsub.get_message(timeout=10)
        assert message is not None, "a gateway heard too little"
        return message

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


Run = Callable[[Awaitable[Any]], Any]


@contextmanager
def model_connection(url: str) -> Iterator[tuple[Run, RespConnection, Ears]]:
    """What a world is made of: calls that run in one loop, a connection in it, and who listens."""
    with asyncio.Runner() as runner:
        run = runner.get_loop().run_until_complete  # Runner.run() would look after Ctrl-C at every call

        async def connect() -> RespConnection:
            return await connected(RespConnection(url, name="model", call_timeout=20.0))

        resp = runner.run(connect())
        ears = Ears(url)
        yield run, resp, ears
        ears.close()
        runner.run(resp.close())
