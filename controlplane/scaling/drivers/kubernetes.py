"""Replicas of a Deployment or LeaderWorkerSet, through the Kubernetes API with the token of our own pod.

Growing patches the ``scale`` subresource. Every running pod that the Deployment selects is a backend, by its address;
one that still starts is a backend as well and gets work once it has generated a token. Before shrinking, the pods that
have drained get the lowest ``pod-deletion-cost``, so that the controller ends those and no others.

A LeaderWorkerSet's groups end from the highest index down, whatever anybody says: its replicas drain in that order. Its
backends are the leader pods.

Rights needed in their namespace: get on deployments (leaderworkersets); get and patch on their scale; list and patch on
pods (``docs/guide/scaling.md`` has the Role).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from controlplane.scaling.drivers import DriverError, Order, Replica, driver
from scheduling.core.types import PoolSpec

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-1000"
LEADERS = {  # of a LeaderWorkerSet's pods, only the leader of a group answers requests
    "leaderworkerset.sigs.k8s.io/name": "{name}",
    "leaderworkerset.sigs.k8s.io/worker-index": "0",
}
TIMEOUT_S = 10.0
PAGE = 500


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the API is, and who we are. The token is read at each call: the kubelet renews the file."""

    url: str
    account: Path = ACCOUNT

    @classmethod
    def around_us(cls) -> Cluster:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise DriverError("this worker does not run in Kubernetes (KUBERNETES_SERVICE_HOST is not set)")
        account = Path(os.environ.get("KUBERNETES_SERVICE_ACCOUNT") or ACCOUNT)
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", account)

    def read(self, name: str) -> str:
        try:
            return (self.account / name).read_text().strip()
        except OSError as error:
            raise DriverError(f"the pod's service account cannot be read ({self.account / name})") from error


@driver("kubernetes")
class KubernetesDriver:
    def __init__(self, pool: PoolSpec, cluster: Cluster | None = None) -> None:
        self._cluster = cluster or Cluster.around_us()
        params = pool.scaling.params
        self._deployment = str(params.get("deployment", ""))
        self._groups = str(params.get("leader_worker_set", ""))
        self._namespace = str(params.get("namespace") or self._cluster.read("namespace"))
        self._port = int(params.get("port", 8000))
        authorities = self._cluster.account / "ca.crt"
        self._verify = ssl.create_default_context(cafile=authorities if authorities.exists() else None)

    def replicas(self) -> Sequence[Replica]:
        replicas = []
        for pod in self._pods():
            url = self._url(pod)
            if url and pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
                replicas.append(Replica(_name(pod), url))
        return replicas

    def _url(self, pod: dict[str, Any]) -> str:
        """Empty while it has no address."""
        address = pod["status"].get("podIP")
        return f"http://{f'[{address}]' if ':' in address else address}:{self._port}" if address else ""

    def in_turn(self, names: Sequence[str]) -> Sequence[str] | None:
        return sorted(names, key=_index, reverse=True) if self._groups else None

    def grow(self, order: Order) -> None:
        if self._scale() < order.replicas:
            self._set_scale(order.replicas)

    def shrink(self, order: Order) -> None:
        """Only while there are more pods than ``order.replicas``: asked again, it ends nothing more."""
        urls = {replica.url for replica in order.remove}
        going = [pod for pod in self._pods() if self._url(pod) in urls and not pod["metadata"].get("deletionTimestamp")]
        for pod in going:
            self._call(
                "PATCH",
                f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}",
                {"metadata": {"annotations": {COST: FIRST_TO_GO}}},
            )
        if going:
            self._set_scale(max(0, self._scale() - len(going)))

    def _pods(self) -> list[dict[str, Any]]:
        labels = self._labels()
        pods: list[dict[str, Any]] = []
        query = {"labelSelector": labels, "limit": str(PAGE)}
        while True:
            page = self._call("GET", f"/api/v1/namespaces/{self._namespace}/pods", query=query)
            pods += page["items"]
            query["continue"] = page.get("metadata", {}).get("continue", "")
            if not query["continue"]:
                return pods

    def _labels(self) -> str:
        if self._groups:
            return ",".join(f"{name}={value.format(name=self._groups)}" for name, value in LEADERS.items())
        selector = self._call("GET", self._path())["spec"]["selector"]
        labels = ",".join(f"{name}={value}" for name, value in sorted(selector.get("matchLabels", {}).items()))
        if not labels or selector.get("matchExpressions"):
            raise DriverError(f"Deployment {self._deployment} must select its pods by matchLabels alone")
        return labels

    def _path(self) -> str:
        if self._groups:
            return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{self._namespace}/leaderworkersets/{self._groups}"
        return f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{self._deployment}"

    def _scale(self) -> int:
        return int(self._call("GET", f"{self._path()}/scale")["spec"].get("replicas", 0))

    def _set_scale(self, replicas: int) -> None:
        self._call("PATCH", f"{self._path()}/scale", {"spec": {"replicas": replicas}})

    def _call(
        self, method: str, path: str, patch: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._cluster.read('token')}", "accept": "application/json"}
        if patch is not None:
            headers["content-type"] = "application/merge-patch+json"
        try:
            with httpx.Client(verify=self._verify, timeout=TIMEOUT_S, trust_env=False) as http:
                answer = http.request(method, self._cluster.url + path, headers=headers, json=patch, params=query)
                answer.raise_for_status()
                return dict(answer.json())
        except httpx.HTTPStatusError as error:
            hint = {401: "; is the service account mounted?", 403: "; give its Role the right", 404: "; check the name"}
            code = error.response.status_code
            raise DriverError(f"Kubernetes answered {code} to {method} {path}{hint.get(code, '')}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise DriverError(f"Kubernetes does not answer {method} {path} ({type(error).__name__})") from error


def _index(name: str) -> int:
    """Of a group, from its leader's name."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _name(pod: dict[str, Any]) -> str:
    """A backend's name: the pod's, which is longer than ours may be only in its beginning."""
    return str(pod["metadata"]["name"])[-63:].lstrip("-").replace(".", "-")
