"""The past of what predictions were corrected by, and errors over time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.estimates import learned
from telemetry.estimates.drift import DriftUnavailable
from telemetry.ledger import writer
from telemetry.models import LearnedFactor
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db


class Store:
    """What the gateways put up, without Redis."""

    def __init__(self, **pools: dict[str, Any]) -> None:
        self.pools = pools
        self.available = True

    def load(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        if not self.available:
            raise DriftUnavailable("TimeoutError")
        return {name: self.pools[name] for name in names if name in self.pools}


def drift(**tenants: list[tuple[str, float, int]]) -> dict[str, Any]:
    """What a gateway shows: by tenant its factors, and one correction of its limit."""
    keys = ("category", "factor", "observed")
    return {
        "prior": [{"category": "code", "factor": 0.8, "tenants": 6}],
        "tenants": {
            name: {
                "learned": 9,
                "prompts": 5,
                "factors": [dict(zip(keys, one, strict=True)) for one in factors],
                "calibration": [{"source": "similar", "factor": 1.2, "observed": 512}],
            }
            for name, factors in tenants.items()
        },
    }


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    api.force_login(world.users[who])
    return api


def test_what_was_learned_is_kept_every_five_minutes_and_forgotten_with_the_ledger(world: worlds.World) -> None:
    store = Store(llama=drift(acme=[("code", 0.7, 12)]))
    assert learned.keep(store) == 3
    assert learned.keep(store) == 0, "it was kept a moment ago"
    LearnedFactor.objects.update(at=timezone.now() - timedelta(minutes=6))
    assert learned.keep(store) == 3
    LearnedFactor.objects.filter(pk__in=LearnedFactor.objects.values("pk")[:2]).update(
        at=timezone.now() - timedelta(days=31)
    )
    assert learned.purge(30) == 2


def test_whose_factors_are_kept_is_not_a_matter_of_who_sends_most(world: worlds.World) -> None:
    few = [("code", 1.0, 1)]
    many = [(f"c{n:02d}", 1.0, 10_000 + n) for n in range(20)]
    learned.keep(Store(llama=drift(globex=few, **{f"t{n:03d}": many for n in range(150)})))
    kept = list(LearnedFactor.objects.values_list("scope", "name", "category"))
    assert {("category", "", "code"), ("tenant", "globex", "code"), ("source", "globex", "similar")} < set(kept)
    assert len({name for _, name, _ in kept} - {""}) == learned.MAX_TENANTS
    assert len([1 for _, name, _ in kept if name == "t000"]) == learned.MAX_PER_TENANT
    assert ("tenant", "t000", "c19") in kept
    assert ("tenant", "t000", "c00") not in kept


def test_without_redis_nothing_is_kept_and_nothing_fails(world: worlds.World) -> None:
    store = Store()
    store.available = False
    assert learned.keep(store) == 0


def test_errors_are_drawn_over_time_and_factors_as_lines_within_sight(world: worlds.World) -> None:
    base = datetime(2026, 3, 1, 12, tzinfo=UTC)
    writer.write(
        [
            record(
                n, received_s=base.timestamp() + 60 * (n // 2), tenant="globex" if n % 2 else "acme",
                output_tokens=80 if n % 2 else 40, output_tokens_est=40.0, output_tokens_p90=60.0, output_rank=0.5,
            )
            for n in range(4)
        ]
    )  # fmt: skip
    LearnedFactor.objects.bulk_create(
        LearnedFactor(
            pool="llama", at=base + timedelta(minutes=minute), scope="tenant", name=tenant, category="code",
            factor=1.0 + minute / 10, observed=minute,
        )
        for minute in (0, 5)
        for tenant in ("acme", "globex")
    )  # fmt: skip
    path = "/api/v1/estimates/history?from=2026-03-01T11:30:00Z&to=2026-03-01T13:00:00Z"
    seen = client(world, "olga").get(path).json()
    assert seen["step"] == "minute"
    assert [(p["requests"], p["ratio"], p["mae"], p["coverage90"]) for p in seen["points"]] == [(2, 1.5, 20.0, 0.5)] * 2
    assert {line["name"] for line in seen["factors"]} == {"acme", "globex"}
    start = int(base.timestamp())
    assert seen["factors"][0]["points"] == [[start, 1.0], [start + 300, 1.5]]
    own = client(world, "alice").get(path).json()
    assert [p["ratio"] for p in own["points"]] == [1.0, 1.0]
    assert {line["name"] for line in own["factors"]} == {"acme"}
    assert client(world, "olga").get(path + "&pool=none").json()["points"] == []


@pytest.mark.parametrize(("hours", "step"), [(1, "minute"), (4, "hour"), (24 * 8, "day")])
def test_a_longer_stretch_is_drawn_more_coarsely(hours: int, step: str) -> None:
    now = timezone.now()
    assert learned.steps(now - timedelta(hours=hours), now)[0] == step


def test_a_long_line_is_thinned_and_keeps_its_newest_point(world: worlds.World) -> None:
    start = timezone.now() - timedelta(days=2)
    LearnedFactor.objects.bulk_create(
        LearnedFactor(
            pool="llama", at=start + timedelta(minutes=n), scope="category", category="code", factor=float(n),
            observed=n,
        )
        for n in range(1000)
    )  # fmt: skip
    (line,) = learned.factors(LearnedFactor.objects.all())
    assert len(line["points"]) <= learned.POINTS
    assert line["points"][-1][1] == 999.0
