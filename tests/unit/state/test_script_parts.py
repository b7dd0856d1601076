"""What a script is made of: of the files that scripts share only what it uses."""

from __future__ import annotations

import re
from pathlib import Path

from scheduling.state import script
from scheduling.state.lua_text import written_out
from scheduling.state.script import enclosed, load_scripts, needed_of

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
    assert needed_of(SHARED, "return 1 -- not two") == ("", "return 1 -- not two")
    assert needed_of(SHARED, "return 'two'")[0] == "", "a word in a string is no use of it"
    kept, _ = needed_of(SHARED, "return two()")
    assert "local function one" in kept
    assert "-- about two" in kept
    assert "function three" not in kept, "a word in a comment is no use of it"
    assert kept.count("-- about A and B,\n-- in two lines\nlocal A") == 1, "a comment stays with what it is about"
    assert "file" not in kept
    assert kept.index("local function one") < kept.index("local function two")


def test_a_function_that_is_seldom_entered_is_made_then_with_all_that_only_it_uses() -> None:
    rarely = "local function rarely(now)\n  return one() + two() + now\nend\n"
    kept, _ = needed_of((*SHARED, rarely), "if ARGV[1] then return rarely(1) end\nreturn A", (("rarely",),))
    assert kept.count("local function rarely(") == 2, "an outer one, which makes all of it when it is entered"
    inside = kept[kept.index("local function rarely(...)") :]
    assert "local function one" in inside
    assert "local function two" in inside
    assert kept.index("local A, B = 1, 2") < kept.index("local function rarely(...)"), "a variable is one for all"
    assert inside.rstrip().endswith("  rarely = made\n  return made(...)\nend"), "made once"
    often, _ = needed_of((*SHARED, rarely), "return rarely(one())", (("rarely",),))
    assert often.index("local function one") < often.index("local function rarely(...)"), "others use it as well"
    assert "..." not in needed_of((*SHARED, rarely), "return rarely(two())", (("rarely",),))[0], "nothing is its own"


def test_functions_that_are_seldom_entered_together_are_made_together() -> None:
    seldom = "local function rare(n)\n  return two() + n\nend\n\nlocal function odd()\n  return rare(B)\nend\n"
    row = (("rare", "odd"),)
    kept, body = needed_of((*SHARED, seldom), "if ARGV[1] then return rare(1) end\nreturn odd()", row)
    assert body == "if ARGV[1] then return with_rare().rare(1) end\nreturn with_rare().odd()"
    made = kept[kept.index("function with_rare()") :]
    assert kept.index("local with_rare_now, with_rare\n") < kept.index("function with_rare()")
    assert "local function two" in made
    assert "return rare(B)" in made, "beside each other they are called as they are"
    assert "with_rare_now = {rare=rare, odd=odd}" in made
    alone, body = needed_of((*SHARED, seldom), "return odd()", row)
    assert body == "return odd()"
    assert "with_rare" not in alone


def test_what_is_known_is_written_where_it_is_used() -> None:
    text = (
        "local LIMIT = 7\nlocal HEAD = 'v' .. LIMIT .. ' '\nlocal P = KEYS[1]\nlocal META = P .. 'meta'\n"
        "local SELDOM = P .. 'seldom'  -- a key\nlocal function f(x) return call(META, x) end\n"
    )
    assert written_out(text + "return f(HEAD .. 'LIMIT' .. x.LIMIT, SELDOM) -- LIMIT\n") == (
        "local P = KEYS[1]\nlocal META = P .. 'meta'\nlocal function f(x) return call(META, x) end\n"
        "return f('v7 ' .. 'LIMIT' .. x.LIMIT, (P .. 'seldom')) -- LIMIT\n"
    )


def test_a_function_of_one_expression_is_written_where_it_is_called_unless_work_were_done_twice() -> None:
    twice = "local function twice(n) return n + n end\n"
    once = "local function once(a, b) return a and twice(b) end\n"
    assert written_out(f"{twice}{once}return once(g(1, ')'), x[i]) + twice('2')\n") == (
        "return ((g(1, ')')) and (x[i] + x[i])) + ('2' + '2')\n"
    )
    assert written_out(f"{twice}return twice(g(1))\n") == f"{twice}return twice(g(1))\n"
    own = "local told = 1\nlocal function used(x) return told + x end\nreturn used(2)\n"
    assert written_out(own) == own, "what it uses may be another variable there"
    assert written_out(f"{twice}return twice\n") == f"{twice}return twice\n"


def test_functions_of_a_script_are_made_inside_one_that_encloses_them() -> None:
    """A function copies what it uses of the variables outside; beside them it would look for each of them."""
    text = enclosed("local clock\n", "local A = 1\n\n-- about one\nlocal function one() return A end\n", "return one()")
    outside, _, inside = text.partition("return (function()\n")
    assert "local A = 1" in outside
    assert "-- about one\nlocal function one" in inside
    assert inside.rstrip().endswith("return one()\nend)()")
    assert "(function()" not in enclosed("local clock\n", "local A = 1\n", "return A")
    for name, made in load_scripts().items():
        before = made.source.decode().partition("return (function()\n")[0].partition("local P = ")[2]
        assert "function" not in before, f"{name}: beside the variables outside, not inside"


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
        known = {"tonumber", "tostring", "type", "unpack", "pcall", "select", "ipairs", "pairs", "if", "and", "or",
                 "not", "in", "while", "return", "until", "then", "elseif"}  # fmt: skip
        assert called <= declared | known, f"{one.name}.lua calls {called - declared - known}"
