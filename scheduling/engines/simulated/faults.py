"""Faults that a simulated replica can have."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduling.engines.simulated.http import Connection, Request


class Faults(msgspec.Struct, forbid_unknown_fields=True):
    """What is wrong with this replica now. ``POST /sim/fault`` changes the fields it names."""

    stall: bool | float = False  # compute nothing: seconds, or until told otherwise
    error_rate: float = 0.0  # share of generations answered with 500
    cut_rate: float = 0.0  # share of generations whose connection is cut half-way
    hang: bool = False  # accept requests and answer nothing; /health stays 200
    slow: float = 1.0  # factor on every step's time
    load_s: float = 0.0  # so long it takes to load an adapter
    load_fails: bool = False  # there are no weights where an adapter is said to be


@dataclass(slots=True)
class Parked:
    """A request that hangs."""

    connection: Connection
    request: Request
    gone: bool = False

    def lost(self) -> None:
        self.gone = True

    def answer(self, body: object) -> None:
        if not self.gone:
            self.connection.exchange = None
            self.connection.respond(200, msgspec.json.encode(body))
