"""A connection to Redis that is there."""

from __future__ import annotations

import asyncio

from scheduling.state.resp import RespConnection


async def connected(connection: RespConnection) -> RespConnection:
    """Starts it. On a busy machine the first attempt may find no answer in time; it makes another by itself."""
    await connection.start()
    async with asyncio.timeout(60):
        while not connection.available:
            await asyncio.sleep(0.02)
    return connection
