"""Lease pods that the scheduler refused, once there is room for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controlplane.kubernetes import leases
from controlplane.kubernetes.leases import Reservation, fitting_now
from scheduling.core.capacity.pool import Amounts

OFFERED = Amounts(16, 100_000, 0.0)


def lease(name: str, slots: int, state: str, *, at: int = 0, service_class: str = "guaranteed") -> dict[str, Any]:
    """As the cluster has it: bound, refused, new (not looked at yet), nominated (room is being made) or going."""
    reservation = Reservation(name, "llama", service_class, Amounts(slots, 0.0, 0.0), "")
    pod = leases.pod("default", reservation, f"uid-{name}", "default", OFFERED)
    pod["metadata"] |= {"uid": name, "creationTimestamp": f"2026-11-23T12:00:{at:02}Z"}
    pod["spec"]["priority"] = leases.PRIORITIES[service_class]
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient slots"}
    match state:
        case "bound":
            pod["spec"]["nodeName"] = "quartermaster.default.llama"
            pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
        case "refused":
            pod["status"] = {"conditions": [refused]}
        case "nominated":
            pod["status"] = {"conditions": [refused], "nominatedNodeName": "quartermaster.default.llama"}
        case "going":
            pod["spec"]["nodeName"] = "quartermaster.default.llama"
            pod["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    return pod


def names(*pods: dict[str, Any]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in fitting_now(OFFERED, pods)]


def test_labels_of_a_node_fit_whatever_its_pool_and_namespace_are_called() -> None:
    made = [leases.node("n" * 63, "p" * length, "uid") for length in (1, 62, 63)]
    for one in made:
        assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", v) for v in _labels(one).values())
    assert len({_labels(one)["kubernetes.io/hostname"] for one in made}) == 3
    short = leases.node("default", "llama", "uid")
    assert _labels(short)["kubernetes.io/hostname"] == short["metadata"]["name"] == "quartermaster.default.llama"


def _labels(node: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"]["labels"]
    return labels


def test_one_that_was_refused_fits_once_the_room_is_free() -> None:
    assert names(lease("first", 10, "bound"), lease("second", 10, "refused")) == []
    assert names(lease("first", 6, "bound"), lease("second", 10, "refused")) == ["second"]


@pytest.mark.parametrize("state", ["new", "nominated", "going"])
def test_room_that_another_is_about_to_take_or_still_has_is_not_free(state: str) -> None:
    assert names(lease("first", 10, state), lease("second", 10, "refused")) == []


@pytest.mark.parametrize("state", ["bound", "new", "nominated", "going"])
def test_only_what_was_refused_is_made_anew(state: str) -> None:
    assert names(lease("first", 4, state)) == []


def test_room_goes_to_the_higher_class_and_then_to_who_came_first() -> None:
    late = lease("late", 10, "refused", at=2)
    early = lease("early", 10, "refused", at=1)
    spot = lease("spot", 10, "refused", at=0, service_class="spot")
    assert names(spot, late, early) == ["early"]
    small = lease("small", 6, "refused", at=3, service_class="spot")
    assert names(spot, late, early, small) == ["early", "small"]


def test_a_share_of_something_that_is_not_offered_fits_nowhere() -> None:
    pod = lease("second", 10, "refused")
    pod["spec"]["containers"][0]["resources"]["requests"]["quartermaster.dev/gpus"] = "1"
    assert names(pod) == []


def test_what_a_cluster_adds_to_a_lease_pod_is_no_reason_to_make_it_anew() -> None:
    """Defaults of a LimitRange and a container beside it, as a mesh puts one."""
    wanted, there = lease("first", 4, "new"), lease("first", 4, "new")
    [container] = there["spec"]["containers"]
    container["resources"]["requests"] |= {"cpu": "100m", "ephemeral-storage": "1Gi"}
    there["spec"]["containers"] = [{"name": "mesh", "resources": {"requests": {"cpu": "10m"}}}, container]
    assert leases.same_share(there, wanted)
    container["resources"]["requests"]["quartermaster.dev/slots"] = "5"
    assert not leases.same_share(there, wanted)


@pytest.mark.parametrize(
    ("amount", "is_whole"),
    [
        ("0", 0), ("7", 7), ("128k", 128_000), ("3M", 3_000_000), ("2G", 2 * 10**9), ("1P", 10**15), ("1E", 10**18),
        ("2Ki", 2048), ("1Gi", 2**30), ("1e3", 1000), ("5E2", 500),
        ("", -1), ("1.5", -1), ("500m", -1), ("-1", -1), ("k", -1), ("1kk", -1), ("1K", -1), ("1ki", -1),
        ("\u0661", -1), ("1e999", -1), ("9" * 5000, -1), ("1 ", -1), ("1k\n", -1),
    ],
)  # fmt: skip
def test_whole_amounts_are_read_as_a_cluster_writes_them(amount: str, is_whole: int) -> None:
    assert leases.whole(amount) == is_whole


def test_a_share_is_the_same_however_the_cluster_writes_it() -> None:
    wanted, there = lease("first", 4000, "new"), lease("first", 4000, "new")
    there["spec"]["containers"][0]["resources"]["requests"]["quartermaster.dev/slots"] = "4k"
    assert leases.same_share(there, wanted)


def test_a_pod_in_the_place_of_a_lease_that_is_none_asks_for_nothing_and_is_another_one() -> None:
    wanted, there = lease("first", 4, "refused"), lease("first", 4, "refused")
    there["spec"]["containers"][0]["name"] = "other"
    assert not leases.same_share(there, wanted)
    assert names(there, lease("second", 16, "refused", at=1)) == ["first", "second"]


def test_a_lease_pod_asks_for_no_cpu_and_fits_the_strictest_namespace() -> None:
    """A LimitRange gives a default only to who says nothing; the level ``restricted`` wants the rest."""
    pod = lease("first", 4, "new")
    [container] = pod["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert {name: requests[name] for name in ("cpu", "memory", "ephemeral-storage")} == leases.NOTHING
    assert set(leases.NOTHING.values()) == {"0"}
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_a_lease_that_is_not_there_says_why() -> None:
    assert leases.verdict(None) == ("pending", "its lease pod is not there yet")
    assert leases.verdict(None, refused="exceeded quota") == (
        "pending",
        "the API server refuses its lease pod: exceeded quota",
    )


def test_a_lease_is_bound_when_the_scheduler_has_bound_it_to_its_pools_node() -> None:
    wanted, there = lease("first", 4, "new"), lease("first", 4, "bound")
    assert leases.verdict(there, wanted) == leases.verdict(there) == ("bound", "")
    assert leases.is_lease(there, wanted)


@pytest.mark.parametrize(
    ("node", "conditions"),
    [
        ("quartermaster.default.llama", []),  # named by whoever made the pod: no scheduler was asked
        ("quartermaster.default.llama", [{"type": "PodScheduled", "status": "False"}]),
        ("quartermaster.default.llama", [{"type": "Ready", "status": "True"}]),
        ("gpu-1", [{"type": "PodScheduled", "status": "True"}]),  # a node that offers no such room
    ],
)
def test_a_pod_that_names_a_node_itself_is_no_lease(node: str, conditions: list[dict[str, Any]]) -> None:
    wanted, there = lease("first", 4, "new"), lease("first", 4, "new")
    there["spec"]["nodeName"] = node
    there["status"] = {"conditions": conditions}
    assert not leases.is_lease(there, wanted)
    assert leases.verdict(there, wanted) == ("pending", "its lease pod is being replaced")
    assert leases.verdict(there)[0] == "pending"


def test_a_pod_that_was_bound_for_less_than_its_share_is_not_bound() -> None:
    assert leases.verdict(lease("first", 1, "bound"), lease("first", 4, "new"))[0] == "pending"
