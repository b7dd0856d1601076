"""Resources of several namespaces that want the same row of the catalog."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kubernetes import catalog
from controlplane.kubernetes.catalog import CustomResource
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Backend, Owner, Pool, Tenant

pytestmark = pytest.mark.django_db

# Without closing the connection that holds the test's transaction.
reconcile, remove = catalog.reconcile.__wrapped__, catalog.remove.__wrapped__


def pool(namespace: str, name: str, *backends: str) -> CustomResource:
    listed = [{"name": one, "url": f"http://{namespace}-{one}:8000", "slots": 4, "kvTokens": 1000} for one in backends]
    return CustomResource("TokenPool", namespace, name, f"uid-{name}", {"model": name, "backends": listed})


def places() -> dict[str, tuple[str, str]]:
    return {row.slug: (row.pool.slug, row.url) for row in Backend.objects.select_related("pool")}


def faults(*resources: CustomResource) -> list[str]:
    said = reconcile(resources)
    return [said[one.uid] for one in resources]


def test_a_pool_does_not_take_a_backend_of_another_namespaces_pool() -> None:
    search, research = pool("search", "llama", "gpu-1"), pool("research", "mine", "gpu-1", "gpu-2")
    assert faults(search) == [""]
    before = places()
    for together in ([research], [search, research], [research, search]):
        said = reconcile(together)[research.uid]
        assert said.startswith("spec.backends: gpu-1 belongs to TokenPool search/llama: ")
    assert places() == before
    assert not Pool.objects.filter(slug="mine").exists()
    assert faults(search) == [""]


def test_a_pool_does_not_take_a_backend_that_a_person_gave_another_pool() -> None:
    ours = Pool(slug="ours", model="ours")
    services.save(actor=SYSTEM, instance=ours)
    services.save(actor=SYSTEM, instance=Backend(slug="gpu-1", pool=ours, url="http://h:1", slots=4, kv_tokens=1000))
    assert faults(pool("research", "mine", "gpu-1")) == [
        "spec.backends: gpu-1 belongs to pool ours: names of backends are unique over all pools"
    ]
    assert places() == {"gpu-1": ("ours", "http://h:1")}
    assert faults(pool("search", "ours", "gpu-1")) == [""], "its own pool's resource may"


def test_a_backend_moves_when_the_pool_that_had_it_has_let_it_go() -> None:
    assert faults(pool("search", "a-pool", "gpu-1", "gpu-2")) == [""]
    given, taken = pool("search", "a-pool", "gpu-2"), pool("search", "b-pool", "gpu-1")
    faults(given, taken)  # in one file
    assert faults(given, taken) == ["", ""]
    assert {name: of for name, (of, _) in places().items()} == {"gpu-1": "b-pool", "gpu-2": "a-pool"}


def test_of_two_new_pools_with_one_backend_the_first_has_it() -> None:
    first, second = pool("a", "first", "gpu-1"), pool("b", "second", "gpu-1")
    assert faults(second, first) == [
        "spec.backends: gpu-1 belongs to TokenPool a/first: names of backends are unique over all pools",
        "",
    ]
    assert places() == {"gpu-1": ("first", "http://a-gpu-1:8000")}


@pytest.mark.parametrize("more", [0, 1])
def test_of_two_new_resources_of_one_name_one_is_refused_at_once(more: int) -> None:
    """They come in one look, as after a start of the operator."""
    one, two = (CustomResource("Tenant", where, "twin", where, {"description": where}) for where in ("a", "b"))
    others = [CustomResource("Tenant", "a", f"other-{n}", f"other-{n}", {}) for n in range(more)]
    said = reconcile([two, one, *others])
    assert said.pop("b") == "the name twin belongs to Tenant a/twin: names are unique over all namespaces"
    assert set(said.values()) == {""}
    assert Tenant.objects.get(slug="twin").description == "a"
    assert Owner.objects.get(name="twin").namespace == "a"


@pytest.mark.parametrize("spec", [{"backends": None}, {"backends": {}}, {"backends": ["gpu-1"]}, {"backends": [{}]}])
def test_backends_that_cannot_be_read_are_a_fault_of_their_own_resource(spec: dict[str, Any]) -> None:
    broken = CustomResource("TokenPool", "research", "broken", "broken", {"model": "m"} | spec)
    assert faults(pool("search", "llama", "gpu-1"), broken)[0] == ""
    assert places()["gpu-1"][0] == "llama"
