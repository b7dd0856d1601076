"""The operator: custom resources into the catalog, the catalog's states back, and capacity through the scheduler.

kopf watches, keeps finalizers and retries deletions. Everything else is one loop that goes by what is there now and not
by what happened: what changed is applied at once, everything again every ``AGAIN_S``, so that a change made behind its
back, an event that was missed and a restart all come to the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import kopf

from controlplane.kubernetes import catalog, key_secrets, leases, replicas
from controlplane.kubernetes.api import Api, connect
from controlplane.kubernetes.catalog import Snapshot, Wanted
from controlplane.kubernetes.finding import Finder
from controlplane.kubernetes.resources import BY_KIND, GROUP, RESOURCES, VERSION
from tenants.keys import make

log = logging.getLogger(__name__)

AGAIN_S = 15.0  # everything is compared again: drift is repaired within this time
LOOK_S = 1.0  # states of the catalog, which replicas change by themselves
GATHER_S = 0.05  # events that come together are applied together
HEARTBEAT_S = 10.0  # of virtual nodes; a cluster takes one that is silent for 40 s for lost
RETRY_S = 5.0
CALLS = 16  # to the API at a time

Key = tuple[str, str, str]  # kind, namespace, name


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Operator:
    """What the cluster wants and what was done about it. Used from one event loop."""

    def __init__(self, *, with_leases: bool = True) -> None:
        self._bodies: dict[Key, dict[str, Any]] = {}  # resources as the cluster last told
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}  # lease pods by namespace and name
        self._faults: dict[Key, str] = {}
        self._applied: dict[Key, int] = {}  # generation
        self._dirty: set[Key] = set()
        self._wake = asyncio.Event()
        self._with_leases = with_leases
        self._leases_told: dict[str, tuple[str, str]] = {}
        self._node_states: dict[str, tuple[dict[str, str], float]] = {}
        self._key_ids: dict[str, str] = {}  # by uid
        self._info: kopf.ConnectionInfo | None = None
        self._finders: dict[Key, tuple[Finder, asyncio.Task[None], kopf.ConnectionInfo]] = {}

    # --- what kopf tells

    def logged_in(self, info: kopf.ConnectionInfo | None) -> None:
        self._info = info

    def stop_finding(self) -> None:
        for _, task, _ in self._finders.values():
            task.cancel()
        self._finders.clear()

    def seen(self, kind: str, event: str | None, body: dict[str, Any]) -> None:
        """A resource was listed, made, changed or has gone."""
        key = (kind, body["metadata"]["namespace"], body["metadata"]["name"])
        if event == "DELETED":
            self._bodies.pop(key, None)
            self._faults.pop(key, None)
            self._applied.pop(key, None)
        else:
            self._bodies[key] = body
            if self._applied.get(key) != body["metadata"]["generation"] and not body["metadata"].get(
                "deletionTimestamp"
            ):
                self._dirty.add(key)
        self._wake.set()

    def seen_pod(self, event: str | None, body: dict[str, Any]) -> None:
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if event == "DELETED":
            self._pods.pop(key, None)
        else:
            self._pods[key] = body
        self._wake.set()

    async def removed(self, kind: str, body: dict[str, Any]) -> None:
        """A resource is being deleted: its row goes first.

        Raises:
            kopf.TemporaryError: the row is still needed, or the catalog is away; asked again.
        """
        wanted = _wanted(kind, body)
        try:
            if kind == key_secrets.KIND:
                await asyncio.to_thread(key_secrets.remove, wanted)
                fault = ""
            else:
                fault = await asyncio.to_thread(catalog.remove, wanted)
        except Exception as error:
            raise kopf.TemporaryError(f"the catalog cannot be written: {error}", delay=RETRY_S) from error
        key = (kind, wanted.namespace, wanted.name)
        if fault:
            self._faults[key] = f"cannot be deleted: {fault}"
            self._wake.set()
            raise kopf.TemporaryError(fault, delay=RETRY_S)
        path = {
            "TokenPool": f"/api/v1/nodes/{leases.node_name(wanted.namespace, wanted.name)}",
            "TokenEntitlement": f"/api/v1/namespaces/{wanted.namespace}/pods/{leases.pod_name(wanted.name)}",
        }.get(kind)
        if path and self._with_leases and self._info is not None:
            async with connect(self._info) as api:
                await api.delete(path)
        self._faults.pop(key, None)

    # --- the loop

    async def run(self) -> None:
        """Until cancelled. A fault of the API or of the catalog is logged, and tried again."""
        again_at = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            try:
                if self._info is None:
                    await asyncio.sleep(GATHER_S)
                    continue
                async with connect(self._info) as api:
                    while True:
                        if clock() >= again_at:
                            self._dirty |= {
                                k for k, b in self._bodies.items() if not b["metadata"].get("deletionTimestamp")
                            }
                            again_at = clock() + AGAIN_S
                        await self._round(api)
                        await self._rest()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("a round failed and is tried again in %s s: %s: %s", RETRY_S, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
            await asyncio.sleep(GATHER_S)
        except TimeoutError:
            pass
        self._wake.clear()

    async def _round(self, api: Api) -> None:
        await self._apply(api)
        self._find()
        found = await asyncio.to_thread(catalog.snapshot)
        if self._with_leases:
            await self._nodes(api, found)
            await self._lease_pods(api, found)
            if await self._tell_leases():
                found = await asyncio.to_thread(catalog.snapshot)
        await _side_by_side([self._write_status(api, key, body, found) for key, body in list(self._bodies.items())])

    async def _apply(self, api: Api) -> None:
        if not self._dirty:
            return
        keys = {key: self._bodies[key] for key in self._dirty if key in self._bodies}
        self._dirty = set()
        wanted = [_wanted(key[0], body) for key, body in keys.items()]
        try:
            faults = await asyncio.to_thread(catalog.reconcile, [w for w in wanted if w.kind != key_secrets.KIND])
            for one in wanted:  # after what they open
                if one.kind == key_secrets.KIND:
                    faults[one.uid] = await self._settle_key(api, one)
        except Exception:
            self._dirty |= set(keys)
            raise
        for key, body in keys.items():
            fault = faults[body["metadata"]["uid"]]
            self._applied[key] = body["metadata"]["generation"]
            if fault:
                self._faults[key] = fault
            else:
                self._faults.pop(key, None)

    async def _settle_key(self, api: Api, one: Wanted) -> str:
        """Empty, or why the key cannot be as its resource says."""
        place = key_secrets.Place.of(one)
        base = f"/api/v1/namespaces/{one.namespace}/secrets"
        try:
            there = await api.get(f"{base}/{place.name}")
            value = place.value(there)
            annotations = ((there or {}).get("metadata") or {}).get("annotations") or {}
            if await asyncio.to_thread(key_secrets.is_due, one, place, value, annotations):
                fresh = make()
                body = place.body(one, fresh)
                if there is None and not await api.create(base, body):
                    return "another one made the Secret at the same moment; it is looked at again"
                if there is not None:
                    more = {"annotations": body["metadata"]["annotations"]}
                    await api.patch(f"{base}/{place.name}", {"metadata": more, "data": body["data"]})
                value = fresh.text
            self._key_ids[one.uid] = await asyncio.to_thread(key_secrets.settle, one, place, value)
        except key_secrets.KeyFault as error:
            return str(error)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 403:
                raise
            return f"the operator has no right to Secrets of namespace {one.namespace}: operator.secrets.namespaces"
        return ""

    def _find(self) -> None:
        """A finder for each pool whose replicas the cluster has."""
        wanted = {
            key: _wanted(key[0], body)
            for key, body in self._bodies.items()
            if key[0] == "TokenPool" and (body.get("spec") or {}).get(replicas.SPEC) and key not in self._faults
            and not body["metadata"].get("deletionTimestamp")
        }  # fmt: skip
        assert self._info is not None
        for key, (finder, task, info) in list(self._finders.items()):
            one = wanted.get(key)
            same = one is not None and one.uid == finder.resource.uid and finder.spec == one.spec[replicas.SPEC]
            if one is not None and same and info is self._info and not task.done():
                finder.resource = one
                continue
            task.cancel()
            del self._finders[key]
        for key in wanted.keys() - self._finders.keys():
            finder = Finder(wanted[key], self._wake.set)
            self._finders[key] = finder, asyncio.create_task(finder.run(self._info)), self._info

    async def _nodes(self, api: Api, found: Snapshot) -> None:
        """A node for each pool that a resource keeps, ready and with what answers."""
        clock = asyncio.get_running_loop().time()
        for (kind, namespace, name), body in list(self._bodies.items()):
            if kind != "TokenPool" or name not in found.node_amounts or body["metadata"].get("deletionTimestamp"):
                continue
            node = leases.node_name(namespace, name)
            offered = leases.quantities(found.node_amounts[name], up=False)
            known = self._node_states.get(node)
            if known is not None and known[0] == offered and clock - known[1] < HEARTBEAT_S:
                continue
            wanted = leases.node(namespace, name, body["metadata"]["uid"])
            there = await api.get(f"/api/v1/nodes/{node}")
            if there is None:
                await api.create("/api/v1/nodes", wanted)
                there = await api.get(f"/api/v1/nodes/{node}")
            if there is not None and (there["spec"].get("taints") or []) != wanted["spec"]["taints"]:
                await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": wanted["spec"]["taints"]}})
            status = leases.node_status(found.node_amounts[name], _now())
            had = (there or {}).get("status", {}).get("allocatable") or {}
            gone = {
                resource: None
                for resource in had
                if resource not in status["allocatable"] and resource.startswith(GROUP)
            }
            status["allocatable"] = status["capacity"] = status["allocatable"] | gone
            await api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
            await self._renew(api, node)
            self._node_states[node] = (offered, clock)

    async def _renew(self, api: Api, node: str) -> None:
        """The node's heartbeat as newer clusters read it."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": datetime.now(UTC).isoformat()[:-6] + "Z",
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node}, "spec": spec}
        try:
            if not await api.create(path, body):
                await api.patch(f"{path}/{node}", {"spec": spec})
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (403, 404):  # without that namespace, the status alone counts
                raise

    async def _lease_pods(self, api: Api, found: Snapshot) -> None:
        """One pod for each entitlement that a resource keeps, asking for its share."""
        pools = {name: namespace for kind, namespace, name in self._bodies if kind == "TokenPool"}
        calls: list[Awaitable[Any]] = []
        for (kind, namespace, name), body in list(self._bodies.items()):
            if kind != "TokenEntitlement" or body["metadata"].get("deletionTimestamp"):
                continue
            reservation = found.reservations.get(name)
            if reservation is None or reservation.pool not in pools or (kind, namespace, name) in self._faults:
                continue
            offered = found.node_amounts.get(reservation.pool)
            if offered is None:
                continue
            wanted = leases.pod(namespace, reservation, body["metadata"]["uid"], pools[reservation.pool], offered)
            there = self._pods.get((namespace, wanted["metadata"]["name"]))
            path = f"/api/v1/namespaces/{namespace}/pods"
            if there is None:
                calls.append(api.create(path, wanted))
            elif not there["metadata"].get("deletionTimestamp") and not leases.same_share(there, wanted):
                calls.append(api.delete(f"{path}/{there['metadata']['name']}", there["metadata"]["uid"]))
        await _side_by_side(calls)

    async def _tell_leases(self) -> bool:
        """Says to the catalog what the scheduler says. Whether anything was new."""
        pools = {name for kind, _, name in self._bodies if kind == "TokenPool"}
        told: dict[str, tuple[str, str]] = {}
        for (kind, namespace, name), body in self._bodies.items():
            if (
                kind != "TokenEntitlement"
                or body["metadata"].get("deletionTimestamp")
                or body["spec"]["poolRef"]["name"] not in pools
            ):
                continue
            told[name] = leases.verdict(self._pods.get((namespace, leases.pod_name(name))))
        new = {name: verdict for name, verdict in told.items() if self._leases_told.get(name) != verdict}
        if new:
            await asyncio.to_thread(catalog.set_leases, new)
        self._leases_told = told
        return bool(new)

    async def _write_status(self, api: Api, key: Key, body: dict[str, Any], found: Snapshot) -> None:
        """Only if it differs from what the cluster has."""
        kind, namespace, name = key
        fault = self._faults.get(key, "")
        generation = self._applied.get(key)
        if generation is None:
            return
        status: dict[str, Any] = {"observedGeneration": generation}
        if kind == "TokenPool" and not fault:
            status |= found.pools.get(name, {})
            status["node"] = leases.node_name(namespace, name) if self._with_leases else None
            finder = self._finders.get(key)
            status["replicas"] = finder[0].status() if finder is not None else None
        reason = fault
        if kind == key_secrets.KIND:
            status["keyId"] = self._key_ids.get(body["metadata"]["uid"])
        if kind == "TokenEntitlement" and not fault:
            states = found.entitlements.get(name, {})
            status |= {"state": states.get("state"), "lease": states.get("lease") or None}
            reason = states.get("reason", "")
        status["reason"] = reason or None  # a merge patch takes None for "remove it"
        old = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or []}
        conditions = [_condition("Ready", not fault, "Applied" if not fault else "Refused", fault, old, generation)]
        if kind == "TokenEntitlement" and not fault:
            state = states.get("state") or "unknown"
            conditions.append(_condition("Bound", state == "bound", state.capitalize(), reason, old, generation))
        if kind == "TokenPool" and not fault and finder is not None:
            said = finder[0].said()
            conditions.append(
                _condition("ReplicasFound", not said, "Incomplete" if said else "Found", said, old, generation)
            )
        status["conditions"] = conditions
        there = body.get("status") or {}
        if all(there.get(name) == value for name, value in status.items()):
            return
        await api.status(BY_KIND[kind].plural, namespace, name, status)
        body["status"] = there | status  # until the watch says so


