"""A snapshot with the rows of some of its tenants and entitlements: of thousands nobody reads all, each second.

Pure functions over the dictionaries of :mod:`telemetry.feed.snapshots`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import nlargest
from typing import Any

from telemetry.feed.history import entitlement_sums
from telemetry.feed.snapshots import Snapshot

ROWS = 200  # of tenants, and of entitlements, that a snapshot has where nobody asks for more
MOST_ROWS = 10_000  # that can be asked for
TABLES = ("tenants", "entitlements")

Row = Mapping[str, Any]
Names = Mapping[str, Collection[str]]  # by table


def _busy(row: Row) -> tuple[float, ...]:
    """What happens now, then what happened in the window, then what is reserved."""
    tokens = row["tokens_per_s"]
    return (
        row["waiting"] + row["running"],
        tokens.get("output", 0) + tokens.get("input", 0),
        _refused(row),
        row.get("concurrency", 0),
    )


def _refused(row: Row) -> float:
    return float(sum(row.get("refused", row.get("refusals", {})).values()))


def _violations(row: Row) -> float:
    return float(row.get("violations", row.get("slo", {}).get("violations", 0)))


ORDERS: Mapping[str, Callable[[Row], Any]] = {
    "busy": _busy,
    "waiting": lambda row: row["waiting"],
    "running": lambda row: row["running"],
    "refused": _refused,
    "violations": _violations,
    "debt": lambda row: row.get("debt", float("-inf")),
    "weight": lambda row: row.get("weight", float("-inf")),
}  # the most of which come first


def is_large(snapshot: Snapshot, most: int = ROWS) -> bool:
    """Whether a snapshot has more rows than ``most`` in one of its tables."""
    return any(len(snapshot[table]) > most for table in TABLES)


def chosen(snapshot: Snapshot, most: int = ROWS, order: str = "busy", tenant: str = "", search: str = "") -> Names:
    """The names of the rows to show, of each table at most ``most``.

    Args:
        order: one of :data:`ORDERS`.
        tenant: rows of this one only.
        search: rows only whose name or tenant contains this.
    """
    measure, text = ORDERS[order], search.lower()

    def first(rows: Mapping[str, Row]) -> frozenset[str]:
        names: Iterable[str] = rows
        if tenant or text:
            owners = ((name, row.get("tenant", name)) for name, row in rows.items())
            names = [
                n for n, of in owners if (not tenant or of == tenant) and (text in n.lower() or text in of.lower())
            ]
        return frozenset(nlargest(most, names, key=lambda name: measure(rows[name])))

    return {table: first(snapshot[table]) for table in TABLES}


def narrowed(snapshot: Snapshot, names: Names) -> Snapshot:
    """The snapshot with these rows. ``left_out`` says how many it lacks, ``rest`` what entitlements without a row have
    in sum, as in a point of the history. Everything above the rows stays."""
    rows = {table: {name: row for name, row in snapshot[table].items() if name in names[table]} for table in TABLES}
    left = {table: count for table in TABLES if (count := len(snapshot[table]) - len(rows[table]))}
    if not left:
        return snapshot
    out: Snapshot = {**snapshot, **rows, "left_out": left}
    kept = rows["entitlements"]
    if rest := entitlement_sums(row for name, row in snapshot["entitlements"].items() if name not in kept):
        out["rest"] = rest
    return out


def page(snapshot: Snapshot, most: int, order: str, tenant: str = "", search: str = "") -> Snapshot:
    """The snapshot with the rows that :func:`chosen` names."""
    if not tenant and not search and not is_large(snapshot, most):
        return snapshot
    return narrowed(snapshot, chosen(snapshot, most, order, tenant, search))
