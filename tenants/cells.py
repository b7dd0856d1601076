"""Values of a CSV that no spreadsheet runs."""

from __future__ import annotations

from typing import Any

# What a formula begins with; spreadsheets in Japanese and Chinese take the wide signs for the same.
FORMULA = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"


def plain(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, behind an apostrophe; a user's name is what a client sent."""
    return f"'{value}" if isinstance(value, str) and value and value[0] in FORMULA else value
