"""The Lua scripts, put together: clock, constants, prelude, body.

Every script is one string for Redis, made of four texts: how it reads the time, the constants of
:mod:`scheduling.state.types` and :mod:`scheduling.core.admission` (one truth for Python and Lua), ``prelude.lua`` and
its own file. The model-based test replaces the first of them to make time pass; nothing that can be configured does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from scheduling.core import admission
from scheduling.state import types

NAMES: Final = (
    "admit", "announce", "elect", "evict", "finish", "grant", "look", "pause", "rebuild", "record", "renew", "report",
    "requeue", "resign", "set_ready", "set_standing", "set_stuck", "suspect", "sweep", "view",
)  # fmt: skip

_FOLDER = Path(__file__).parent / "scripts"
_CONSTANTS = (
    "LEASE_MS", "LEADER_MS", "REBUILD_MS", "SWEEP_GAP_MS", "ENDED_MS", "SERVICE_MS", "NO_BACKEND_RETRY_MS",
    "EVENTS_KEPT", "LEDGER_KEPT", "MOST_USED", "ENTRY_FORMAT", "GRANTS_AT_ONCE",
    "ENTITLEMENTS_AT_ONCE", "TRIED_OF_EACH",
)  # fmt: skip
_ADMISSION = ("LEAST_RETRY_MS", "LONGEST_TOLD_MS", "SERVED_PER_RETURN")

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


def make_script(name: str, text: str) -> Script:
    source = text.encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


@cache
def load_scripts() -> dict[str, Script]:
    """All scripts by name."""
    return load_family(
        "", NAMES, {c: getattr(types, c) for c in _CONSTANTS} | {c: getattr(admission, c) for c in _ADMISSION}
    )


def load_family(folder: str, names: Sequence[str], constants: Mapping[str, int]) -> dict[str, Script]:
    """The scripts of one folder, which share its prelude, by name."""
    at = _FOLDER / folder
    told = "".join(f"local {name} = {value}\n" for name, value in constants.items())
    shared = REDIS_CLOCK + told + (at / "prelude.lua").read_text()
    return {name: make_script(name, shared + (at / f"{name}.lua").read_text()) for name in names}
