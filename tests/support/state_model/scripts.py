"""The scripts of production, but for the clock, which reads a key so that time can pass."""

from __future__ import annotations

from functools import cache

from scheduling.core.admission.key_limits import USERS_TRACKED
from scheduling.core.placement.cache_wait import LEAST_AGAIN
from scheduling.core.placement.rule import POINTS_KEPT
from scheduling.core.types import LONG_TOKENS
from scheduling.state.script import REDIS_CLOCK, Script, load_scripts, make_script

TEST_CLOCK = (
    "local CLOCK = KEYS[1] .. 'clock'\n"
    "local function now_ms() return tonumber(redis.call('GET', KEYS[1] .. 'test_now')) end\n"
    "local function believe() end\n"
    "local function doubted() return 0 end\n"
)
USERS = 3  # of an entitlement that are tracked at a time
LONG = 70  # tokens of a long prompt
AGAIN = 15  # tokens to compute again that are worth waiting for
POINTS = 12  # of prompts' beginnings that a generation of the index keeps


def variant(script: Script, old: str, new: str) -> Script:
    """A script with one text replaced; fails when that text is not there (any more)."""
    assert old in script.text, f"{script.name}.lua no longer contains {old!r}"
    return make_script(script.name, script.text.replace(old, new))


def variants(scripts: dict[str, Script], old: str, new: str) -> dict[str, Script]:
    """All scripts, with one text replaced in those that have it; fails when none has it (any more)."""
    assert any(old in s.text for s in scripts.values()), f"no script contains {old!r}"
    return {n: variant(s, old, new) if old in s.text else s for n, s in scripts.items()}


def timed_scripts() -> dict[str, Script]:
    return dict(_timed_scripts())


@cache
def _timed_scripts() -> dict[str, Script]:
    scripts = {name: variant(s, REDIS_CLOCK, TEST_CLOCK) for name, s in load_scripts().items()}
    few = f"local POINTS_KEPT = {POINTS}\n"  # so that generations of the index change
    scripts = variants(scripts, f"local POINTS_KEPT = {POINTS_KEPT}\n", few)
    scripts = variants(scripts, f"local LEAST_AGAIN = {LEAST_AGAIN}\n", f"local LEAST_AGAIN = {AGAIN}\n")
    scripts = variants(scripts, f"local LONG_TOKENS = {LONG_TOKENS}\n", f"local LONG_TOKENS = {LONG}\n")
    return variants(scripts, f"local USERS_TRACKED = {USERS_TRACKED}\n", f"local USERS_TRACKED = {USERS}\n")
