"""The operator makes a pending lease anew once there is room for it, and not again for the same room."""

from __future__ import annotations

from typing import Any

from controlplane.kubernetes.catalog import Snapshot
from controlplane.kubernetes.leases import Reservation
from controlplane.kubernetes.operator import Operator
from scheduling.core.capacity.pool import Amounts
from tests.unit.kubernetes.test_leases import OFFERED, lease


class Calls:
    """What the operator asked of the API."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.deleted: list[tuple[str, dict[str, str]]] = []

    async def create(self, path: str, body: dict[str, Any]) -> bool:
        self.created.append(body["metadata"]["name"])
        return True

    async def delete(self, path: str, **as_it_is: str) -> None:
        self.deleted.append((path.rsplit("/", 1)[1], as_it_is))


def resource(kind: str, name: str) -> dict[str, Any]:
    spec = {} if kind == "TokenPool" else {"poolRef": {"name": "llama"}}
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "generation": 1}, "spec": spec}


def shares(**slots: int) -> Snapshot:
    reservations = {
        name: Reservation(name, "llama", "guaranteed", Amounts(count, 0.0, 0.0), "") for name, count in slots.items()
    }
    return Snapshot({}, {}, {"llama": OFFERED}, reservations)


def see(operator: Operator, name: str, slots: int, state: str) -> None:
    body = lease(name, slots, state)
    body["metadata"]["resourceVersion"] = "7"
    operator.on_pod("MODIFIED", body)


async def test_it_is_made_anew_once_for_the_same_room_and_again_for_other_room() -> None:
    operator, api = Operator(), Calls()
    operator.on_resource("TokenPool", "ADDED", resource("TokenPool", "llama"))
    for name in ("first", "second"):
        operator.on_resource("TokenEntitlement", "ADDED", resource("TokenEntitlement", name))
    see(operator, "first", 10, "bound")
    see(operator, "second", 10, "refused")
    await operator._capacity.reconcile_leases(api, shares(first=10, second=10))
    assert (api.created, api.deleted) == ([], [])

    shrunk = shares(first=6, second=10)
    await operator._capacity.reconcile_leases(api, shrunk)
    assert api.deleted == [("lease-first", {"uid": "first"})], "its room is not free yet"
    api.deleted.clear()
    see(operator, "first", 6, "bound")
    for _ in range(3):
        await operator._capacity.reconcile_leases(api, shrunk)
    unchanged = {"uid": "second", "resourceVersion": "7"}
    assert api.deleted == [("lease-second", unchanged)], "once: the scheduler may have another reason"

    operator.on_pod("DELETED", lease("second", 10, "refused"))
    await operator._capacity.reconcile_leases(api, shrunk)
    assert api.created == ["lease-second"]
    see(operator, "second", 10, "refused")
    api.deleted.clear()
    operator.on_resource("TokenEntitlement", "DELETED", resource("TokenEntitlement", "first"))
    await operator._capacity.reconcile_leases(api, shares(second=10))
    assert api.deleted == [("lease-second", unchanged)], "there is other room now"
