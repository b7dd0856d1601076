"""Keeps virtual nodes and lease pods in the cluster as the catalog has pools and entitlements, and says to the catalog
what the scheduler says of them. What there should be is in :mod:`controlplane.kubernetes.leases`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from controlplane.kubernetes import catalog, leases
from controlplane.kubernetes.api import Api, refusal
from controlplane.kubernetes.catalog import Snapshot
from controlplane.kubernetes.resources import GROUP
from scheduling.core.capacity.pool import Amounts

HEARTBEAT_S = 10.0  # of virtual nodes
LOST_S = 40  # a cluster takes a node that is silent for so long for lost
REFUSED_AGAIN_S = 15.0  # a lease pod that the API server refused is asked for again
CALLS = 16  # to the API at a time

Key = tuple[str, str, str]  # kind, namespace, name
Room = tuple[tuple[tuple[str, str], ...], frozenset[str]]  # what a node offers, and who is bound there


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class RefusedLease:
    """A lease pod that the API server would not take, what it said, and when."""

    wanted: Mapping[str, Any]
    said: str
    at: float


class ClusterCapacity:
    """What the cluster's scheduler was told and what it says. ``resources`` and ``faults`` are the operator's own."""

    def __init__(self, resources: Mapping[Key, dict[str, Any]], faults: Mapping[Key, str]) -> None:
        self._resources, self._faults = resources, faults
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}  # lease pods by namespace and name
        self._wanted: dict[tuple[str, str], dict[str, Any]] = {}  # lease pods that should be there, likewise
        self._recorded_leases: dict[str, tuple[str, str]] = {}
        self._tried: dict[tuple[str, str], Room] = {}  # lease pods that were made anew, and for which room
        self._refused: dict[tuple[str, str], RefusedLease] = {}  # by namespace and name
        self._node_states: dict[str, tuple[str, dict[str, str], float]] = {}  # pool's uid, what is offered, since when
        self._node_faults: dict[tuple[str, str], str] = {}  # by a pool's namespace and name

    def on_pod(self, event: str | None, body: dict[str, Any]) -> None:
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if event == "DELETED":
            self._pods.pop(key, None)
        else:
            self._pods[key] = body

    def node_fault(self, namespace: str, pool: str) -> str:
        """Why a pool's node is not as it should be; empty where it is."""
        return self._node_faults.get((namespace, pool), "")

    async def reconcile_nodes(self, api: Api, snapshot: Snapshot) -> None:
        """A node for each pool that a resource keeps, ready and with what answers."""
        await gather(
            [
                self._reconcile_node(api, namespace, name, body["metadata"]["uid"], snapshot.node_amounts[name])
                for (kind, namespace, name), body in list(self._resources.items())
                if kind == "TokenPool"
                and name in snapshot.node_amounts
                and not body["metadata"].get("deletionTimestamp")
            ]
        )

    async def _reconcile_node(self, api: Api, namespace: str, name: str, uid: str, amounts: Amounts) -> None:
        clock = asyncio.get_running_loop().time()
        node = leases.node_name(namespace, name)
        offered = leases.quantities(amounts, up=False)
        written = self._node_states.get(node)
        if written is not None and written[:2] == (uid, offered) and clock - written[2] < HEARTBEAT_S:
            return
        self._node_faults.pop((namespace, name), None)
        try:
            await self._write_node(api, namespace, name, uid, amounts)
        except httpx.HTTPStatusError as error:
            if not (said := refusal(error)):
                raise
            self._node_faults[namespace, name] = f"the API server refuses its node: {said}"
        self._node_states[node] = (uid, offered, clock)

    async def _write_node(self, api: Api, namespace: str, name: str, uid: str, amounts: Amounts) -> None:
        node = leases.node_name(namespace, name)
        wanted = leases.node(namespace, name, uid)
        there = await api.get(f"/api/v1/nodes/{node}")
        if there is None:
            await api.create("/api/v1/nodes", wanted)
            there = await api.get(f"/api/v1/nodes/{node}")
        if there is not None and (there["spec"].get("taints") or []) != wanted["spec"]["taints"]:
            await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": wanted["spec"]["taints"]}})
        status = leases.node_status(amounts, now())
        had = (there or {}).get("status", {}).get("allocatable") or {}
        gone = {
            resource: None for resource in had if resource not in status["allocatable"] and resource.startswith(GROUP)
        }
        status["allocatable"] = status["capacity"] = status["allocatable"] | gone
        await api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
        await self._renew_node_lease(api, node)

    async def _renew_node_lease(self, api: Api, node: str) -> None:
        """The node's heartbeat as newer clusters read it."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": LOST_S,
            "renewTime": datetime.now(UTC).isoformat()[:-6] + "Z",
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}, "spec": spec}
        try:
            if not await api.create(path, body):
                await api.patch(f"{path}/{node}", {"spec": spec})
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (403, 404):  # without that namespace, the status alone counts
                raise

    async def reconcile_leases(self, api: Api, snapshot: Snapshot) -> None:
        """One pod for each entitlement that a resource keeps, asking for its share."""
        pools = {name: namespace for kind, namespace, name in self._resources if kind == "TokenPool"}
        by_pool: dict[str, list[dict[str, Any]]] = {}  # lease pods that are there, or are made now
        calls: list[Awaitable[Any]] = []
        self._wanted = {}
        for (kind, namespace, name), body in list(self._resources.items()):
            if kind != "TokenEntitlement" or body["metadata"].get("deletionTimestamp"):
                continue
            reservation = snapshot.reservations.get(name)
            if reservation is None or reservation.pool not in pools or (kind, namespace, name) in self._faults:
                continue
            offered = snapshot.node_amounts.get(reservation.pool)
            if offered is None:
                continue
            wanted = leases.pod(namespace, reservation, body["metadata"]["uid"], pools[reservation.pool], offered)
            place = (namespace, wanted["metadata"]["name"])
            self._wanted[place] = wanted
            there = self._pods.get(place)
            path = f"/api/v1/namespaces/{namespace}/pods"
            if there is None:
                if not self._may_ask(wanted):
                    continue
                calls.append(self._create_lease(api, path, wanted))
            elif not there["metadata"].get("deletionTimestamp") and not leases.is_lease(there, wanted):
                calls.append(api.delete(f"{path}/{there['metadata']['name']}", uid=there["metadata"]["uid"]))
            by_pool.setdefault(reservation.pool, []).append(there or wanted)
        calls += [self._try_again(api, pod) for pod in self._due_again(snapshot, by_pool)]
        await gather(calls)

    def _may_ask(self, wanted: Mapping[str, Any]) -> bool:
        """Not at once for what was just refused."""
        refused = self._refused.get((wanted["metadata"]["namespace"], wanted["metadata"]["name"]))
        if refused is None or not leases.same_share(refused.wanted, wanted):
            return True
        return asyncio.get_running_loop().time() - refused.at >= REFUSED_AGAIN_S

    async def _create_lease(self, api: Api, path: str, wanted: Mapping[str, Any]) -> None:
        key = (wanted["metadata"]["namespace"], wanted["metadata"]["name"])
        try:
            await api.create(path, dict(wanted))
        except httpx.HTTPStatusError as error:
            if not (said := refusal(error)):
                raise
            self._refused[key] = RefusedLease(wanted, said, asyncio.get_running_loop().time())
        else:
            self._refused.pop(key, None)

    def _due_again(self, snapshot: Snapshot, by_pool: dict[str, list[dict[str, Any]]]) -> list[Mapping[str, Any]]:
        """Lease pods that are pending although they would fit: each once for the same room, so that one that the
        scheduler refuses for another reason is not made anew for ever."""
        due: list[Mapping[str, Any]] = []
        tried: dict[tuple[str, str], Room] = {}
        for pool, pods in by_pool.items():
            offered = snapshot.node_amounts[pool]
            bound = frozenset(pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName"))
            room = tuple(sorted(leases.quantities(offered, up=False).items())), bound
            for pod in leases.fitting_now(offered, pods):
                key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
                tried[key] = room
                if self._tried.get(key) != room:
                    due.append(pod)
        self._tried = tried
        return due

    async def _try_again(self, api: Api, pod: Mapping[str, Any]) -> None:
        """It is made anew once it is gone; one that the scheduler has bound meanwhile stays."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await api.delete(path, uid=metadata["uid"], resourceVersion=metadata["resourceVersion"])

    async def record_leases(self) -> bool:
        """Says to the catalog what the scheduler says. Whether anything was new."""
        pools = {name for kind, _, name in self._resources if kind == "TokenPool"}
        verdicts: dict[str, tuple[str, str]] = {}
        for (kind, namespace, name), body in self._resources.items():
            if (
                kind != "TokenEntitlement"
                or body["metadata"].get("deletionTimestamp")
                or body["spec"]["poolRef"]["name"] not in pools
            ):
                continue
            place = (namespace, leases.pod_name(name))
            refused = self._refused.get(place)
            said = refused.said if refused is not None else ""
            verdicts[name] = leases.verdict(self._pods.get(place), self._wanted.get(place), said)
        new = {name: verdict for name, verdict in verdicts.items() if self._recorded_leases.get(name) != verdict}
        if new:
            await asyncio.to_thread(catalog.set_leases, new)
        self._recorded_leases = verdicts
        return bool(new)


async def gather(calls: Sequence[Awaitable[Any]]) -> None:
    """Waits for all, :data:`CALLS` at a time; the first fault is raised when all have ended."""
    turns = asyncio.Semaphore(CALLS)

    async def one(call: Awaitable[Any]) -> None:
        async with turns:
            await call

    results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
