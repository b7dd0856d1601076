"""Durations of ledger rows [s] as expressions of the database, computed by it rather than by Python functions in it."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, F, FloatField, Func, Value, When
from django.db.models.functions import Coalesce


class Between(Func):
    """Seconds from one moment to another; null where either is."""

    arity = 2
    output_field = FloatField()
    template = "EXTRACT(EPOCH FROM (%(expressions)s))::float8"  # numeric otherwise: a Decimal for each row
    arg_joiner = " - "

    def __init__(self, begin: Any, end: Any) -> None:
        super().__init__(end, begin)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # SQLite's own function is written in C; Django's difference of times calls Python for each row.
        end, begin = self.source_expressions
        sql_end, of_end = compiler.compile(end)
        sql_begin, of_begin = compiler.compile(begin)
        return f"((julianday({sql_end}) - julianday({sql_begin})) * 86400.0)", [*of_end, *of_begin]


class Epoch(Func):
    """A moment as seconds since 1970."""

    arity = 1
    output_field = FloatField()
    template = "EXTRACT(EPOCH FROM %(expressions)s)::float8"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        sql, parameters = compiler.compile(self.source_expressions[0])
        return f"((julianday({sql}) - 2440587.5) * 86400.0)", parameters


# by the names under which they are asked for
SPANS: dict[str, Any] = {
    "waited": Case(  # LedgerRecord.waited_s
        When(queued_at=None, granted_at__isnull=False, then=Value(0.0)),
        default=Between(F("queued_at"), Coalesce(F("granted_at"), F("done_at"))) - F("ran_before_s"),
        output_field=FloatField(),
    ),
    "ttft": Between(F("received_at"), F("first_token_at")),
    "total": Between(F("received_at"), F("done_at")),
}
