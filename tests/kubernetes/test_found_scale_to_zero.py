"""A pool whose replicas the cluster has, at zero: a request wakes it, is told how long, and is served; then it sleeps.

The Deployment's controller and a kubelet are the test: they make and end the pod that the Deployment's scale asks for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kubernetes.test_found_replicas import Engines, deployment
from tests.support.instance import Up
from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_operator import WORKER, condition, operating
from tests.support.ports import free_port

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

PLACE = "inference"  # where the chart's Role lets the worker scale
SLEEPS_AFTER_S, WAKES_IN_S = 10, 90
PATIENCE_S = 200.0


class Kubelet:
    """Has as many pods as the Deployment's scale says. One that is made is ready once its engine answers."""

    def __init__(self, there: Cluster, app: str, pods: Engines, model: str) -> None:
        self.there, self.app, self.pods, self.model = there, app, pods, model
        self.path = f"/apis/apps/v1/namespaces/{PLACE}/deployments/{app}"
        self.running: list[str] = []
        self.moments: list[tuple[str, float]] = []
        self.faults: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def scale(self) -> int:
        return int(self.there.call("GET", f"{self.path}/scale")["spec"].get("replicas", 0))

    def _run(self) -> None:
        made = 0
        while not self._over.wait(0.1):
            try:
                wanted = self.scale()
                if wanted > len(self.running):
                    self.moments.append(("scaled", time.monotonic()))
                    made += 1
                    name = f"{self.app}-{made}"
                    self.pods.pod(name, f"127.0.0.{20 + made}", model=self.model, slots=8)
                    self.moments.append(("ready", time.monotonic()))
                    self.running.append(name)
                elif wanted < len(self.running):
                    name = self.running.pop()
                    self.pods.delete(name, 0)
                    self.pods.end(name)
            except Exception as error:
                self.faults.append(error)

    def close(self) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.fixture
def outside(there: Cluster, tmp_path: Path) -> Iterator[Up]:
    """An instance whose worker has the account that the chart gives it."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(there.tokens[WORKER])
    (account / "namespace").write_text("llm")
    (account / "ca.crt").write_bytes((there.folder / "certs" / "apiserver.crt").read_bytes())  # it signed itself
    up = Up(
        tmp_path / "home",
        KUBERNETES_SERVICE_HOST="127.0.0.1",
        KUBERNETES_SERVICE_PORT=str(there.port),
        KUBERNETES_SERVICE_ACCOUNT=str(account),
    ).start()
    try:
        yield up.wait_ready()
    finally:
        up.stop()


def test_a_request_wakes_a_pool_of_found_replicas_and_is_told_how_long(
    there: Cluster, outside: Up, figure: Callable[[str], None]
) -> None:
    own = os.urandom(3).hex()
    app = pool = f"asleep-{own}"
    pods = Engines(there, app, free_port(), PLACE)
    there.create(deployment(app) | {"spec": deployment(app)["spec"] | {"replicas": 0}}, PLACE)
    made: list[tuple[str, str]] = []

    def make(kind: str, name: str, spec: dict[str, Any]) -> str:
        there.make(kind, name, spec, PLACE)
        made.append((kind, name))
        return name

    driver = {"deployment": app, "namespace": PLACE, "port": pods.port, "slots": 8, "kv_tokens": 50_000}
    scaling = {
        "mode": "automatic", "minReplicas": 0, "maxReplicas": 2, "sleepAfterSeconds": SLEEPS_AFTER_S,
        "wakesInSeconds": WAKES_IN_S, "driver": {"name": "kubernetes", "params": driver},
    }  # fmt: skip
    found = {"from": {"kind": "Deployment", "name": app}, "port": pods.port, "slots": 8, "kvTokens": 50_000}
    kubelet = Kubelet(there, app, pods, pool)
    api = httpx.Client(base_url=f"{outside.url}/api/v1", headers=outside.admin())

    def key(wait_s: float) -> str:
        """Of a tenant whose tier waits so long at most."""
        what = f"{'patient' if wait_s > 1 else 'hasty'}-{own}"
        elastic = {"serviceClass": "elastic", "slo": f"calm-{own}", "overLimit": "wait", "queueLimit": 100}
        make("Tier", what, elastic | {"maxWaitSeconds": wait_s})
        make("Tenant", what, {})
        refs = {"tenantRef": {"name": what}, "poolRef": {"name": pool}, "qos": {"tier": what}}
        make("TokenEntitlement", what, refs | {"resources": {"concurrency": 2}})
        answer = there.wait(
            lambda: found if (found := api.post("/keys", json={"name": what, "entitlement": what})).is_success else None
        )
        return str(answer.json()["key"])

    def shown() -> str:
        return str((there.get("TokenPool", pool, PLACE).get("status") or {}).get("backends", ""))

    body = {"model": pool, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}

    def ask(secret: str) -> httpx.Response:
        return httpx.post(
            f"{outside.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {secret}"}, timeout=400
        )

    try:
        with operating(there, outside):
            make("Slo", f"calm-{own}", {"ttftSeconds": 60.0, "tbtSeconds": 1.0})
            make("TokenPool", pool, {"model": pool, "replicas": found, "scaling": scaling})
            patient, hasty = key(300), key(0.5)
            there.wait(lambda: shown() == "asleep", PATIENCE_S)
            assert kubelet.scale() == 0
            there.wait(lambda: outside.get("/readyz")[1].decode().count(f'"{pool}"'), PATIENCE_S)

            began = time.monotonic()
            first = ask(patient)
            took_s = time.monotonic() - began
            assert first.status_code == 200, first.text
            assert first.headers["x-quartermaster-wakes-s"] == str(WAKES_IN_S)
            there.wait(lambda: shown() == "1/1", PATIENCE_S)
            there.wait(
                lambda: condition(there, "TokenPool", pool, "ReplicasFound", PLACE).get("status") == "True", PATIENCE_S
            )
            row = next(r for r in api.get("/backends", params={"pool": pool}).json()["results"] if r["pool"] == pool)
            assert (row["managed"], row["slots"]) == (True, 8)
            moments = dict(kubelet.moments)
            assert kubelet.faults == []

            there.wait(lambda: kubelet.scale() == 0, PATIENCE_S)
            there.wait(lambda: shown() == "asleep", PATIENCE_S)
            refused = ask(hasty)
            assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (503, "waking"), refused.text
            assert 1.0 <= float(refused.headers["retry-after"]) <= WAKES_IN_S
            there.wait(lambda: kubelet.scale() == 1, PATIENCE_S)  # it wakes all the same
            figure(
                f"asleep with found replicas: the Deployment was scaled {moments['scaled'] - began:.2f} s after the "
                f"first request, its pod ready after {moments['ready'] - began:.2f} s, the answer after {took_s:.2f} s"
            )
    finally:
        kubelet.close()
        api.close()
        for name in list(pods.processes):
            pods.end(name)
            pods.delete(name, 0)
        for kind, name in reversed(made):
            there.client.delete(there.path(kind, name, PLACE))
