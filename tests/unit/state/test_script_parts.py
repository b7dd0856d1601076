"""What a script is made of: of the files that scripts share only what it uses."""

from __future__ import annotations

import re
from pathlib import Path

from scheduling.state import script
from scheduling.state.script import load_scripts, needed_of

SHARED = (
    """-- about this file

-- about A and B,
-- in two lines
local A, B = 1, 2

local function one() return A end
""",
    """-- about that file

-- about two, which is more than one of those that are three
local function two()
  local inner = one()
  return inner
end

local function three() return B end
""",
)


def test_a_script_gets_what_it_uses_and_what_that_uses() -> None:
    assert needed_of(SHARED, "return 1 -- not two") == ""
    kept = needed_of(SHARED, "return two()")
    assert "local function one" in kept
    assert "-- about two" in kept
    assert "function three" not in kept, "a word in a comment is no use of it"
    assert kept.count("-- about A and B,\n-- in two lines\nlocal A") == 1, "a comment stays with what it is about"
    assert "file" not in kept
    assert kept.index("local function one") < kept.index("local function two")


def test_every_shared_file_is_read() -> None:
    """One that is not listed would be missing in silence where no script calls what it declares."""
    shared = Path(script.__file__).parent / "scripts" / "shared"
    assert sorted(script.SHARED) == sorted(path.stem for path in shared.glob("*.lua"))


def test_no_script_misses_a_function_that_others_share() -> None:
    """Whatever is called is declared above: a missing local would be a global, which a server refuses at run time."""
    for one in load_scripts().values():
        text = re.sub(r"--.*|'[^'\n]*'", "", one.source.decode())
        declared = {
            name
            for names in re.findall(r"\b(?:local(?: function)?|for|function\s*\w*)\s*\(?([\w, ]+)", text)
            for name in re.findall(r"\w+", names)
        }
        called = set(re.findall(r"(?<![.:\w])([a-z_]\w*)\(", text)) - {"function"}
        known = {"tonumber", "tostring", "type", "unpack", "select", "ipairs", "pairs", "if", "and", "or", "not", "in",
                 "while", "return", "until", "then", "elseif"}  # fmt: skip
        assert called <= declared | known, f"{one.name}.lua calls {called - declared - known}"
