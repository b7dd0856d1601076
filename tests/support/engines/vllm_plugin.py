"""vLLM with the plugin answers as vLLM: to a client it differs in when, not in what."""

from __future__ import annotations

from scheduling.engines.simulated.server import SimulatedServer

Server = SimulatedServer
