"""What token buckets lack, by the ledger: for buckets that shared state has forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from scheduling.core.admission.batch_account import REQUEST_ID
from scheduling.core.admission.budget import debts
from telemetry.models import LedgerEntry
from tenants.connections import own_connection

MAX_ROWS = 50_000
MAX_S = 3600.0  # how far back it looks: a bucket that takes longer to fill may begin too full


@own_connection
def bucket_debts(
    pool: str, budgets: Mapping[str, tuple[float, float]], before_s: float, now_s: float
) -> dict[str, float]:
    """Tokens that each bucket lacks at ``now_s`` [epoch s] by what ended before ``before_s``; those that lack none are
    left out. ``budgets``: entitlement -> (tokens/s, depth). Nobody lacks more than the depth: a bucket is overdrawn
    only by requests that used more than estimated, and they are not told apart here.
    """
    now = datetime.fromtimestamp(now_s, tz=UTC)
    longest_s = max((min(MAX_S, 2 * depth / rate) for rate, depth in budgets.values()), default=0.0)
    rows = (
        LedgerEntry.objects.filter(
            pool=pool,
            received_at__gte=now - timedelta(seconds=longest_s),
            done_at__lt=datetime.fromtimestamp(before_s, tz=UTC),
        )
        .exclude(outcome="refused")
        .exclude(request_id__startswith=REQUEST_ID)  # lines of batches, which no bucket pays for
        .order_by("-received_at")
        .values_list("entitlement", "received_at", "input_tokens", "output_tokens")[:MAX_ROWS]
    )
    return debts(((e, (now - at).total_seconds(), given + output) for e, at, given, output in rows), budgets)
