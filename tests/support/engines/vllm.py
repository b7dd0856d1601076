"""vLLM 0.32 as the product simulates it; held against a real server by tests/integration/test_real_vllm.py."""

from __future__ import annotations

from scheduling.engines.simulated.server import SimulatedServer

Server = SimulatedServer
