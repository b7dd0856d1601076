"""Scale to zero and back, by the worker's own service account and the chart's Role, read back from the API server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.scaling.drivers import DriverError, Order, Replica
from controlplane.scaling.drivers.kubernetes import COST, KubernetesDriver
from controlplane.scaling.drivers.kubernetes import Cluster as Account
from scheduling.core.types import PoolSpec, ScalingMode, ScalingSpec
from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_operator import STRANGER, WORKER

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

MERGE = "application/merge-patch+json"
PODS = "/api/v1/namespaces/inference/pods"
GROUPS = "leaderworkerset.x-k8s.io"


def driver(there: Cluster, folder: Path, account: str, **params: Any) -> KubernetesDriver:
    """With a token of that account where a pod would find its own."""
    folder = folder / account.replace(":", "-")
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(there.tokens[account])
    (folder / "namespace").write_text("llm")
    (folder / "ca.crt").write_bytes((there.folder / "certs" / "apiserver.crt").read_bytes())  # it signed itself
    params |= {"namespace": "inference", "slots": 16, "kv_tokens": 50_000}
    spec = ScalingSpec(ScalingMode.AUTOMATIC, 0, 4, "kubernetes", params, idle_s=60.0)
    return KubernetesDriver(
        PoolSpec("p", "m", "m", (), scaling=spec), Account(f"https://127.0.0.1:{there.port}", folder)
    )


def pod(there: Cluster, name: str, labels: dict[str, str], address: str) -> None:
    """As the controller and a kubelet would make it."""
    spec = {"nodeName": "gpu-1", "containers": [{"name": "vllm", "image": "vllm"}]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    there.create(made, "inference")
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    there.call("PATCH", f"{PODS}/{name}/status", {"status": status}, kind=MERGE)


def delete(there: Cluster, name: str) -> None:
    there.client.request("DELETE", f"{PODS}/{name}", json={"gracePeriodSeconds": 0})


def test_a_deployment_goes_to_zero_and_back_and_its_drained_pod_is_the_one_that_ends(
    there: Cluster, tmp_path: Path
) -> None:
    app = f"vllm-{os.urandom(3).hex()}"
    labels = {"app": app}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    path = f"/apis/apps/v1/namespaces/inference/deployments/{app}"
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    there.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app}, "spec": spec}, "inference"
    )  # fmt: skip

    def scale() -> int:
        return int(there.call("GET", f"{path}/scale")["spec"].get("replicas", 0))

    ours = driver(there, tmp_path, WORKER, deployment=app)
    assert (ours.replicas(), scale()) == ([], 0)
    ours.grow(Order("scale-1", 1))
    ours.grow(Order("scale-1", 1))
    assert scale() == 1
    pod(there, f"{app}-1", labels, "10.9.0.1")
    replica = Replica(f"{app}-1", "http://10.9.0.1:8000")
    assert ours.replicas() == [replica]
    ours.shrink(Order("end-1", 0, (replica,)))
    assert scale() == 0
    assert there.call("GET", f"{PODS}/{app}-1")["metadata"]["annotations"][COST] == "-1000"
    delete(there, f"{app}-1")
    ours.shrink(Order("end-1", 0, (replica,)))
    assert (ours.replicas(), scale()) == ([], 0)
    ours.grow(Order("scale-2", 1))
    assert scale() == 1

    with pytest.raises(DriverError, match=r"403.*give its Role the right"):
        driver(there, tmp_path, STRANGER, deployment=app).grow(Order("scale-3", 2))
    assert scale() == 1


def test_a_leader_worker_set_is_scaled_by_its_own_subresource_and_only_leaders_are_replicas(
    there: Cluster, tmp_path: Path
) -> None:
    there.serve("LeaderWorkerSet", GROUPS, "v1")
    path = f"/apis/{GROUPS}/v1/namespaces/inference/leaderworkersets"
    name = f"big-{os.urandom(3).hex()}"
    made = {
        "apiVersion": f"{GROUPS}/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": 0},
    }
    there.call("POST", path, made)

    def scale() -> int:
        return int(there.call("GET", f"{path}/{name}/scale")["spec"].get("replicas", 0))

    ours = driver(there, tmp_path, WORKER, leader_worker_set=name)
    ours.grow(Order("scale-1", 2))
    assert scale() == 2
    for group in range(2):
        for worker in range(2):
            index = {
                f"{GROUPS.replace('x-k8s.io', 'sigs.k8s.io')}/{k}": v
                for k, v in (("name", name), ("worker-index", str(worker)))
            }
            pod(there, f"{name}-{group}" + ("" if worker == 0 else f"-{worker}"), index, f"10.9.{group}.{worker + 1}")
    first, last = Replica(f"{name}-0", "http://10.9.0.1:8000"), Replica(f"{name}-1", "http://10.9.1.1:8000")
    assert list(ours.replicas()) == [first, last]
    assert ours.in_turn([first.name, last.name]) == [last.name, first.name], "it ends its last group first"
    ours.shrink(Order("end-1", 1, (last,)))
    assert scale() == 1
    ours.shrink(Order("end-2", 0, (first,)))
    assert scale() == 0
