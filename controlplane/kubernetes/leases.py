"""Virtual nodes and lease pods (token pools 4.1): capacity promised through the cluster's own scheduler.

A pool is a node that runs nothing and offers what its replicas have as extended resources. An entitlement's share is a
pod that asks for it there. The scheduler binds the pod or says why not; both are the entitlement's state. Pure: what
should be there follows from what the catalog says.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.kubernetes.resources import API_VERSION, GROUP
from scheduling.core.capacity.pool import Amounts

NODE_LABEL = f"{GROUP}/pool"
NAMESPACE_LABEL = f"{GROUP}/namespace"  # of that pool
LEASE_LABEL = f"{GROUP}/entitlement"
TAINT = f"{GROUP}/virtual"
PAUSE = "registry.k8s.io/pause:3.10"  # never started: no kubelet serves such a node
RESOURCES = {"slots": "slots", "kv_tokens": "kv-cache-tokens", "tokens_per_s": "tokens-per-second"}
PODS = 10_000  # of one node: leases cost nothing
CONTAINER = "lease"
LABEL = 63  # characters of a label's value
# As the strictest Pod Security level wants it, and said to need nothing: a namespace's LimitRange would else give it a
# default that no virtual node offers, and its ResourceQuota would refuse it.
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
CLOSED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NOTHING = {"cpu": "0", "memory": "0", "ephemeral-storage": "0"}

# Service classes in the order in which the scheduler preempts: a lease takes the room of one with a lower priority.
PRIORITIES = {"dedicated": 1_000_000, "guaranteed": 900_000, "elastic": 500_000, "spot": 100_000, "preemptible": 0}


@dataclass(frozen=True, slots=True)
class Reservation:
    """An entitlement as its lease sees it."""

    name: str
    pool: str
    service_class: str
    amounts: Amounts
    lease: str  # what the catalog knows: "", "pending" or "bound"


def quantities(amounts: Amounts, *, up: bool) -> dict[str, str]:
    """Whole numbers, as extended resources require: requests are rounded up, offers down. Unbounded and empty
    dimensions are left out."""
    result = {}
    for attribute, name in RESOURCES.items():
        value = getattr(amounts, attribute)
        if math.isfinite(value) and (value > 0 or not up):
            result[f"{GROUP}/{name}"] = str(math.ceil(value) if up else math.floor(value))
    return result


def node_name(namespace: str, pool: str) -> str:
    return f"quartermaster.{namespace}.{pool}"


def _label(name: str) -> str:
    """A name as a label may have it: a node's may be longer."""
    return name if len(name) <= LABEL else f"{name[: LABEL - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def node(namespace: str, pool: str, uid: str) -> dict[str, Any]:
    """The node of a pool, without its status. Its taint keeps all pods away but leases."""
    name = node_name(namespace, pool)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                NODE_LABEL: pool,
                NAMESPACE_LABEL: namespace,
                "type": "virtual",
                "kubernetes.io/hostname": _label(name),
                "node.kubernetes.io/exclude-from-external-load-balancers": "true",
            },
            "annotations": {f"{GROUP}/uid": uid},
        },
        "spec": {"taints": [{"key": TAINT, "value": "pool", "effect": "NoSchedule"}]},
    }


def node_status(amounts: Amounts, now: str) -> dict[str, Any]:
    """Its status: ready, with what answers. ``now``: RFC 3339."""
    offered = {"pods": str(PODS)} | quantities(amounts, up=False)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "QuartermasterServes",
        "message": "A pool of replicas; it runs no containers.",
        "lastHeartbeatTime": now,
    }
    return {"capacity": offered, "allocatable": offered, "conditions": [ready]}


def pod_name(entitlement: str) -> str:
    return f"lease-{entitlement}"


def pod(namespace: str, reservation: Reservation, uid: str, pool_namespace: str, offered: Amounts) -> dict[str, Any]:
    """The pod that holds an entitlement's share. It goes with its resource.

    ``offered``: what the pool's node has. A dimension without a bound (unmeasured throughput) is not asked for.
    """
    owner = {"apiVersion": API_VERSION, "kind": "TokenEntitlement", "name": reservation.name, "uid": uid}
    asked = quantities(reservation.amounts, up=True)
    asked = {name: amount for name, amount in asked.items() if name in quantities(offered, up=False)} | NOTHING
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(reservation.name),
            "namespace": namespace,
            "labels": {LEASE_LABEL: reservation.name, NODE_LABEL: reservation.pool},
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": False}],
        },
        "spec": {
            "priorityClassName": f"quartermaster-{reservation.service_class}",
            "nodeSelector": {NODE_LABEL: reservation.pool, NAMESPACE_LABEL: pool_namespace},
            "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": RESTRICTED,
            "containers": [
                {
                    "name": CONTAINER, "image": PAUSE, "securityContext": CLOSED,
                    "resources": {"requests": asked, "limits": asked},
                }
            ],
        },
    }  # fmt: skip


