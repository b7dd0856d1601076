"""Replicas found in the cluster: pods written by the test as a kubelet would, simulated engines at their addresses.

Each pod has a loopback address of its own: no kubelet gives them any."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from controlplane.kubernetes import leases
from controlplane.kubernetes.resources import GROUP
from tests.support.instance import Up
from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_engines import Engines
from tests.support.kubernetes_operator import Names, condition, contract, entitlement, operating, state_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

MERGE = "application/merge-patch+json"


def deployment(app: str) -> dict[str, Any]:
    labels = {"app": app}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip


def test_replicas_of_a_deployment_come_drain_and_go(
    there: Cluster, instance: Up, names: Names, engines: Callable[[str], Engines]
) -> None:
    app = model = f"vllm-{os.urandom(3).hex()}"
    pods = engines(app)
    there.create(deployment(app))
    served = names("TokenPool", "found")
    found = {"from": {"kind": "Deployment", "name": app}, "port": pods.port}
    node = f"/api/v1/nodes/{leases.node_name('default', served)}"

    def slots() -> str:
        return there.call("GET", node)["status"].get("allocatable", {}).get(f"{GROUP}/slots", "0")

    with operating(there, instance), httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.admin()) as api:

        def said() -> str:
            return str(condition(there, "TokenPool", served, "ReplicasFound").get("message", ""))

        def backends() -> dict[str, dict[str, Any]]:
            rows = api.get("/backends", params={"pool": served}).json()["results"]
            return {row["slug"]: row for row in rows if row["pool"] == served}

        there.make("TokenPool", served, {"model": model, "replicas": found})
        there.wait(lambda: said().startswith("no replica was found: no "))

        first, second, other = f"{app}-1", f"{app}-2", f"{app}-3"
        pods.pod(first, "127.0.0.2", model=model, slots=24)
        pods.pod(second, "127.0.0.3", model=model, slots=16, ready=False)
        there.wait(lambda: slots() == "24")  # as the pod's command says; its KV cache the engine says
        mine = backends()
        assert set(mine) == {first}
        assert (mine[first]["kv_tokens"], mine[first]["managed"]) == (50_000, True)
        pods.is_ready(second, "127.0.0.3", True)
        there.wait(lambda: slots() == "40")
        there.wait(lambda: condition(there, "TokenPool", served, "ReplicasFound").get("status") == "True")
        assert there.get("TokenPool", served)["status"]["replicas"] == {"found": 2, "ready": 2}

        # What the cluster says of them is not changed elsewhere; what it does not say is.
        for path, body in ((first, {"slots": 1}), (first, {"url": "http://10.0.0.1:8000"})):
            refused = api.patch(f"/backends/{path}", json=body)
            assert refused.status_code == 400
            assert f"TokenPool default/{served} in Kubernetes sets this" in refused.text
        assert api.delete(f"/backends/{first}").status_code in (400, 409)
        assert api.patch(f"/backends/{first}", json={"description": "GPU 1"}).status_code == 200

        tier = contract(there, names)
        share = entitlement(there, names, tier, served, 4)
        there.wait(lambda: state_of(there, share) == "bound")
        key = api.post("/keys", json={"name": "found", "entitlement": share}).json()["key"]
        ask = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
        with httpx.Client(base_url=f"{instance.url}/v1", headers={"authorization": f"Bearer {key}"}) as client:
            there.wait(lambda: client.post("/chat/completions", json=ask).is_success)

        # One that does not serve the model is not taken, and the resource says why.
        pods.pod(other, "127.0.0.4", model="something-else")
        there.wait(
            lambda: "something-else" in condition(there, "TokenPool", served, "ReplicasFound").get("message", "")
        )
        assert other not in backends()
        pods.end(other)
        pods.delete(other, 0)

        # Not ready, it drains; ready again, it serves again.
        pods.is_ready(second, "127.0.0.3", False)
        there.wait(lambda: backends()[second]["draining"] and slots() == "24")
        assert api.patch(f"/backends/{second}", json={"draining": False}).status_code == 400
        pods.is_ready(second, "127.0.0.3", True)
        there.wait(lambda: not backends()[second]["draining"] and slots() == "40")

        # Terminating, it drains; it goes when its engine has.
        pods.delete(first, 60)
        there.wait(lambda: backends()[first]["draining"] and slots() == "16")
        pods.delete(first, 0)
        there.wait(lambda: there.get("TokenPool", served)["status"]["replicas"]["found"] == 1)
        assert first in backends()  # it answers still: a request may run there
        pods.end(first)
        there.wait(lambda: set(backends()) == {second})

        # Found no more: the resource says other things.
        there.change("TokenPool", served, {"replicas": None})
        there.wait(lambda: backends() == {})


def test_the_endpoints_of_a_service_are_followed(there: Cluster, instance: Up, names: Names) -> None:
    service = f"svc-{os.urandom(3).hex()}"
    served = names("TokenPool", "service")
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    version = "v1" if there.client.get(path).status_code == 200 else "v1beta1"
    path = path.replace("/v1/", f"/{version}/")
    # Addresses that nobody has; the API takes no loopback ones here.
    listed = {
        "apiVersion": f"discovery.k8s.io/{version}", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": ["192.0.2.1"], "conditions": {"ready": True}},
            {"addresses": ["192.0.2.2"], "conditions": {"ready": False}},
        ],
    }  # fmt: skip
    with operating(there, instance):
        there.make("TokenPool", served, {"model": served, "replicas": {"from": {"kind": "Service", "name": service}}})

        def said() -> str:
            return str(condition(there, "TokenPool", served, "ReplicasFound").get("message", ""))

        there.wait(lambda: said().startswith("no replica was found: no "))
        there.call("POST", path, listed)

        there.wait(lambda: there.get("TokenPool", served)["status"]["replicas"] == {"found": 2, "ready": 0}, 60)
        there.wait(lambda: "http://192.0.2.1:8000: it is not taken yet" in said())
        assert "192.0.2.2" not in said()  # it was not asked
        there.call("DELETE", f"{path}/{service}")
        there.wait(lambda: said().startswith("no replica was found: no "))


def test_the_cluster_refuses_what_cannot_be_meant(there: Cluster) -> None:
    for found in (
        {"from": {"kind": "DaemonSet", "name": "x"}},
        {"from": {"kind": "Service"}},
        {"selector": {"matchLabels": {}}},
        {"from": {"kind": "Service", "name": "x"}, "port": 70_000},
    ):
        body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "TokenPool", "metadata": {"name": "wrong"}}
        answer = there.client.post(there.path("TokenPool"), json=body | {"spec": {"model": "wrong", "replicas": found}})
        assert answer.status_code == 422, (found, answer.text)
