"""Parquet has the figures of the CSV to the last decimal, with types, and says what to install where it cannot."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pytest_django import DjangoDbBlocker
from rest_framework.test import APIClient

from telemetry.api import parquet_files
from telemetry.ledger import rollup, statement
from tests.support import worlds
from tests.unit.telemetry.test_statements import _month

pytestmark = pytest.mark.django_db
MONTH = "month=2026-10"
SPAN = "from=2026-10-01T00:00:00Z&to=2026-11-01T00:00:00Z"


@pytest.fixture(scope="module")
def kept(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[worlds.World]:
    with worlds.kept(django_db_blocker, lambda world: _month(world, 300), lambda _: rollup.roll_up()) as world:
        yield world


@pytest.fixture
def api(kept: worlds.World) -> APIClient:
    client = APIClient()
    client.force_login(copy.deepcopy(kept.users["adam"]))
    return client


def body(api: APIClient, path: str) -> bytes:
    answer: Any = api.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return b"".join(answer.streaming_content)


def both(api: APIClient, path: str, csv_format: str, parquet_format: str) -> tuple[list[dict[str, str]], pa.Table]:
    text = body(api, f"{path}&format={csv_format}").decode()
    table = pq.read_table(io.BytesIO(body(api, f"{path}&format={parquet_format}")))
    return list(csv.DictReader(io.StringIO(text))), table


def same(rows: list[dict[str, str]], table: pa.Table) -> bool:
    """Whether each value of the file is the one of the CSV."""
    if list(rows[0]) != table.column_names or len(rows) != table.num_rows:
        return False
    return all(
        _as_csv(value) == _number(row[name], value)
        for row, typed in zip(rows, table.to_pylist(), strict=True)
        for name, value in typed.items()
    )


def _as_csv(value: Any) -> Any:
    return "" if value is None else value


def _number(text: str, value: Any) -> Any:
    match value:
        case Decimal():
            return Decimal(text)
        case datetime():
            return datetime.fromisoformat(text)
        case int() | float():
            return type(value)(text)
        case _:
            return text


@pytest.mark.parametrize(
    ("path", "csv_format", "parquet_format", "amounts"),
    [
        (f"statements?{MONTH}", "csv", "parquet", ("amount", "slot_seconds")),
        (f"statements?{MONTH}", "focus", "focus-parquet", ("BilledCost", "PricingQuantity")),
        (f"usage?group_by=tenant,model,day&{SPAN}", "csv", "parquet", ("cost", "slot_s")),
    ],
)
def test_the_file_has_the_figures_of_the_csv_and_their_exact_sum(
    api: APIClient, path: str, csv_format: str, parquet_format: str, amounts: tuple[str, ...]
) -> None:
    rows, table = both(api, path, csv_format, parquet_format)
    assert len(rows) > 10
    assert same(rows, table)
    for name in amounts:
        assert table.schema.field(name).type == pa.decimal128(38, 18)
        exact = sum((Decimal(row[name]) for row in rows), Decimal(0))
        assert sum((value.as_py() for value in table[name]), Decimal(0)) == exact != 0


def test_a_file_with_one_figure_changed_is_not_the_same(api: APIClient) -> None:
    rows, table = both(api, f"statements?{MONTH}", "csv", "parquet")
    rows[3]["amount"] = str(Decimal(rows[3]["amount"]) + Decimal("1e-18"))
    assert not same(rows, table)


def test_the_file_has_the_total_of_the_page(api: APIClient) -> None:
    (total,) = api.get(f"/api/v1/statements?{MONTH}").json()["totals"]
    table = pq.read_table(io.BytesIO(body(api, f"statements?{MONTH}&format=parquet")))
    sums = sum((value.as_py() for value in table["amount"]), Decimal(0))
    assert abs(sums - Decimal(total["amount"])) < Decimal("1e-15")  # lines are rounded to 18 places, the total is not


def test_times_are_moments_and_counts_are_whole_numbers(api: APIClient) -> None:
    table = pq.read_table(io.BytesIO(body(api, f"statements?{MONTH}&format=parquet")))
    assert table.schema.field("requests").type == pa.int64()
    assert {value.as_py() for value in table["priced_from"]} <= {
        None, datetime(2026, 9, 22, tzinfo=UTC), datetime(2026, 10, 12, 7, tzinfo=UTC),
        datetime(2026, 10, 21, tzinfo=UTC),
    }  # fmt: skip
    assert set(statement.COLUMN_KINDS) < set(table.column_names)


def test_many_rows_are_written_group_by_group() -> None:
    rows = ({"name": str(number), "amount": f"0.{number:018d}"} for number in range(2 * parquet_files.ROWS + 1))
    answer = parquet_files.send_rows("anna", ["name", "amount"], {"amount": "amount"}, rows, "x.parquet")
    file = pq.ParquetFile(io.BytesIO(answer.getvalue()))
    assert file.num_row_groups == 3
    assert file.read()["amount"][-1].as_py() == Decimal(2 * parquet_files.ROWS).scaleb(-18)


def test_an_empty_month_is_a_file_with_columns_and_no_rows(api: APIClient) -> None:
    table = pq.read_table(io.BytesIO(body(api, "statements?month=2026-08&format=parquet")))
    assert (table.num_rows, tuple(table.column_names)) == (0, statement.COLUMNS)


@pytest.mark.parametrize(
    "path", [f"statements?{MONTH}&format=parquet", f"statements?{MONTH}&format=focus-parquet", "usage?format=parquet"]
)
def test_without_the_library_the_answer_says_what_to_install(
    api: APIClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "there", lambda: False)
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 400
    assert "quartermaster[parquet]" in answer.content.decode()