def same_share(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a pod asks for what it should: resources, node and class of a pod cannot be changed. What a cluster adds
    to every pod (defaults of a LimitRange) is no difference."""
    return (
        _asked(wanted) == _asked(there)
        and wanted["spec"]["nodeSelector"] == there["spec"].get("nodeSelector")
        and wanted["spec"]["priorityClassName"] == there["spec"].get("priorityClassName")
    )


def is_lease(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a pod is the lease that should be there. Whoever may make pods in its namespace can have put one in its
    place that names a node itself: the scheduler was not asked, and a node without kubelet does not refuse it."""
    return same_share(there, wanted) and not (there["spec"].get("nodeName") and not scheduled(there))


def scheduled(pod: Mapping[str, Any]) -> bool:
    """Whether a scheduler has bound it to its pool's node. A binding, and nothing else that a person who makes pods may
    do, writes this condition as well."""
    wanted = pod["spec"].get("nodeSelector") or {}
    node = node_name(wanted.get(NAMESPACE_LABEL, ""), wanted.get(NODE_LABEL, ""))
    return pod["spec"].get("nodeName") == node and any(
        condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        for condition in pod.get("status", {}).get("conditions") or []
    )


def verdict(
    there: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None = None, refused: str = ""
) -> tuple[str, str]:
    """What the scheduler says of a lease pod: ``pending`` or ``bound``, and why it is not bound. ``wanted``: the pod
    that should be there, where that is known. ``refused``: why the API server does not take one."""
    if there is None:
        why = f"the API server refuses its lease pod: {refused}" if refused else "its lease pod is not there yet"
        return "pending", why
    if there["metadata"].get("deletionTimestamp") or (wanted is not None and not is_lease(there, wanted)):
        return "pending", "its lease pod is being replaced"
    if scheduled(there):
        return "bound", ""
    for condition in there.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return "pending", str(condition.get("message") or condition.get("reason") or "not scheduled")
    return "pending", "the scheduler has not looked at its lease pod yet"


def refused(there: Mapping[str, Any]) -> bool:
    """Whether the scheduler has found no room for a lease pod and makes none for it either."""
    if there["metadata"].get("deletionTimestamp") or there["spec"].get("nodeName"):
        return False
    status = there.get("status", {})
    unschedulable = any(
        c.get("type") == "PodScheduled" and c.get("reason") == "Unschedulable" for c in status.get("conditions") or []
    )
    return unschedulable and not status.get("nominatedNodeName")


def fitting_now(offered: Amounts, pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Which of a pool's lease pods were refused and would fit by now, in the scheduler's order.

    A scheduler looks again at what it has refused only after a pause, which doubles up to ten seconds; a pod that is
    made anew has none.
    """
    room = {name: int(amount) for name, amount in quantities(offered, up=False).items()}
    waiting = []
    for pod in pods:
        if refused(pod):
            waiting.append(pod)
        else:
            _take(room, pod)
    waiting.sort(
        key=lambda pod: (
            -int(pod["spec"].get("priority") or 0),
            pod["metadata"].get("creationTimestamp", ""),
            pod["metadata"]["name"],
        )
    )
    fitting = []
    for pod in waiting:
        if all(room.get(name, 0) >= amount for name, amount in _asked(pod).items()):
            _take(room, pod)
            fitting.append(pod)
    return fitting


def _asked(pod: Mapping[str, Any]) -> dict[str, int]:
    """Of what a pool's node offers; a policy may have put further containers beside ours. Whoever may make pods in its
    namespace can have put one in its place that asks for something else, or has no such container: it asks for nothing.
    """
    container: Mapping[str, Any] = next((one for one in pod["spec"]["containers"] if one["name"] == CONTAINER), {})
    asked = (container.get("resources") or {}).get("requests") or {}
    return {name: whole(amount) for name, amount in asked.items() if name.startswith(f"{GROUP}/")}


_AMOUNT = re.compile(r"([0-9]{1,30})(?:([kMGTPE])|([KMGTPE])i|[eE]([0-9]{1,2}))?")


def whole(amount: str) -> int:
    """A whole number as a cluster writes it: of 128000, which it was given, it makes 128k. -1 for anything else."""
    read = _AMOUNT.fullmatch(amount)
    if read is None:
        return -1
    digits, decimal, binary, exponent = read.groups()
    unit: int = 10 ** int(exponent or 0)
    if decimal or binary:
        unit = 1000 ** ("kMGTPE".index(decimal) + 1) if decimal else 1024 ** ("KMGTPE".index(binary) + 1)
    return int(digits) * unit


def _take(room: dict[str, int], pod: Mapping[str, Any]) -> None:
    for name, amount in _asked(pod).items():
        room[name] = room.get(name, 0) - amount
