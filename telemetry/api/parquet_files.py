"""Parquet as a download: the rows of the CSV with types, row group by row group, so that no file is held in memory.

Amounts are decimals of 18 places and times are moments of UTC; nothing is rounded, and nothing is a float that was an
exact number. ``pyarrow`` writes it and is an optional part (``quartermaster[parquet]``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from typing import Any

from rest_framework.serializers import ValidationError

from telemetry.api.csv_files import FileRenderer
from telemetry.api.sent_files import SentFile, send

MEDIA_TYPE = "application/vnd.apache.parquet"
ROWS = 5_000  # of a row group: what is held at a time
DIGITS, PLACES = 38, 18  # of an amount; those of `amount` in the core
MISSING = (
    "This installation cannot write Parquet. An operator installs `quartermaster[parquet]` (make extras, or the image "
    "built with EXTRAS=yes). CSV has the same figures."
)


class ParquetRenderer(FileRenderer):
    """Chosen by ``format=parquet``."""

    media_type = MEDIA_TYPE
    format = "parquet"


class FocusParquetRenderer(ParquetRenderer):
    """Chosen by ``format=focus-parquet``."""

    media_type = "application/x-focus+parquet"
    format = "focus-parquet"


def there() -> bool:
    """Whether the library is installed."""
    return find_spec("pyarrow") is not None


class _Pieces:
    """What ``pyarrow`` writes to: keeps what was written since it was last emptied."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def send_rows(
    user: object, columns: Sequence[str], kinds: dict[str, str], rows: Iterable[dict[str, Any]], name: str
) -> SentFile:
    """Rows as a file of this name. ``kinds`` says which columns are ``amount``, ``count``, ``time`` or ``figure`` (a
    float); the others are texts.

    Raises:
        ValidationError: the library is not installed.
    """
    if not there():
        raise ValidationError({"format": MISSING})
    import pyarrow as pa  # 170 MB that few installations have
    import pyarrow.parquet as pq

    types = {
        "amount": pa.decimal128(DIGITS, PLACES),
        "count": pa.int64(),
        "figure": pa.float64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    schema = pa.schema([(column, types.get(kinds.get(column, ""), pa.string())) for column in columns])

    def pieces() -> Iterator[bytes]:
        sink, lines = _Pieces(), iter(rows)
        with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd") as writer:
            while group := list(islice(lines, ROWS)):
                taken = [{column: _typed(row[column], kinds.get(column)) for column in columns} for row in group]
                writer.write_table(pa.Table.from_pylist(taken, schema=schema))
                yield sink.take()
        yield sink.take()

    return send(user, pieces(), MEDIA_TYPE, name)


def _typed(value: Any, kind: str | None) -> Any:
    """The value in the column's type; an empty one is null unless the column is text."""
    if kind is None:
        return str(value)
    if value is None or value == "":
        return None
    match kind:
        case "amount":
            return Decimal(str(value))
        case "count":
            return int(value)
        case "time":
            return datetime.fromisoformat(value)
        case _:
            return float(value)
