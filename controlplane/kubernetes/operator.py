"""The operator: custom resources into the catalog, the catalog's states back, and capacity through the scheduler.

kopf watches, keeps finalizers and retries deletions. Everything else is one loop, driven by the present state and not
by events: changes are applied at once, and everything again every ``AGAIN_S``. So a change behind its back, a missed
event and a restart all end in the same state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import httpx
import kopf

from controlplane.kubernetes import catalog, key_secrets, leases, replicas
from controlplane.kubernetes.api import Api, connect, refusal, same_refusal
from controlplane.kubernetes.capacity import ClusterCapacity, Key, gather, now
from controlplane.kubernetes.catalog import CustomResource, Snapshot
from controlplane.kubernetes.discovery import ReplicaDiscovery
from controlplane.kubernetes.resources import BY_KIND, GROUP, RESOURCES, VERSION
from tenants.keys import make

log = logging.getLogger(__name__)

AGAIN_S = 15.0  # everything is compared again: drift is repaired within this time
LOOK_S = 1.0  # states of the catalog, which replicas change by themselves
GATHER_S = 0.05  # events that come together are applied together
RETRY_S = 5.0
REFUSED_AGAIN_S = 15.0  # a status that the API server refused is written again


class Backoffs:
    """Endless pauses between tries of one call. After the last one kopf would give a watch up, and the operator would
    go on without hearing of anything."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 2.0, 3.0), repeat(5.0))


@dataclass(slots=True)
class RefusedStatus:
    """A status that the API server refused, until it accepts one."""

    generation: int
    said: str
    at: float
    logged: set[str]  # reasons
    conditions: bool = True  # whether it accepts the conditions alone


@dataclass(slots=True)
class _Status:
    """The status of a resource as it is put together."""

    fields: dict[str, Any]
    reason: str
    conditions: list[tuple[str, bool, str, str]] = field(default_factory=list)

    def condition(self, name: str, holds: bool, reason: str, message: str) -> None:
        self.conditions.append((name, holds, reason, message))


