"""A server that behaves like vLLM without a GPU: its wire format, its batching, its limits and its failures.

``python -m scheduling.engines.simulated --model NAME --preset NAME --port P``. In a test:
``async with serving(EngineOptions(...)) as server: ... server.url``.

engine.py   which tokens are computed in which step (no clock, no sockets)
runner.py   runs steps on the event loop's clock, and stalls them on demand
http.py     HTTP/1.1 on asyncio.Protocol
answers.py  requests in, SSE frames and JSON out
api.py      the routes
metrics.py  vLLM's and DCGM's metric names (what GPU utilization means here: runner.py)
text.py     tokenisation and pseudo words
"""
