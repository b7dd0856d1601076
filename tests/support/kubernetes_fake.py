"""A Kubernetes API in the test's own process, for quick tests of the operator.

kmock (by kopf's author) keeps objects, streams watches and collects what a finalizer held. What it leaves to whoever
derives from it is added here: uid, generation and resourceVersion, what a deletion requires, and answers that are not
good ones. A real API server is in ``tests/kubernetes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp.web import StreamResponse
from kmock import KubernetesEmulator, KubernetesError, Request, Server, action, resource

from controlplane.kubernetes import discovery, leases, operator
from controlplane.kubernetes.resources import API_VERSION, BY_KIND, RESOURCES

WAIT_S = 30.0
OTHERS = {
    "v1/pods": True, "v1/nodes": False, "v1/secrets": True, "v1/namespaces": False,
    "coordination.k8s.io/v1/leases": True, "apiextensions.k8s.io/v1/customresourcedefinitions": False,
}  # fmt: skip
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]
Asks = Callable[[Request], bool]


def to(method: str, plural: str, namespace: str | None = None, subresource: str | None = None) -> Asks:
    """Calls of one kind. A read, a list and a watch are all GET."""

    def asks(request: Request) -> bool:
        return (
            request.method.value.upper() == method
            and request.resource is not None
            and request.resource.plural == plural
            and namespace in (None, request.namespace)
            and subresource in (None, request.subresource)
        )

    return asks


class FakeApi(KubernetesEmulator):
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._answers: list[tuple[Asks, int, str]] = []
        self._slow: list[tuple[Asks, asyncio.Event]] = []
        self.asked: list[Request] = []  # what was asked of it, refused calls included
        for one in RESOURCES:
            self._serve(f"{API_VERSION}/{one.plural}", one.kind, True, ("status",))
        for plural, namespaced in OTHERS.items():
            self._serve(plural, plural.rsplit("/", 1)[1].title(), namespaced, ())

    def _serve(self, plural: str, kind: str, namespaced: bool, subresources: tuple[str, ...]) -> None:
        self.resources[plural] = {
            "kind": kind, "singular": kind.lower(), "namespaced": namespaced, "verbs": VERBS,
            "subresources": list(subresources), "shortnames": [], "categories": [],
        }  # fmt: skip

    # --- what tests do to it

    @contextmanager
    def answering(self, asks: Asks, status: int, message: str = "") -> Iterator[None]:
        """Such calls change nothing and get this answer."""
        fault = (asks, status, message)
        self._answers.append(fault)
        try:
            yield
        finally:
            self._answers.remove(fault)

    @contextmanager
    def silent(self, asks: Asks) -> Iterator[None]:
        """Such calls get no answer until the end; then the one that they would have had."""
        over = asyncio.Event()
        fault = (asks, over)
        self._slow.append(fault)
        try:
            yield
        finally:
            self._slow.remove(fault)
            over.set()

    async def make(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> None:
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        await self._call("POST", self.path(kind, namespace=namespace), body)

    async def change(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> None:
        await self._call("PATCH", self.path(kind, name, namespace), {"spec": spec})

    async def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        await self._call("DELETE", self.path(kind, name, namespace), {})

    async def bind(self, pod: str, namespace: str = "default") -> None:
        """As the scheduler binds a pod, and the API server notes it."""
        there = self.get("v1/pods", pod, namespace)
        assert there is not None
        wanted = there["spec"]["nodeSelector"]
        node = leases.node_name(wanted[leases.NAMESPACE_LABEL], wanted[leases.NODE_LABEL])
        bound = {
            "spec": {"nodeName": node},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        }
        await self._call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}", bound)

    def change_unseen(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> None:
        """A change that no watch tells, as one from before a watch that is too old."""
        there = self.objects[self._key(kind), namespace, name]
        there.patch({"spec": spec, "metadata": {"generation": there["metadata"]["generation"] + 1}})

    async def expire_watches(self, kind: str, namespace: str = "default") -> None:
        """Each watch of it is told that what it knows is too old, 410, and ends there for a client that goes by it."""
        gone = {"kind": "Status", "apiVersion": "v1", "metadata": {"namespace": namespace}, "code": 410}
        await self._buses[self._key(kind)].put({"type": "ERROR", "object": gone})

    # --- what tests see

    def path(self, kind: str, name: str = "", namespace: str = "default") -> str:
        base = f"/apis/{API_VERSION}/namespaces/{namespace}/{BY_KIND[kind].plural}"
        return f"{base}/{name}" if name else base

    def get(self, kind: str, name: str, namespace: str | None = "default") -> dict[str, Any] | None:
        """One of our resources, or ``v1/pods`` and such."""
        there = self._there(self._key(kind), namespace, name)
        return None if there is None else there.raw

    def condition(self, kind: str, name: str, of: str = "Ready", namespace: str = "default") -> dict[str, Any]:
        status = (self.get(kind, name, namespace) or {}).get("status") or {}
        return next((one for one in status.get("conditions") or [] if one["type"] == of), {})

    def calls(self, asks: Asks) -> int:
        return sum(asks(request) for request in self.asked)

    # --- how it answers

    def _there(self, of: resource, namespace: str | None, name: str) -> Any:
        key = (of, namespace, name)
        return self.objects[key] if key in self.objects and not self.objects[key].deleted else None

    @staticmethod
    def _key(kind: str) -> resource:
        return resource(f"{API_VERSION}/{BY_KIND[kind].plural}" if kind in BY_KIND else kind)

    async def _call(self, method: str, path: str, body: dict[str, Any]) -> None:
        async with self.request(method, path, json=body) as answer:
            assert answer.ok, await answer.text()

    async def _handle(self, request: Request) -> StreamResponse:
        self.asked.append(request)
        for asks, over in list(self._slow):
            if asks(request):
                await over.wait()
        for asks, status, message in self._answers:
            if asks(request):
                raise KubernetesError(status=status, reason="ByTheTest", message=message or f"{status} by the test")
        if request.resource is not None:
            self._as_a_server_does(request)
        return await super()._handle(request)

    def _as_a_server_does(self, request: Request) -> None:
        if request.action == action.CREATE:
            metadata = request.data.setdefault("metadata", {})
            number = next(self._numbers)
            metadata |= {"uid": f"uid-{number}", "generation": 1, "resourceVersion": str(number)}
            if request.namespace:
                metadata["namespace"] = request.namespace
            return
        there = self._there(request.resource, request.namespace, request.name) if request.name else None
        if there is None:
            return
        metadata = there["metadata"]
        if request.action == action.UPDATE:
            version = str(next(self._numbers))
            if isinstance(request.data, list):  # a JSON patch: kopf's, of finalizers
                seen = next((one["value"] for one in request.data if one["op"] == "test"), metadata["resourceVersion"])
                if seen != metadata["resourceVersion"]:
                    raise KubernetesError(status=422, reason="Invalid", message="it has changed meanwhile")
                request.data.append({"op": "replace", "path": "/metadata/resourceVersion", "value": version})
                return
            changed = request.data.setdefault("metadata", {})
            if changed.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
                raise KubernetesError(status=409, reason="Conflict", message="it has changed meanwhile")
            changed["resourceVersion"] = version
            if "spec" in request.data:
                changed["generation"] = metadata["generation"] + 1
        elif request.action == action.DELETE:
            required = (request.data or {}).get("preconditions") or {}
            if any(metadata.get(name) != value for name, value in required.items()):
                raise KubernetesError(status=409, reason="Conflict", message="it has changed meanwhile")


async def until(what: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """The first value of ``what`` that is true."""
    async with asyncio.timeout(seconds):
        while not (found := what()):
            await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def fake_api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api, Server(api):
        yield api


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in threads takes turns: SQLite in memory, which tests have, locks whole tables without waiting."""
    turns, to_thread = asyncio.Lock(), asyncio.to_thread

    async def in_turn(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async with turns:
            return await to_thread(work, *args, **options)

    monkeypatch.setattr(asyncio, "to_thread", in_turn)


@asynccontextmanager
async def operating(api: FakeApi, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[None]:
    """The operator as ``manage.py operator`` runs it, quicker to try again."""
    user = {"name": "u", "user": {"token": "made-up"}}
    config = {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": str(api.url)}}],
        "users": [user], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
    }  # fmt: skip
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for module, name, seconds in (
        (operator, "AGAIN_S", 0.3), (operator, "LOOK_S", 0.1), (operator, "RETRY_S", 0.1), (discovery, "RETRY_S", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
    one_at_a_time(monkeypatch)
    task = asyncio.create_task(operator.serve(namespaces=[], **options))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