class Operator:
    """What the cluster wants and what was done about it. Used from one event loop."""

    def __init__(self, *, with_leases: bool = True, key_tenants: Mapping[str, Collection[str]] | None = None) -> None:
        self._resources: dict[Key, dict[str, Any]] = {}  # resources as the cluster last told
        self._faults: dict[Key, str] = {}
        self._capacity = ClusterCapacity(self._resources, self._faults)
        self._applied: dict[Key, int] = {}  # generation
        self._refused: dict[str, RefusedStatus] = {}  # by uid
        self._dirty: set[Key] = set()
        self._deleted: set[str] = set()  # uids whose rows are gone and whose resources are not yet
        self._writing = asyncio.Lock()  # the catalog, by resources that were read before: one at a time
        self._wake = asyncio.Event()
        self._with_leases = with_leases
        self._forgets = not with_leases  # what was said of leases while there were some
        self._key_ids: dict[str, str] = {}  # by uid
        self._key_tenants = key_tenants or {}  # by namespace: `key_secrets.tenants_by_namespace`
        self._info: kopf.ConnectionInfo | None = None
        self._discoveries: dict[Key, tuple[ReplicaDiscovery, asyncio.Task[None], kopf.ConnectionInfo]] = {}

    # --- what kopf tells

    def logged_in(self, info: kopf.ConnectionInfo | None) -> None:
        self._info = info

    def stop_discovery(self) -> None:
        for _, task, _ in self._discoveries.values():
            task.cancel()
        self._discoveries.clear()

    def on_resource(self, kind: str, event: str | None, body: dict[str, Any]) -> None:
        """A resource was listed, created, changed or deleted."""
        key = (kind, body["metadata"]["namespace"], body["metadata"]["name"])
        if event == "DELETED":
            self._resources.pop(key, None)
            self._faults.pop(key, None)
            self._applied.pop(key, None)
            self._refused.pop(body["metadata"]["uid"], None)
            self._deleted.discard(body["metadata"]["uid"])
        else:
            self._resources[key] = body
            if self._applied.get(key) != body["metadata"]["generation"] and not body["metadata"].get(
                "deletionTimestamp"
            ):
                self._dirty.add(key)
        self._wake.set()

    def on_pod(self, event: str | None, body: dict[str, Any]) -> None:
        self._capacity.on_pod(event, body)
        self._wake.set()

    async def on_delete(self, kind: str, body: dict[str, Any]) -> None:
        """A resource is being deleted: deletes its row first.

        Raises:
            kopf.TemporaryError: the row is still needed, or the catalog does not answer; kopf tries again.
        """
        wanted = _custom_resource(kind, body)
        try:
            async with self._writing:  # what is being applied was read before, and would make the row again
                if kind == key_secrets.KIND:
                    await asyncio.to_thread(key_secrets.remove, wanted)
                    fault = ""
                else:
                    fault = await asyncio.to_thread(catalog.remove, wanted)
                if not fault:
                    self._deleted.add(wanted.uid)
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
        """Runs until cancelled. A failure of the API or of the catalog is logged and tried again."""
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
                                k for k, b in self._resources.items() if not b["metadata"].get("deletionTimestamp")
                            }
                            again_at = clock() + AGAIN_S
                        await self._reconcile(api)
                        await self._wait()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("a round failed and is tried again in %s s: %s: %s", RETRY_S, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
            await asyncio.sleep(GATHER_S)
        except TimeoutError:
            pass
        self._wake.clear()

    async def _reconcile(self, api: Api) -> None:
        await self._apply(api)
        self._reconcile_discovery()
        if self._forgets:
            await asyncio.to_thread(catalog.forget_leases)
            self._forgets = False
        snapshot = await asyncio.to_thread(catalog.snapshot)
        fault: httpx.HTTPError | None = None
        if self._with_leases:
            for reconcile in (self._capacity.reconcile_nodes, self._capacity.reconcile_leases):
                try:
                    await reconcile(api, snapshot)
                except httpx.HTTPError as error:  # one object's; what became of all others is still said
                    fault = fault or error
            if await self._capacity.record_leases():
                snapshot = await asyncio.to_thread(catalog.snapshot)
        await gather([self._write_status(api, key, body, snapshot) for key, body in list(self._resources.items())])
        if fault is not None:
            raise fault

    async def _apply(self, api: Api) -> None:
        if not self._dirty:
            return
        async with self._writing:
            await self._apply_dirty(api)

    async def _apply_dirty(self, api: Api) -> None:
        keys = {
            key: body
            for key in self._dirty
            if (body := self._resources.get(key)) is not None
            and not body["metadata"].get("deletionTimestamp")
            and body["metadata"]["uid"] not in self._deleted
        }
        self._dirty = set()
        wanted = [_custom_resource(key[0], body) for key, body in keys.items()]
        try:
            suspects = {body["metadata"]["uid"] for key, body in keys.items() if key in self._faults}
            rows = [one for one in wanted if one.kind != key_secrets.KIND]
            faults = await asyncio.to_thread(catalog.reconcile, rows, suspects)
            for one in wanted:  # after what they open
                if one.kind == key_secrets.KIND:
                    faults[one.uid] = await self._reconcile_key(api, one)
        except Exception:
            self._dirty |= set(keys)
            raise
        for key, body in keys.items():
            fault = faults.get(body["metadata"]["uid"])
            if fault is None:  # not come to yet
                self._dirty.add(key)
                self._wake.set()
                continue
            self._applied[key] = body["metadata"]["generation"]
            if fault:
                self._faults[key] = fault
            else:
                self._faults.pop(key, None)

    async def _reconcile_key(self, api: Api, one: CustomResource) -> str:
        """Applies an ApiKey resource; empty, or why that is not possible."""
        base = f"/api/v1/namespaces/{one.namespace}/secrets"
        try:
            place = key_secrets.SecretReference.of(one)
            there = await api.get(f"{base}/{place.name}")
            value = place.value(there)
            annotations = ((there or {}).get("metadata") or {}).get("annotations") or {}
            if await asyncio.to_thread(key_secrets.is_due, one, place, value, annotations):
                if there is not None:
                    place.check_ours(one, there)
                fresh = make()
                body = place.body(one, fresh)
                if there is None and not await api.create(base, body):
                    return "another one made the Secret at the same moment; it is looked at again"
                if there is not None:
                    seen = {"resourceVersion": there["metadata"]["resourceVersion"]}  # not what took its place since
                    more = seen | {"annotations": body["metadata"]["annotations"]}
                    await api.patch(f"{base}/{place.name}", {"metadata": more, "data": body["data"]})
                value = fresh.text
            tenants = self._key_tenants.get(one.namespace)
            self._key_ids[one.uid] = await asyncio.to_thread(key_secrets.settle, one, place, value, tenants)
        except key_secrets.KeyFault as error:
            return str(error)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 409:
                return "another one changed the Secret at the same moment; it is looked at again"
            said = refusal(error) or str(error)
            if "is forbidden: User " in said:
                return f"the operator has no right to Secrets of namespace {one.namespace}: operator.secrets.namespaces"
            return f"its Secret cannot be written: {said}"[:1000]
        except httpx.HTTPError as error:  # others do not wait for it
            return f"its Secret cannot be written: {type(error).__name__}; it is tried again"
        except catalog.RESOURCE_FAULTS as error:
            return catalog.fault_text(error, one)
        return ""

    def _reconcile_discovery(self) -> None:
        """Runs a discovery for each pool whose replicas are in the cluster."""
        wanted = {
            key: _custom_resource(key[0], body)
            for key, body in self._resources.items()
            if key[0] == "TokenPool" and (body.get("spec") or {}).get(replicas.SPEC) and key not in self._faults
            and not body["metadata"].get("deletionTimestamp")
        }  # fmt: skip
        assert self._info is not None
        for key, (discovery, task, info) in list(self._discoveries.items()):
            one = wanted.get(key)
            same = one is not None and one.uid == discovery.resource.uid and discovery.spec == one.spec[replicas.SPEC]
            if one is not None and same and info is self._info and not task.done():
                discovery.resource = one
                continue
            task.cancel()
            del self._discoveries[key]
        for key in wanted.keys() - self._discoveries.keys():
            discovery = ReplicaDiscovery(wanted[key], self._wake.set)
            self._discoveries[key] = discovery, asyncio.create_task(discovery.run(self._info)), self._info

    async def _write_status(self, api: Api, key: Key, body: dict[str, Any], snapshot: Snapshot) -> None:
        """Writes a resource's status if it differs from what the cluster has."""
        kind, _, name = key
        generation = self._applied.get(key)
        if generation is None:
            return
        fault = self._faults.get(key, "")
        about = _Status({"observedGeneration": generation}, fault)
        about.condition("Ready", not fault, "Refused" if fault else "Applied", fault)
        if kind == key_secrets.KIND:
            about.fields["keyId"] = self._key_ids.get(body["metadata"]["uid"])
        if kind == "TokenPool" and not fault:
            self._add_pool(about, key, snapshot)
        if kind == "TokenEntitlement" and not fault:
            _add_entitlement(about, snapshot.entitlements.get(name, {}))
        about.fields["reason"] = about.reason or None  # a merge patch takes None for "remove it"
        old = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or []}
        about.fields["conditions"] = [_condition(*one, old, generation) for one in about.conditions]
        await self._send_status(api, key, body, about.fields, old)

    def _add_pool(self, about: _Status, key: Key, snapshot: Snapshot) -> None:
        """What a pool's status has besides: its capacity, node and discovered replicas."""
        _, namespace, name = key
        about.reason = node_fault = self._capacity.node_fault(namespace, name)
        about.fields |= snapshot.pools.get(name, {})
        about.fields["node"] = leases.node_name(namespace, name) if self._with_leases else None
        if self._with_leases:
            about.condition("Offered", not node_fault, "Refused" if node_fault else "Offered", node_fault)
        discovery, *_ = self._discoveries.get(key, (None,))
        about.fields["replicas"] = discovery.status() if discovery is not None else None
        if discovery is not None:
            problem = discovery.problem()
            about.condition("ReplicasFound", not problem, "Incomplete" if problem else "Found", problem)

    async def _send_status(
        self, api: Api, key: Key, body: dict[str, Any], status: dict[str, Any], old: dict[str, dict[str, Any]]
    ) -> None:
        """Sends a status if it differs. One that the API server keeps refusing (another version's definition, missing
        rights) holds nothing up: it is logged once for each reason, shown in a condition if that is accepted, and tried
        again later."""
        plural, (kind, namespace, name) = BY_KIND[key[0]].plural, key
        uid, generation = body["metadata"]["uid"], status["observedGeneration"]
        refused = self._refused.get(uid)
        clock = asyncio.get_running_loop().time()
        if refused is None or refused.generation != generation or clock - refused.at >= REFUSED_AGAIN_S:
            if not _differs(body, status):
                self._refused.pop(uid, None)
                return
            try:
                await api.status(plural, namespace, name, status)
            except httpx.HTTPStatusError as error:
                if not (said := refusal(error)):
                    raise
                logged = refused.logged if refused is not None else set()
                if (reason := same_refusal(error)) not in logged:
                    log.warning("the API server refuses the status of %s %s/%s: %s", kind, namespace, name, said)
                refused = self._refused[uid] = RefusedStatus(generation, said, clock, logged | {reason})
            else:
                self._refused.pop(uid, None)
                body["status"] = (body.get("status") or {}) | status  # until the watch says so
                return
        if not refused.conditions:
            return
        message = f"the API server refuses this status, the rest of it may be old: {refused.said}"
        unwritten = _condition("StatusWritten", False, "Refused", message, old, generation)
        short = {"observedGeneration": generation, "conditions": [*status["conditions"], unwritten]}
        if not _differs(body, short):
            return
        try:
            await api.status(plural, namespace, name, short)
        except httpx.HTTPStatusError as error:
            if not refusal(error):
                raise
            refused.conditions = False
        else:
            body["status"] = (body.get("status") or {}) | short


