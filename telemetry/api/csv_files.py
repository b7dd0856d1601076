"""CSV as a download: its renderer, what ``csv`` writes to, and values that no spreadsheet runs."""

from __future__ import annotations

from typing import Any

from rest_framework.renderers import BaseRenderer


class CSVRenderer(BaseRenderer):
    """Chosen by ``format=csv``; rows are streamed by the view, so this renders errors only."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return f"{data.get('detail', data)}\n".encode()


class Line:
    """What ``csv`` writes to: keeps nothing, hands each line back."""

    def write(self, line: str) -> str:
        return line


def safe(value: Any) -> Any:
    """A spreadsheet would run a text that begins like a formula; a model's name is what a client sent."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def safe_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: safe(value) for name, value in row.items()}
