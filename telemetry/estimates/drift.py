"""Predictions against what happened: errors and coverage from the ledger, what gateways have learned from Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import redis
from django.db.models import Avg, Count, F, FloatField, Q, QuerySet
from django.db.models.functions import Abs, Cast

from scheduling.state.blocking import blocking_client
from scheduling.state.history import ENTRIES_KEPT, drift_key, history_key
from telemetry.models import LedgerEntry

GROUPS = {"category": "category", "tenant": "tenant", "model": "model", "source": "estimate_source"}
STEPS = 10  # of the calibration curve
MAX_GROUPS = 200  # rows of one grouping, the busiest first
MAX_FACTORS = 1_000  # of a pool, the most taught


class DriftUnavailable(Exception):
    """Redis does not answer."""


def judged(rows: QuerySet[LedgerEntry]) -> QuerySet[LedgerEntry]:
    """Those of the rows that were predicted and ran to their end."""
    return rows.filter(outcome="completed", output_rank__isnull=False)


def errors(rows: QuerySet[LedgerEntry], group: str | None = None) -> list[dict[str, Any]]:
    """Errors [tokens] of judged rows, whole or by one of :data:`GROUPS`, the busiest group first.

    ``error``: mean of actual - expected, above 0 where answers were longer; ``coverage90``: share within the limit of
    90 %.
    """
    off = Cast(F("output_tokens"), FloatField()) - F("output_tokens_est")
    figures = {
        "requests": Count("id"),
        "actual": Avg("output_tokens"),
        "expected": Avg("output_tokens_est"),
        "mae": Avg(Abs(off)),
        "error": Avg(off),
        "covered": Count("id", filter=Q(output_tokens__lte=F("output_tokens_p90"))),
        "input_mae": Avg(Abs(Cast(F("input_tokens"), FloatField()) - F("input_tokens_est"))),
    }
    if group is None:
        groups: Any = [rows.aggregate(**figures)]
    else:
        groups = rows.order_by().values(name=F(GROUPS[group])).annotate(**figures)
        groups = groups.order_by("-requests")[:MAX_GROUPS]
    return [_row(row) for row in groups if row["requests"]]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    covered, requests = row.pop("covered"), row["requests"]
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    return rounded | {"coverage90": round(covered / requests, 4)}


def calibration(rows: QuerySet[LedgerEntry]) -> list[dict[str, float]]:
    """For every level, the share of answers that were within that quantile of their distribution: the diagonal, where
    predictions are right."""
    levels = [step / STEPS for step in range(1, STEPS)]
    counts = rows.aggregate(
        total=Count("id"),
        **{f"upto{number}": Count("id", filter=Q(output_rank__lte=level)) for number, level in enumerate(levels)},
    )
    total = counts["total"]
    if not total:
        return []
    return [{"level": level, "share": round(counts[f"upto{number}"] / total, 4)} for number, level in enumerate(levels)]


class DriftStore:
    """What the gateways have learned, per pool. Blocking, with short limits; for threads of their own."""

    def __init__(self, url: str) -> None:
        self._redis = blocking_client(url)

    def load(self, pools: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By pool, those with a report within the last minutes. Raises :class:`DriftUnavailable`."""
        names = list(pools)
        if not names:
            return {}
        try:
            texts = self._redis.mget([drift_key(name) for name in names])
        except redis.RedisError as error:
            raise DriftUnavailable(type(error).__name__) from error
        return {name: msgspec.json.decode(text) for name, text in zip(names, texts, strict=True) if text is not None}

    def reset(self, pool: str, category: str) -> None:
        """Tells every gateway to forget the drift of a category, or (empty) of all.

        Raises :class:`DriftUnavailable`.
        """
        try:
            self._redis.xadd(history_key(pool), {"r": category}, maxlen=ENTRIES_KEPT, approximate=True)
        except redis.RedisError as error:
            raise DriftUnavailable(type(error).__name__) from error


def visible(drift: dict[str, Any], tenants: frozenset[str] | None) -> dict[str, Any] | None:
    """What of a pool's drift a viewer may see: members their own tenants' counts, factors and calibration, and nothing
    that others' requests change; operators (``tenants`` None) all of it, with what the pool tells of all tenants
    together (scope ``category``, ``observed`` in tenants). None where there is nothing for the viewer."""
    shares: dict[str, Any] = drift.get("tenants", {})
    if tenants is not None:
        shares = {name: share for name, share in shares.items() if name in tenants}
        if not shares:
            return None
    factors = [
        {"scope": "tenant", "name": name, **factor} for name, share in shares.items() for factor in share["factors"]
    ]
    calibration = [{"tenant": name, **one} for name, share in shares.items() for one in share["calibration"]]
    if tenants is None:
        learned, prompts = drift.get("learned", 0), drift.get("prompts", 0)
        own = [
            {
                "scope": "category",
                "name": "",
                "category": c["category"],
                "factor": c["factor"],
                "observed": c["tenants"],
            }
            for c in drift.get("prior", ())
        ]
    else:
        learned, prompts = (sum(share[name] for share in shares.values()) for name in ("learned", "prompts"))
        own = []
    factors.sort(key=lambda f: -f["observed"])
    calibration.sort(key=lambda c: -c["observed"])
    return {
        "predictor": drift.get("predictor", ""),
        "learned": learned,
        "prompts": prompts,
        "factors": (own + factors)[:MAX_FACTORS],
        "calibration": calibration[:MAX_FACTORS],
    }
