"""Each kind that ``spec.replicas`` promises to follow, with objects that are as they should be and others.

The kinds of other products are served with the fields that are read and no rules: what their own definitions would
refuse may come from another version of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_engines import Engines
from tests.support.kubernetes_operator import Catalog, Names, condition
from tests.support.ports import free_port

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

GROUPS = {
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io", "v1"),
    "InferencePool": ("inference.networking.k8s.io", "v1"),
    "InferenceService": ("serving.kserve.io", "v1beta1"),
}
OLDER_POOLS = ("inference.networking.x-k8s.io", "v1alpha2")
LWS = "leaderworkerset.sigs.k8s.io"
KSERVE = "serving.kserve.io/inferenceservice"


@pytest.fixture(scope="module")
def kinds(there: Cluster) -> None:
    """Those of other products are served."""
    for kind, group in GROUPS.items():
        there.serve(kind, *group)
    there.serve("InferencePool", *OLDER_POOLS)


def workload(kind: str, name: str, app: str) -> dict[str, Any]:
    """A Deployment or StatefulSet."""
    template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": app}}, "template": template}
    more = {"serviceName": name} if kind == "StatefulSet" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec | more}


def of_others(kind: str, name: str, spec: Any, group: tuple[str, str] | None = None) -> dict[str, Any]:
    version = "/".join(group or GROUPS[kind])
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


class Pools:
    """TokenPools whose replicas are found, and what becomes of them."""

    def __init__(self, there: Cluster, names: Names, catalog: Catalog, model: str) -> None:
        self.there, self.names, self.catalog, self.model = there, names, catalog, model

    def follow(self, kind: str, name: str, port: int | None = None) -> str:
        pool = self.names("TokenPool", f"of-{name}"[:40])
        found = {"from": {"kind": kind, "name": name}} | ({"port": port} if port else {})
        self.there.make("TokenPool", pool, {"model": self.model, "replicas": found})
        return pool

    def has(self, pool: str, *urls: str) -> None:
        """All of them are found, ready and backends, and nothing else is."""
        counts = {"found": len(urls), "ready": len(urls)}
        self.there.wait(lambda: (self.there.get("TokenPool", pool).get("status") or {}).get("replicas") == counts, 150)
        self.there.wait(lambda: condition(self.there, "TokenPool", pool, "ReplicasFound").get("status") == "True")
        rows = f"sorted(Backend.objects.filter(pool__slug='{pool}').values_list('url', flat=True))"
        assert self.catalog.ask(rows) == str(sorted(urls))

    def says(self, pool: str, what: str) -> None:
        """Its resource reports it; it has no replica."""

        def said() -> bool:
            found = condition(self.there, "TokenPool", pool, "ReplicasFound")
            return found.get("status") == "False" and what in str(found.get("message"))

        self.there.wait(said, 150)
        assert condition(self.there, "TokenPool", pool)["status"] == "True", "the pool itself is as it says"


@pytest.fixture
def pools(
    there: Cluster, operator: subprocess.Popen[bytes], catalog: Catalog, names: Names, kinds: None
) -> Iterator[Pools]:
    log = there.folder / "operator.log"
    began = log.stat().st_size
    yield Pools(there, names, catalog, f"model-{os.urandom(3).hex()}")
    assert operator.poll() is None
    text = log.read_bytes()[began:].decode()
    assert "Traceback" not in text, text[-4000:]
    assert "never retrieved" not in text


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_pods_of_a_workload(there: Cluster, pools: Pools, engines: Callable[[str], Engines], kind: str) -> None:
    app = f"vllm-{os.urandom(3).hex()}"
    pods = engines(app)
    pods.pod(f"{app}-0", "127.0.0.2", model=pools.model)
    pods.pod(f"{app}-1", "127.0.0.3", model=pools.model)
    pods.pod(f"{app}-of-others", "127.0.0.4", model="something-else", labels={"app": f"{app}-others"})
    there.create(workload(kind, app, app))
    there.create(workload(kind, f"{app}-others", f"{app}-others"))
    there.create(workload(kind, f"{app}-empty", f"{app}-empty"))
    good, gone = pools.follow(kind, app, pods.port), pools.follow(kind, f"{app}-gone", pods.port)
    empty, others = pools.follow(kind, f"{app}-empty", pods.port), pools.follow(kind, f"{app}-others", pods.port)
    pools.has(good, f"http://127.0.0.2:{pods.port}", f"http://127.0.0.3:{pods.port}")
    pools.says(gone, f"there is no {kind} '{app}-gone' in this namespace")
    pools.says(empty, f"no replica was found: no pod with app={app}-empty is here")
    pools.says(others, "it serves 'something-else'")


def test_leaders_of_a_leader_worker_set(there: Cluster, pools: Pools, engines: Callable[[str], Engines]) -> None:
    name = f"lws-{os.urandom(3).hex()}"
    pods = engines(name)
    for at, (group, worker) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        labels = {f"{LWS}/name": name, f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
        pod = f"{name}-{group}" + (f"-{worker}" if worker else "")
        pods.pod(pod, f"127.0.0.{at + 2}", model=pools.model, labels=labels)
    headless = {f"{LWS}/name": f"{name}-headless", f"{LWS}/worker-index": "1"}
    pods.pod(f"{name}-headless-0-1", "127.0.0.6", model=pools.model, labels=headless)
    for one in (name, f"{name}-headless"):
        there.create(of_others("LeaderWorkerSet", one, {"replicas": 2, "leaderWorkerTemplate": {"size": 2}}))
    good, wrong = (
        pools.follow("LeaderWorkerSet", name, pods.port),
        pools.follow("LeaderWorkerSet", f"{name}-headless", pods.port),
    )
    pools.has(good, f"http://127.0.0.2:{pods.port}", f"http://127.0.0.4:{pods.port}")
    pools.says(wrong, f"no pod with {LWS}/name={name}-headless,{LWS}/worker-index=0 is here")


def test_pods_of_an_inference_pool(there: Cluster, pools: Pools, engines: Callable[[str], Engines]) -> None:
    """Its target port is the replicas' own; both versions of it are read."""
    name = f"ip-{os.urandom(3).hex()}"
    pods = engines(name)
    pods.pod(f"{name}-0", "127.0.0.2", model=pools.model)
    pods.pod(f"{name}-older-0", "127.0.0.3", model=pools.model, labels={"app": f"{name}-older"})
    port = [{"number": pods.port}]
    mine = {"matchLabels": {"app": name}}
    there.create(of_others("InferencePool", name, {"selector": mine, "targetPorts": port}))
    older = {"selector": {"app": f"{name}-older"}, "targetPortNumber": pods.port}
    there.create(of_others("InferencePool", f"{name}-older", older, OLDER_POOLS))
    wrong: dict[str, tuple[Any, str]] = {
        "bare": ({}, "has no selector that can be followed"),
        "text": ({"selector": "app=vllm", "targetPorts": port}, "has no selector that can be followed"),
        "labels": ({"selector": {"matchLabels": [name]}, "targetPorts": port}, "a selector that cannot be read"),
        "nested": ({"selector": {"matchLabels": {"app": {"is": name}}}, "targetPorts": port}, "the Kubernetes API: "),
        "every": ({"selector": {"matchLabels": {}}, "targetPorts": port}, "selects every pod of the namespace"),
        "ports": ({"selector": mine, "targetPorts": [{}]}, "has no target port that can be read"),
        "closed": ({"selector": mine, "targetPorts": [{"number": free_port()}]}, "it is not taken yet: "),
    }
    for what, (spec, _) in wrong.items():
        there.create(of_others("InferencePool", f"{name}-{what}", spec))
    good, second = pools.follow("InferencePool", name), pools.follow("InferencePool", f"{name}-older")
    followed = {what: pools.follow("InferencePool", f"{name}-{what}") for what in wrong}
    gone = pools.follow("InferencePool", f"{name}-gone")
    pools.has(good, f"http://127.0.0.2:{pods.port}")
    pools.has(second, f"http://127.0.0.3:{pods.port}")
    for what, pool in followed.items():
        pools.says(pool, wrong[what][1])
    pools.says(gone, f"there is no InferencePool '{name}-gone' in this namespace")


def test_pods_of_an_inference_service(there: Cluster, pools: Pools, engines: Callable[[str], Engines]) -> None:
    name = f"isvc-{os.urandom(3).hex()}"
    pods = engines(name)
    pods.pod(f"{name}-predictor-0", "127.0.0.2", model=pools.model, labels={KSERVE: name})
    pods.pod(f"{name}-transformer-0", "127.0.0.3", model="something-else", labels={KSERVE: f"{name}-wrong"})
    for one in (name, f"{name}-wrong", f"{name}-asleep"):
        there.create(of_others("InferenceService", one, {"predictor": {"model": {"modelFormat": {"name": "vllm"}}}}))
    good, wrong, asleep = (
        pools.follow("InferenceService", f"{name}{end}", pods.port) for end in ("", "-wrong", "-asleep")
    )
    pools.has(good, f"http://127.0.0.2:{pods.port}")
    pools.says(wrong, "it serves 'something-else'")
    pools.says(asleep, f"no replica was found: no pod with {KSERVE}={name}-asleep is here")
