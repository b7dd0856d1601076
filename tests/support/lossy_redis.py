"""An address before a Redis that loses replies (the command has run, its connection breaks before the answer), or from
which Redis is cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class LossyRedis:
    """``lost`` counts replies that were swallowed. One in ``every`` is, at most ``most`` in all."""

    def __init__(self, redis_url: str, *, every: int, most: int, seed: int) -> None:
        there = urlsplit(redis_url)
        self._to, self._path = (there.hostname or "127.0.0.1", there.port or 6379), there.path
        self._every, self._most, self._rng = every, most, random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.lost = 0
        self.cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.close()
            return
        try:
            from_redis, to_redis = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        both = {writer, to_redis}
        self._open |= both
        try:
            await asyncio.gather(self._copy(reader, to_redis, both), self._copy(from_redis, writer, both, loses=True))
        finally:
            self._open -= both

    async def _copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
        loses: bool = False,
    ) -> None:
        try:
            while data := await source.read(65536):
                if loses and self.lost < self._most and self._rng.randrange(self._every) == 0:
                    self.lost += 1
                    break
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            for writer in both:
                writer.close()

    def close(self) -> None:
        for writer in self._open:
            writer.close()

    def cut_off(self) -> None:
        """Nobody reaches Redis here until ``cut`` is False again."""
        self.cut = True
        self.close()

    def at(self, port: int) -> None:
        """It listens there."""
        self.url = f"redis://127.0.0.1:{port}{self._path}"


@asynccontextmanager
async def lossy_redis(redis_url: str, *, every: int = 1, most: int = 0, seed: int = 1) -> AsyncIterator[LossyRedis]:
    """Beside the real address, which loses nothing."""
    lossy = LossyRedis(redis_url, every=every, most=most, seed=seed)
    server = await asyncio.start_server(lossy.serve, "127.0.0.1", 0)
    lossy.at(server.sockets[0].getsockname()[1])
    try:
        yield lossy
    finally:
        server.close()
        lossy.close()
        await asyncio.sleep(0.05)
