"""What a TokenPool's status says of its replicas, between their being listed and their being backends."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kubernetes import catalog, replicas
from controlplane.kubernetes.catalog import CatalogReplica, CustomResource
from controlplane.kubernetes.discovery import ReplicaDiscovery
from controlplane.kubernetes.replicas import ClusterReplica
from tenants.models import Pool

POOL = CustomResource("TokenPool", "default", "llama", "u1", {"model": "llama", "replicas": {}})
GOOD, WRONG = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


class Cluster:
    """A catalog that takes what it is given, and engines that say what ``wrong`` has of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]) -> None:
        self.backends: list[CatalogReplica] = []
        self.told = 0
        self.discovery = ReplicaDiscovery(POOL, self._tell)

        async def look(_: ReplicaDiscovery, pool: Pool, new: list[ClusterReplica]) -> list[dict[str, int] | str]:
            return [wrong.get(one.url) or {"slots": 4} for one in new]

        async def gone(_: ReplicaDiscovery, pool: Pool, unlisted: list[CatalogReplica]) -> list[str]:
            return [one.backend for one in unlisted]

        monkeypatch.setattr(ReplicaDiscovery, "_look", look)
        monkeypatch.setattr(ReplicaDiscovery, "_gone", gone)
        monkeypatch.setattr(catalog, "catalog_replicas", lambda _: (Pool(slug="llama"), list(self.backends)))
        monkeypatch.setattr(catalog, "update_replicas", self._update)

    def _tell(self) -> None:
        self.told += 1

    def _update(self, resource: CustomResource, *, add: Any, remove: Any, **_: Any) -> dict[str, str]:
        self.backends = [one for one in self.backends if one.backend not in remove]
        self.backends += [CatalogReplica(one.name, one.url, False) for one in add]
        return {}

    def lists(self, *urls: str) -> list[ClusterReplica]:
        listed = [ClusterReplica(url[-6:-5], url, True) for url in urls]
        self.discovery._observe("", listed)
        return listed


async def test_a_replica_that_is_listed_is_not_called_found_before_it_is_a_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, {})
    one = cluster.discovery
    listed = cluster.lists(GOOD)
    assert (one.status(), one.problem()) == ({"found": 1, "ready": 0}, f"{GOOD}: it is being looked at")
    told = cluster.told
    await one._reconcile(listed)
    assert (one.status(), one.problem()) == ({"found": 1, "ready": 1}, "")
    assert cluster.told == told + 1, "its status is written anew"
    assert await one._reconcile(listed)
    assert cluster.told == told + 1, "and not again"


async def test_one_that_is_left_out_says_why_and_one_that_has_gone_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, {WRONG: "it serves 'other'"})
    one = cluster.discovery
    await one._reconcile(cluster.lists(GOOD, WRONG))
    assert (one.status(), one.problem()) == ({"found": 2, "ready": 1}, f"{WRONG}: it serves 'other'")
    await one._reconcile(cluster.lists(WRONG))
    assert one.status() == {"found": 1, "ready": 0}
    assert not cluster.backends
    await one._reconcile(cluster.lists(GOOD))
    assert (one.status(), one.problem()) == ({"found": 1, "ready": 1}, "")


async def test_of_more_replicas_than_a_pool_takes_the_rest_is_left_out_and_those_that_are_in_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "MOST_REPLICAS", 3)
    cluster = Cluster(monkeypatch, {})
    one = cluster.discovery
    many = [f"http://10.0.0.{number}:8000" for number in range(1, 8)]
    await one._reconcile(cluster.lists(*many[4:6]))
    cluster.lists(*many)
    await one._reconcile(one.listed or [])
    assert {backend.url for backend in cluster.backends} == {many[0], *many[4:6]}
    assert one.status() == {"found": 7, "ready": 3}
    assert one.problem() == "4 are left out: a pool has at most 3 replicas"
    cluster.lists(*many[:3])
    await one._reconcile(one.listed or [])
    assert (one.status(), one.problem()) == ({"found": 3, "ready": 3}, "")
