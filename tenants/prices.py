"""Prices and budgets as the core knows them."""

from __future__ import annotations

from collections import defaultdict

from scheduling.core.ledger.money import BudgetSpec, RateSpec, micros
from tenants.models import Budget, Price


def rates() -> dict[str, tuple[RateSpec, ...]]:
    """All of them, by pool."""
    rows = Price.objects.select_related("pool").order_by("pool_id", "model", "valid_from")
    prices = list(rows)
    by_model: dict[str, list[RateSpec]] = defaultdict(list)
    for price, following in zip(prices, [*prices[1:], None], strict=False):
        same = following is not None and (following.pool_id, following.model) == (price.pool_id, price.model)
        cached = price.per_million_input if price.per_million_cached is None else price.per_million_cached
        by_model[price.pool.slug].append(
            RateSpec(
                pool=price.pool.slug,
                model=price.model,
                since_s=price.valid_from.timestamp(),
                until_s=following.valid_from.timestamp() if same and following is not None else None,
                currency=price.currency,
                per_input=micros(price.per_million_input),
                per_cached=micros(cached),
                per_output=micros(price.per_million_output),
                per_gpu_us=micros(price.per_gpu_second),
                slots_per_gpu=price.slots_per_gpu,
                per_reserved_used_us=micros(price.per_reserved_used_second),
                per_reserved_idle_us=micros(price.per_reserved_idle_second),
            )
        )
    return {pool: tuple(specs) for pool, specs in by_model.items()}


def budgets() -> dict[str, tuple[BudgetSpec, ...]]:
    """All of them, by tenant."""
    by_tenant: dict[str, tuple[BudgetSpec, ...]] = {}
    for row in Budget.objects.select_related("tenant"):
        tenant = row.tenant.slug
        by_tenant[tenant] = (*by_tenant.get(tenant, ()), budget_spec(row))
    return by_tenant


def budget_spec(row: Budget) -> BudgetSpec:
    return BudgetSpec(
        tenant=row.tenant.slug,
        scope=row.scope,
        name=row.name,
        currency=row.currency,
        soft=None if row.soft_amount is None else micros(row.soft_amount) * 1_000_000,
        hard=None if row.hard_amount is None else micros(row.hard_amount) * 1_000_000,
        alert_at=tuple(row.alert_at),
    )