def _add_entitlement(about: _Status, states: Mapping[str, Any]) -> None:
    """What an entitlement's status has besides: its state and its lease."""
    about.reason = states.get("reason", "")
    about.fields |= {"state": states.get("state"), "lease": states.get("lease") or None}
    state = states.get("state") or "unknown"
    about.condition("Bound", state == "bound", state.capitalize(), about.reason)


def _differs(body: dict[str, Any], status: dict[str, Any]) -> bool:
    there = body.get("status") or {}
    return any(there.get(name) != value for name, value in status.items())


def _condition(
    name: str, holds: bool, reason: str, message: str, old: dict[str, dict[str, Any]], generation: int
) -> dict[str, Any]:
    status = "True" if holds else "False"
    before = old.get(name)
    since = before["lastTransitionTime"] if before is not None and before.get("status") == status else now()
    result = {
        "type": name, "status": status, "reason": reason, "lastTransitionTime": since, "observedGeneration": generation,
    }  # fmt: skip
    return result | ({"message": message[:1000]} if message else {})


def _custom_resource(kind: str, body: dict[str, Any]) -> CustomResource:
    metadata = body["metadata"]
    return CustomResource(kind, metadata["namespace"], metadata["name"], metadata["uid"], body.get("spec") or {})


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
        settings.networking.error_backoffs = Backoffs()
        memo.loop = asyncio.create_task(operator.run())

    @kopf.on.cleanup(registry=handlers)
    async def stop(memo: Any, **_: Any) -> None:
        memo.loop.cancel()
        operator.stop_discovery()

    @kopf.on.login(registry=handlers)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        operator.logged_in(info)
        return info

    for resource in RESOURCES:
        _watch(handlers, operator, resource.kind, resource.plural)

    @kopf.on.event("v1", "pods", labels={leases.LEASE_LABEL: kopf.PRESENT}, registry=handlers)
    async def pod(event: Any, body: kopf.Body, **_: Any) -> None:
        operator.on_pod(event["type"], _as_dict(body))

    return handlers


def _watch(handlers: kopf.OperatorRegistry, operator: Operator, kind: str, plural: str) -> None:
    @kopf.on.event(GROUP, VERSION, plural, registry=handlers, id=f"{plural}-seen")
    async def seen(event: Any, body: kopf.Body, **_: Any) -> None:
        operator.on_resource(kind, event["type"], _as_dict(body))

    @kopf.on.delete(GROUP, VERSION, plural, registry=handlers, id=f"{plural}-removed")
    async def removed(body: kopf.Body, **_: Any) -> None:
        await operator.on_delete(kind, _as_dict(body))


def _as_dict(body: kopf.Body) -> dict[str, Any]:
    return {
        "metadata": dict(body["metadata"]),
        "spec": dict(body.get("spec") or {}),
        "status": dict(body.get("status") or {}),
    }


async def serve(
    *,
    namespaces: list[str],
    with_leases: bool = True,
    key_tenants: Mapping[str, Collection[str]] | None = None,
    liveness: str = "",
) -> None:
    """Runs until it is stopped."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it has a line for each event
    operator = Operator(with_leases=with_leases, key_tenants=key_tenants)
    await kopf.operator(
        registry=registry(operator),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        liveness_endpoint=liveness or None,
        memo=kopf.Memo(),
    )
