"""The Lua scripts, put together: clock, constants, prelude, body.

Every script is one string for Redis, made of four texts: how it reads the time, the constants of
:mod:`scheduling.state.types` (one truth for Python and Lua), ``prelude.lua`` and its own file. The model-based test
loads the same scripts with another clock text; production code has no way to do so by configuration.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from scheduling.state import types

NAMES: Final = (
    "admit", "announce", "elect", "finish", "grant", "record", "renew", "requeue", "resign", "set_ready", "suspect",
    "sweep", "view",
)  # fmt: skip

_FOLDER = Path(__file__).parent / "scripts"
_CONSTANTS = ("LEASE_MS", "LEADER_MS", "REBUILD_MS", "ENDED_MS", "SERVICE_MS", "NO_BACKEND_RETRY_MS", "EVENTS_KEPT",
              "LEDGER_KEPT")  # fmt: skip

REDIS_CLOCK: Final = """local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's whole text and its SHA-1, by which EVALSHA names it."""

    name: str
    source: bytes
    sha: bytes


def make_script(name: str, body: str, clock: str = REDIS_CLOCK) -> Script:
    """Puts a body together with clock, constants and prelude."""
    constants = "".join(f"local {c} = {getattr(types, c)}\n" for c in _CONSTANTS)
    prelude = (_FOLDER / "prelude.lua").read_text()
    source = (clock + constants + prelude + body).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


def read_body(name: str) -> str:
    """The text of ``scripts/NAME.lua``."""
    return (_FOLDER / f"{name}.lua").read_text()


@cache
def load_scripts() -> dict[str, Script]:
    """All scripts as production runs them, by name."""
    return {name: make_script(name, read_body(name)) for name in NAMES}
