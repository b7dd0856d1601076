"""The Lua scripts, put together: clock, constants, what several share, body.

Every script is one string for Redis, made of four texts: how it reads the time, what it uses of the constants of
:mod:`scheduling.state.types`, :mod:`scheduling.core.admission.rule` and :mod:`scheduling.core.placement.rule` (one
truth for Python and Lua) and of the files in ``scripts/shared``, and its own file. The model-based test replaces the
first of them to make time pass; nothing that can be configured does.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from scheduling.core.admission import key_limits as limits
from scheduling.core.admission import rule as admission
from scheduling.core.capacity import prefill_pace
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.placement import rule as placement
from scheduling.core.placement.cache_wait import LEAST_AGAIN
from scheduling.core.types import LEAST_CREDITS, LONG_TOKENS
from scheduling.state import types
from scheduling.state.lua_text import replaced, written_out

NAMES: Final = (
    "admit", "announce", "audit", "debit", "elect", "end_leg", "evict", "finish", "first_tokens", "grant",
    "long_prompts", "look", "pause", "prefilled", "rebuild", "record", "renew", "report", "requeue", "resign",
    "set_adapters", "set_cached", "set_prefill", "set_ready", "set_standing", "set_stuck", "set_waking", "suspect",
    "sweep", "take_leg", "view",
)  # fmt: skip
SHARED: Final = (  # scripts/shared/<part>.lua; each uses those before it
    "keys", "entries", "adapters", "events", "replicas", "limited", "totals", "credit", "prefixes", "leases", "queue",
    "grants", "buckets", "refusals", "limits", "placement", "leaderless",
    "legs",
)  # fmt: skip

# Called for several requests at once where they come together: what a call costs before it does anything, a fifth of
# it, is then paid once. Arguments are, for each, a count and so many words; each has an answer, which may be an error.
CALLED_TOGETHER: Final = ("admit", "finish")
_FOR_EACH = """local function one(ARGV)
{body}
end
local answers, at = {{}}, 1
while ARGV[at] do
  local fine, answer = pcall(one, {{unpack(ARGV, at + 1, at + ARGV[at])}})
  answers[#answers + 1] = fine and answer or type(answer) == 'table' and answer or {{err = tostring(answer)}}
  at = at + ARGV[at] + 1
end
return answers
"""

# Entered by few calls of the scripts that contain them: made together when the first of a row is entered, with what
# only they use. What other rows use as well has a copy in each; of a variable there is one for all.
SELDOM: Final = (
    ("times_of", "come_back", "outranked", "no_place", "missed_deadline", "supersede", "put_waiting"),
    ("read_points", "worth_of", "cached_elsewhere", "believed_there", "remember_points", "take_beginning"),
    ("fewest", "without", "fits_cached", "computes_long"),
    ("level_now", "set_level"),
    ("limiting", "count_scopes"),
    ("hand_out",), ("make_room",), ("put_lease",), ("settle_forgotten",), ("drop_unread",), ("drop_waiting",),
    ("ahead_of",), ("tell_read",),
)  # fmt: skip

_ASIDE = re.compile(r"--.*|'[^'\n]*'")
_NAME = re.compile(r"[A-Za-z_]\w*")
_STATEMENT = re.compile(r"^(?:--.*\n)*local ", re.MULTILINE)  # a comment belongs to what follows it
_DECLARED = re.compile(r"^local (?:function )?([^=(\n]+)", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(", re.MULTILINE)
_FOLDER = Path(__file__).parent / "scripts"
_CONSTANTS = (
    "LEASE_MS", "LEADER_MS", "REBUILD_MS", "RESTORE_MS", "SWEEP_GAP_MS", "ENDED_MS",
    "EVENTS_KEPT", "LEDGER_KEPT", "MAX_USED", "ENTRY_FORMAT", "GRANTS_AT_ONCE",
    "ENTITLEMENTS_AT_ONCE", "TRIED_OF_EACH",
)  # fmt: skip
_PACE = ("TURNAROUND_MS", "LONGEST_STEP_MS", "WHOLE_AT_ONCE")
_PLACEMENT = (
    "POINTS_KEPT", "PLACES_KEPT", "NAME_CHARS", "POINT_CHARS", "GAIN", "HALF_GAIN_TOKENS", "FIRST_GAIN", "MAX_WORTH"
)  # fmt: skip
_ADMISSION = (
    "MIN_RETRY_MS", "MAX_TOLD_MS", "SERVED_PER_RETURN", "SERVICE_MS", "NO_BACKEND_RETRY_MS", "SUPERSEDABLE",
    "EXTRA_PLACES",
)  # fmt: skip

# State time [ms]: Redis TIME, going on evenly where that is set (docs/internals/state.md, "Time"). `believe` says what
# has really passed since state time `since`, by a monotonic clock (-1: not known): of steps forward, which
# may have been pauses, that much is given back.
REDIS_CLOCK: Final = """local CLOCK = KEYS[1] .. 'clock'
local state_now
local function now_ms()
  if state_now then return state_now end
  local t = redis.call('TIME')
  local c = redis.call('HMGET', CLOCK, 'seen', 'offset')
  local seen, offset = tonumber(c[1]), tonumber(c[2]) or 0
  local now = t[1] * 1000 + math.floor(t[2] / 1000) + offset
  local step = seen and now - seen or CLOCK_TICK_MS
  state_now = now
  if step < -CLOCK_TICK_MS or step > CLOCK_GAP_MS then
    local doubt = math.max(0, (tonumber(redis.call('HGET', CLOCK, 'doubt')) or 0) + step)
    if type(redis.pcall('HSET', CLOCK, 'offset', offset - step, 'doubt', doubt)) ~= 'table' then state_now = seen end
  elseif step >= CLOCK_TICK_MS then
    redis.pcall('HSET', CLOCK, 'seen', now)  -- refused where Redis takes no writes: who only looks is answered still
  elseif step < 0 then
    state_now = seen
  end
  return state_now
end
"""
_DOUBTS: Final = """local function doubted() return tonumber(redis.call('HGET', CLOCK, 'doubt')) or 0 end
local function believe(passed, since)
  local now, doubt = now_ms(), doubted()
  if doubt == 0 then return end
  if since and passed >= 0 then doubt = math.max(0, math.min(doubt, passed - (now - since))) end
  state_now = now + doubt
  redis.call('HINCRBY', CLOCK, 'offset', doubt)
  redis.call('HSET', CLOCK, 'seen', state_now, 'doubt', 0)
end
"""
CLOCK_TICK_MS: Final = 100  # finer steps back are held out, not counted
NO_GAP_MS: Final = 2**53  # a step forward is time that has passed


@dataclass(frozen=True, slots=True)
class Script:
    """A script: its text as it is put together, the same as a server gets it (``lua_text``), and the SHA-1 of that, by
    which EVALSHA names it. ``many``: it is in ``CALLED_TOGETHER``."""

    name: str
    text: str
    source: bytes
    sha: bytes
    many: bool = False


def make_script(name: str, text: str) -> Script:
    source = written_out(text).encode()
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(name, text, source, sha, name in CALLED_TOGETHER)


@cache
def load_scripts() -> dict[str, Script]:
    """All scripts by name."""
    constants = {c: getattr(types, c) for c in _CONSTANTS} | {c: getattr(admission, c) for c in _ADMISSION}
    constants |= {c: getattr(prefill_pace, c) for c in _PACE}
    constants |= {"USERS_TRACKED": limits.USERS_TRACKED, "LIMITS_KEPT_MS": limits.KEPT_AT_MOST_MS}
    constants |= {"PREFILL_KEPT": prefill_pace.KEPT, "USUAL_BUDGET": USUAL_BUDGET}
    constants |= {"LONG_TOKENS": LONG_TOKENS, "LEAST_CREDITS": LEAST_CREDITS, "LEAST_AGAIN": LEAST_AGAIN}
    constants |= {c: getattr(placement, c) for c in _PLACEMENT}
    return load_family("", NAMES, constants, [f"shared/{part}" for part in SHARED], types.CLOCK_GAP_MS)


def load_family(
    folder: str,
    names: Sequence[str],
    constants: Mapping[str, float],
    shared: Sequence[str] = ("shared",),
    gap_ms: int = NO_GAP_MS,
) -> dict[str, Script]:
    """The scripts of one folder, by name, and the files of it that they share. ``gap_ms``: a longer time between two
    calls is taken for a step of the clock until somebody says that it has passed (``believe``)."""
    at = _FOLDER / folder
    header = "".join(f"local {name} = {value}\n" for name, value in constants.items())
    clock = f"local CLOCK_TICK_MS = {CLOCK_TICK_MS}\nlocal CLOCK_GAP_MS = {gap_ms}\n" + REDIS_CLOCK
    parts = [header, *((at / f"{part}.lua").read_text() for part in shared)]
    bodies = {name: (at / f"{name}.lua").read_text() for name in names}
    bodies |= {name: _FOR_EACH.format(body=body) for name, body in bodies.items() if name in CALLED_TOGETHER}
    doubting = {name for name, body in bodies.items() if not _names(body).isdisjoint(("believe", "doubted"))}
    clocks = {name: clock + _DOUBTS if name in doubting else clock for name in bodies}
    return {n: make_script(n, enclosed(clocks[n], *needed_of(parts, body))) for n, body in bodies.items()}


def enclosed(clock: str, needed: str, body: str) -> str:
    """A script whose functions are made inside one that encloses them. A function then copies what it uses of the
    variables outside (keys, constants, the clock); beside them it would look for each among all that functions use:
    17,000 instructions more for each call of ``admit``."""
    first = needed.find("local function ")
    if first < 0:
        return f"{clock}{needed}\n{body}"
    first = needed.rfind("\n\n", 0, first) + 1  # with its comment
    return f"{clock}{needed[:first]}\nreturn (function()\n{needed[first:]}\n{body}\nend)()\n"


def needed_of(parts: Sequence[str], body: str, seldom: Sequence[Sequence[str]] = SELDOM) -> tuple[str, str]:
    """The statements of the shared files (all ``local``, each below those it uses) that a script needs, directly or
    through others, and its own text. A server creates every function of a script in each call, and its garbage
    collector visits those of all scripts, so unused ones would cost as much as used ones. Those that few calls enter
    are made when that happens (``SELDOM``)."""
    statements = [s for part in parts for s in _statements(part)]
    rows = {name: row for row in seldom for name in row}
    fast = _reached(statements, body, {s for s in statements if _function(s) in rows})
    entered = [_function(s) for s in statements if s in fast and _function(s) in rows]
    inside = {}
    for row in dict.fromkeys(rows[name] for name in entered):
        members = [name for name in entered if name in row]
        last = max(i for i, s in enumerate(statements) if _function(s) in members)
        inside[last] = members, _reached(statements, "\n".join(members), set())
    outside = {s for s in fast if _function(s) not in rows}
    outside |= {s for _, reached in inside.values() for s in reached if not _function(s)}
    instead = {
        name: f"{_made(rows[name])}().{name}" for members, _ in inside.values() if len(members) > 1 for name in members
    }
    kept = []
    for i, s in enumerate(statements):
        if s in outside:
            kept.append(replaced(s, instead))
        if any(_function(s) == found[0] and len(found) > 1 for found, _ in inside.values()):
            made = _made(rows[_function(s)])
            kept.append(f"local {made}_now, {made}\n\n")  # what comes before the last one enters it as well
        if i in inside:
            members, reached = inside[i]
            own = [one for one in statements if one in reached - outside]
            if len(own) == 1:
                kept += own
            elif len(members) == 1:
                kept.append(_made_once(members[0], own))
            else:
                kept.append(_made_together(rows[members[0]], members, own))
    return "".join(kept), replaced(body, instead)


def _made_once(name: str, own: Sequence[str]) -> str:
    """A function that makes itself, and what it uses, when it is entered."""
    return (
        f"local function {name}(...)\n  local made\n  do\n{''.join(own)}made = {name}\n  end\n"
        f"  {name} = made\n  return made(...)\nend\n\n"
    )


def _made_together(row: Sequence[str], names: Sequence[str], own: Sequence[str]) -> str:
    """Several such, as the fields of what a function returns."""
    made, fields = _made(row), ", ".join(f"{name}={name}" for name in names)
    return (
        f"function {made}()\n  if {made}_now then return {made}_now end\n{''.join(own)}"
        f"  {made}_now = {{{fields}}}\n  return {made}_now\nend\n\n"
    )


def _made(names: Sequence[str]) -> str:
    return f"with_{names[0]}"


@cache
def _function(statement: str) -> str:
    """The name of the function that it declares; empty: it declares none."""
    found = _FUNCTION.search(statement)
    return found[1] if found else ""


def _reached(statements: Sequence[str], body: str, leaves: Set[str]) -> set[str]:
    """What a text uses, directly or through others; what ``leaves`` use is left out."""
    used, kept = set(_names(body)), set()
    for statement in reversed(statements):
        names = _DECLARED.search(statement)
        if names is not None and not used.isdisjoint(_NAME.findall(names[1])):
            kept.add(statement)
            if statement not in leaves:
                used |= _names(statement)
    return kept


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(_NAME.findall(_ASIDE.sub("", text)))


def _statements(text: str) -> list[str]:
    """Each with its comment; what stands above the first (what the file is about) is none."""
    starts = [match.start() for match in _STATEMENT.finditer(text)]
    return [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]
