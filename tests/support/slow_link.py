"""A TCP link that can be made slow: what passes it is held back for ``delay_s``, in both directions together."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class SlowLink:
    """Listens on a free loopback port before ``port``. The order of bytes stays, and nothing is lost."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.delay_s = 0.0  # of each answer
        self._to = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there}
        await asyncio.gather(self._copy(reader, there, late=False), self._copy(back, writer, late=True))
        self._writers -= {writer, there}

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, late: bool) -> None:
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    return
                sink.write(data)
                await sink.drain()

        delivering = asyncio.create_task(deliver())
        with suppress(OSError):
            while data := await source.read(65536):
                on_the_way.put_nowait((loop.time() + (self.delay_s if late else 0.0), data))
        on_the_way.put_nowait((loop.time(), b""))
        with suppress(OSError):
            await delivering
        sink.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
