"""Pods written by a test as a kubelet would, with simulated engines at their addresses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import httpx

from tests.support.instance import ROOT
from tests.support.kubernetes_cluster import Cluster

MERGE = "application/merge-patch+json"


class Engines:
    """Simulated engines that are pods: each at an address of its own, all at one port."""

    def __init__(self, there: Cluster, app: str, port: int, namespace: str = "default") -> None:
        self.there, self.app, self.port, self.namespace = there, app, port, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def pod(
        self,
        name: str,
        address: str,
        *,
        model: str,
        slots: int = 16,
        ready: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.processes[name] = subprocess.Popen(
            [
                sys.executable, "-m", "scheduling.engines.simulated", "--model", model, "--host", address,
                "--port", str(self.port), "--slots", str(slots), "--kv-tokens", "50000",
            ],
            cwd=ROOT,
        )  # fmt: skip
        self.there.wait(lambda: httpx.get(f"http://{address}:{self.port}/health").is_success)
        made = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {"app": self.app}},
            "spec": {
                "nodeName": "gpu-1",
                "containers": [{"name": "vllm", "image": "vllm", "args": ["serve", f"--max-num-seqs={slots}"]}],
            },
        }  # fmt: skip
        self.there.create(made, self.namespace)
        self.is_ready(name, address, ready)

    def is_ready(self, name: str, address: str, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
        self.there.call("PATCH", f"{self.path}/{name}/status", {"status": status}, kind=MERGE)

    def end(self, name: str) -> None:
        """Its process is gone."""
        self.processes[name].kill()
        self.processes[name].wait()

    def delete(self, name: str, grace_s: int) -> None:
        self.there.client.request("DELETE", f"{self.path}/{name}", json={"gracePeriodSeconds": grace_s})
