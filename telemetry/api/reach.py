"""How far back one page of the ledger is searched, so that filters which nothing matches are answered soon as well.

One filter that has an index finds its rows wherever they are, and needs no end. Of several, or of one without an index,
so many candidates are looked at; a page that is not full by then tells how far it got, and its ``next`` goes on there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from rest_framework.pagination import Cursor
from rest_framework.request import Request
from rest_framework.response import Response

from telemetry.ledger.sampling import Reach
from telemetry.models import LedgerEntry
from tenants.api import inputs

CANDIDATES = 20_000  # rows that an index names: they lie scattered
NEIGHBOURS = 200_000  # rows in the order in which they were written
INDEXED = ("tenant", "pool", "entitlement", "key_id", "user")  # each followed by received_at


def reach_of(
    visible_rows: QuerySet[LedgerEntry], tenants: frozenset[str] | None, filters: Mapping[str, Any]
) -> Reach | None:
    """The moment back to which a page is searched; None: to the ledger's beginning.

    Args:
        visible_rows: the rows that the user may see, in the time that was asked for.
        tenants: whose rows these are; None: everybody's.
        filters: what else has to hold, by column.
    """
    given = dict(filters)
    if "request_id" in given:
        return None  # whoever looks for one wants it wherever it is
    alone = given.keys() - ({"outcome"} if "reason" in given else set())
    if len(alone) + (tenants is not None) <= 1 and alone <= {*INDEXED, "outcome", "reason"}:
        return None
    ways: list[list[dict[str, Any]]] = [[{name: given[name]}] for name in INDEXED if name in given]
    if "reason" in given:
        ways.append([{"outcome": given["outcome"], "reason": given["reason"]}])
    if tenants is None:
        ways.append([{}])
    elif "tenant" not in given:
        ways.append([{"tenant": name} for name in sorted(tenants)])
    furthest: Reach | None = None
    for way in ways:
        most = CANDIDATES if way[0] else NEIGHBOURS
        marks = [_mark(visible_rows.filter(**each), most // len(way)) for each in way]
        ends = [mark for mark in marks if mark is not None]
        if not ends:
            return None  # so few that all of them are looked at
        if furthest is None or max(ends) < furthest.at:
            furthest = Reach(max(ends), most)
    return furthest


def _mark(rows: QuerySet[LedgerEntry], count: int) -> datetime | None:
    """When the ``count``-th newest was received; None where there are not so many."""
    return rows.order_by("-received_at").values_list("received_at", flat=True)[count : count + 1].first()


class NewestFirst(inputs.NewestFirst):
    """Pages that stay right while new requests come in, and that end where the search ended."""

    ordering = ("-received_at", "-id")

    def __init__(self) -> None:
        self.ended: datetime | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        """``view.searched_to(before)`` tells how far back a page is searched that begins before a moment."""
        cursor = self.decode_cursor(request)
        end = None
        if cursor is None or not cursor.reverse:
            end = view.searched_to(cursor.position if cursor else None)
            if end is not None:
                queryset = queryset.filter(received_at__gte=end)
        page: list[Any] | None = super().paginate_queryset(queryset, request, view)
        if end is not None and not self.has_next:  # a full page says by its last row how far it got
            self.ended = end
        return page

    def get_next_link(self) -> str | None:
        if self.ended is None:
            return super().get_next_link()
        return self.encode_cursor(Cursor(offset=0, reverse=False, position=str(self.ended)))  # type: ignore[arg-type]

    def get_paginated_response(self, data: Any) -> Response:
        answer = super().get_paginated_response(data)
        answer.data["searched_to"] = self.ended
        return answer

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        described = super().get_paginated_response_schema(schema)
        described["properties"]["searched_to"] = {
            "type": "string",
            "format": "date-time",
            "nullable": True,
            "description": "Older requests were not searched: `next` goes on there. Null: the page is full, or the "
            "ledger was searched to its beginning.",
        }
        return described
