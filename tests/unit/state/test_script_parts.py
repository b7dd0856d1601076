"""What a script is made of: of the shared prelude only what it uses."""

from __future__ import annotations

import re

from scheduling.state.script import load_scripts, needed_of

PRELUDE = """-- about A and B
local A, B = 1, 2

local function one() return A end

-- about two
local function two()
  local inner = one()
  return inner
end

local function three() return B end
"""


def test_a_script_gets_what_it_uses_and_what_that_uses() -> None:
    assert "function" not in needed_of(PRELUDE, "return 1")
    kept = needed_of(PRELUDE, "return two()")
    assert "local function one" in kept
    assert "-- about two" in kept
    assert "three" not in kept
    assert kept.index("local function one") < kept.index("local function two")


def test_no_script_misses_a_function_of_the_prelude() -> None:
    """Whatever is called is declared above: a missing local would be a global, which a server refuses at run time."""
    for script in load_scripts().values():
        text = re.sub(r"--.*|'[^'\n]*'", "", script.source.decode())
        declared = {
            name
            for names in re.findall(r"\b(?:local(?: function)?|for|function\s*\w*)\s*\(?([\w, ]+)", text)
            for name in re.findall(r"\w+", names)
        }
        called = set(re.findall(r"(?<![.:\w])([a-z_]\w*)\(", text)) - {"function"}
        known = {"tonumber", "tostring", "type", "unpack", "select", "ipairs", "pairs", "if", "and", "or", "not", "in",
                 "while", "return", "until", "then", "elseif"}  # fmt: skip
        assert called <= declared | known, f"{script.name}.lua calls {called - declared - known}"
