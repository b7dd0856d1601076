"""CSV as a download: its renderer, what ``csv`` writes to, and values that no spreadsheet runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from rest_framework.renderers import JSONRenderer

from telemetry.api.sent_files import SentFile, send
from tenants.csv_cells import plain

MEDIA_TYPE = "text/csv; charset=utf-8"
_LINES = 500  # of a piece


class FileRenderer(JSONRenderer):
    """Of a form of answer whose rows the view streams, so that this renders errors only: as JSON, as everywhere."""

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        if renderer_context:
            renderer_context["response"]["Content-Type"] = JSONRenderer.media_type
        rendered: bytes = super().render(data, JSONRenderer.media_type, renderer_context)
        return rendered


class CSVRenderer(FileRenderer):
    """Chosen by ``format=csv``."""

    media_type = "text/csv"
    format = "csv"


class Line:
    """What ``csv`` writes to: keeps nothing, hands each line back."""

    def write(self, line: str) -> str:
        return line


def safe_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in row.items()}


def send_rows(user: object, columns: Sequence[str], rows: Iterable[dict[str, Any]], name: str) -> SentFile:
    """Rows as a file of this name."""

    def pieces() -> Iterator[bytes]:
        writer = csv.DictWriter(Line(), fieldnames=columns)
        lines = iter(rows)
        yield str(writer.writeheader()).encode()
        while piece := "".join(str(writer.writerow(safe_row(row))) for row in islice(lines, _LINES)):
            yield piece.encode()

    return send(user, pieces(), MEDIA_TYPE, name)
