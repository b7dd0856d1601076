"""Values of a CSV that no spreadsheet runs."""

from __future__ import annotations

import re
from typing import Any

# What a formula begins with; spreadsheets in Japanese and Chinese take the wide signs for the same.
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
_FORMULA = re.compile(rf"[{_SIGNS}\t\r\n]")
# Where a comma is the decimal sign, a spreadsheet ends the cells of this file at semicolons, quotes or not, and takes
# quotes at the beginning of one away.
_CELL_INSIDE = re.compile(rf"(?<=[;\t\r\n])(?=\"*[{_SIGNS}])")


def plain(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, behind an apostrophe, and so what it would take for a cell
    with one inside; a user's name is what a client sent."""
    if not isinstance(value, str) or not value:
        return value
    return _CELL_INSIDE.sub("'", f"'{value}" if _FORMULA.match(value) else value)
