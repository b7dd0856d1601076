"""Stand-ins, one module for each kind of engine: a server that speaks as its documentation says, and no further.

Each module has ``Server``, a :class:`SimulatedServer` with that kind's routes. It answers 400 to fields of vLLM's own
that its kind does not take, so that a test fails where a gateway sends them.
"""

from __future__ import annotations

import importlib

from scheduling.engines.simulated.server import SimulatedServer


def server_of(kind: str) -> type[SimulatedServer]:
    """The stand-in of a kind. ModuleNotFoundError where it has none: write one."""
    server: type[SimulatedServer] = importlib.import_module(f"{__name__}.{kind}").Server
    return server
