"""A snapshot of thousands of entitlements: which rows are sent, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.feed import rows, snapshots
from telemetry.feed.window import Window
from tests.support.telemetry_world import ENTITLEMENTS, NOW, entitlement, record, sample


def large(number: int = 500) -> snapshots.Snapshot:
    """``number`` entitlements of half as many tenants; the last three had a request."""
    entitlements = {f"e-{n:03d}": entitlement(f"e-{n:03d}", f"t-{n // 2:03d}") for n in range(number)}
    window = Window()
    for n in range(number - 3, number):
        window.add([record(n, entitlement=f"e-{n:03d}", tenant=f"t-{n // 2:03d}")], NOW)
    return snapshots.snapshot(sample(), window, entitlements, 1)


def test_the_busiest_rows_are_sent_and_the_others_are_counted_and_added_up() -> None:
    full = large()
    for n in range(400):
        full["entitlements"][f"e-{n:03d}"] |= {"kv_used": 10}
    seen = rows.page(full, 100, "busy")
    assert {table: len(seen[table]) for table in rows.TABLES} == {"tenants": 100, "entitlements": 100}
    assert seen["left_out"] == {"tenants": 150, "entitlements": 400}
    assert {"e-497", "e-498", "e-499"} <= seen["entitlements"].keys()
    assert {"t-248", "t-249"} <= seen["tenants"].keys()
    shown = sum(row["kv_used"] for row in seen["entitlements"].values())
    assert seen["rest"] == {"kv": 4000 - shown}
    above = full.keys() - set(rows.TABLES)
    assert {key: seen[key] for key in above} == {key: full[key] for key in above}


def test_a_pool_with_few_rows_is_sent_as_it_is() -> None:
    few = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    assert rows.page(few, rows.ROWS, "busy") is few


@pytest.mark.parametrize(
    ("order", "figures"),
    [
        ("debt", {"debt": 0.7}),
        ("weight", {"weight": 9e9}),
        ("refused", {"refused": {"queue": 5}}),
        ("violations", {"violations": 1}),
    ],
)
def test_rows_come_by_what_is_asked_for(order: str, figures: dict[str, Any]) -> None:
    full = large()
    full["entitlements"]["e-007"] |= figures
    assert "e-007" in rows.page(full, 1, order)["entitlements"]


def test_rows_are_found_by_name_and_tenant() -> None:
    full = large()
    assert rows.page(full, 10, "busy", search="E-00")["entitlements"].keys() == {f"e-00{n}" for n in range(10)}
    own = rows.page(full, 10, "busy", tenant="t-100")
    assert (own["tenants"].keys(), own["entitlements"].keys()) == ({"t-100"}, {"e-200", "e-201"})
    assert rows.page(full, 10, "busy", tenant="t-100", search="e-201")["entitlements"].keys() == {"e-201"}
