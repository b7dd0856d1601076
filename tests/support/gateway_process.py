"""A gateway in a process of its own, to be killed: ``python -m tests.support.gateway_process REDIS_URL``.

Reads its catalog and its settings, pickled, from stdin; prints its port when it serves.
"""

from __future__ import annotations

import asyncio
import pickle
import sys

import uvicorn

from controlplane.web.connections import ConnectionLimits
from controlplane.web.serve import protocol
from scheduling.catalog import CatalogCache
from scheduling.gateway.app import GatewayApp
from tests.support.gateway_world import SeenMetrics


async def main(redis_url: str) -> None:
    catalog, config = pickle.load(sys.stdin.buffer)
    app = GatewayApp(config, CatalogCache(lambda: catalog, lambda: catalog.version), redis_url, SeenMetrics())
    http = protocol(config.max_header_bytes, config.header_timeout_s, ConnectionLimits(10_000, 0))
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=http, lifespan="off", log_config=None, access_log=False))
    await app.start()
    serving = asyncio.create_task(server._serve())
    while not (server.started and app.ready):
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