async def _side_by_side(calls: Sequence[Awaitable[Any]]) -> None:
    """Waits for all, :data:`CALLS` at a time; the first fault is raised when all have ended."""
    turns = asyncio.Semaphore(CALLS)

    async def one(call: Awaitable[Any]) -> None:
        async with turns:
            await call

    results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _condition(
    name: str, holds: bool, reason: str, message: str, old: dict[str, dict[str, Any]], generation: int
) -> dict[str, Any]:
    status = "True" if holds else "False"
    before = old.get(name)
    since = before["lastTransitionTime"] if before is not None and before.get("status") == status else _now()
    result = {
        "type": name, "status": status, "reason": reason, "lastTransitionTime": since, "observedGeneration": generation,
    }  # fmt: skip
    return result | ({"message": message[:1000]} if message else {})


def _wanted(kind: str, body: dict[str, Any]) -> Wanted:
    metadata = body["metadata"]
    return Wanted(kind, metadata["namespace"], metadata["name"], metadata["uid"], body.get("spec") or {})


def registry(operator: Operator) -> kopf.OperatorRegistry:
    """What kopf calls of ours."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
        settings.persistence.finalizer = f"{GROUP}/operator"
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
        settings.posting.enabled = False  # conditions say it; events would repeat it every few seconds
        settings.watching.server_timeout = 300
        settings.watching.reconnect_backoff = 1.0
        settings.networking.error_backoffs = [1, 2, 3, 5, 5, 5]
        memo.loop = asyncio.create_task(operator.run())

    @kopf.on.cleanup(registry=handlers)
    async def stop(memo: Any, **_: Any) -> None:
        memo.loop.cancel()
        operator.stop_finding()

    @kopf.on.login(registry=handlers)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        operator.logged_in(info)
        return info

    for resource in RESOURCES:
        _watch(handlers, operator, resource.kind, resource.plural)

    @kopf.on.event("v1", "pods", labels={leases.LEASE_LABEL: kopf.PRESENT}, registry=handlers)
    async def pod(event: Any, body: kopf.Body, **_: Any) -> None:
        operator.seen_pod(event["type"], _plain(body))

    return handlers


def _watch(handlers: kopf.OperatorRegistry, operator: Operator, kind: str, plural: str) -> None:
    @kopf.on.event(GROUP, VERSION, plural, registry=handlers, id=f"{plural}-seen")
    async def seen(event: Any, body: kopf.Body, **_: Any) -> None:
        operator.seen(kind, event["type"], _plain(body))

    @kopf.on.delete(GROUP, VERSION, plural, registry=handlers, id=f"{plural}-removed")
    async def removed(body: kopf.Body, **_: Any) -> None:
        await operator.removed(kind, _plain(body))


def _plain(body: kopf.Body) -> dict[str, Any]:
    return {
        "metadata": dict(body["metadata"]),
        "spec": dict(body.get("spec") or {}),
        "status": dict(body.get("status") or {}),
    }


async def serve(*, namespaces: list[str], with_leases: bool = True, liveness: str = "") -> None:
    """Runs until it is stopped."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for each event
    operator = Operator(with_leases=with_leases)
    await kopf.operator(
        registry=registry(operator),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        liveness_endpoint=liveness or None,
        memo=kopf.Memo(),
    )
