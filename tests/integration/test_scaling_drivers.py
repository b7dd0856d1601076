"""Scaling drivers against real HTTP: a Kubernetes API that behaves as the real one where we touch it, a webhook."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.exceptions import ValidationError

from controlplane.embedded import replicas
from controlplane.embedded.plan import Engine, Plan
from controlplane.scaling.drivers import DriverError, Order, Replica
from controlplane.scaling.drivers.kubernetes import COST, Cluster, KubernetesDriver
from controlplane.scaling.drivers.local import LocalDriver
from controlplane.scaling.drivers.webhook import WebhookDriver
from scheduling.core.types import PoolSpec, ScalingMode, ScalingSpec
from telemetry.alerts.webhook import verify
from telemetry.models import Alert

SECRET = "a secret of sixteen"


@dataclass
class Server:
    """Answers by a function of (method, path, query, headers, body)."""

    answer: Any
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {k.lower(): v for k, v in self.headers.items()}
                parts = urlsplit(self.path)
                outer.seen.append((self.command, parts.path, headers, body))
                status, content, *more = outer.answer(self.command, parts.path, parse_qs(parts.query), headers, body)
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                for name, value in more:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = _serve

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


class Kube:
    """A Deployment whose controller ends the pods of lowest deletion cost, newest first among equals."""

    token = "a-token"

    def __init__(self) -> None:
        self.replicas = 1
        self.made = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self.settle()

    def settle(self) -> None:
        while len(self.pods) < self.replicas:
            self.made += 1
            name = f"vllm-6c9f-{self.made:05d}"
            self.pods[name] = {
                "metadata": {"name": name, "annotations": {}, "labels": {"app": "vllm"}},
                "status": {"phase": "Running", "podIP": f"10.2.0.{self.made}"},
            }
        while len(self.pods) > self.replicas:
            doomed = min(
                self.pods.values(),
                key=lambda p: (int(p["metadata"]["annotations"].get(COST, "0")), -int(p["metadata"]["name"][-5:])),
            )
            del self.pods[doomed["metadata"]["name"]]

    def __call__(self, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], body: bytes):  # type: ignore[no-untyped-def]
        if headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"reason": "Unauthorized"}
        if method == "PATCH" and headers["content-type"] != "application/merge-patch+json":
            return 415, {}
        deployment = "/apis/apps/v1/namespaces/inference/deployments/vllm"
        if path == deployment:
            return 200, {"spec": {"replicas": self.replicas, "selector": {"matchLabels": {"app": "vllm"}}}}
        if path == f"{deployment}/scale":
            if method == "PATCH":
                self.replicas = json.loads(body)["spec"]["replicas"]
                self.settle()
            return 200, {"spec": {"replicas": self.replicas}}
        if path == "/api/v1/namespaces/inference/pods":
            assert query["labelSelector"] == ["app=vllm"]
            names = sorted(self.pods)
            at = int(query.get("continue", ["0"])[0])  # one pod a page: the driver has to follow
            more = str(at + 1) if at + 1 < len(names) else ""
            return 200, {"items": [self.pods[n] for n in names[at : at + 1]], "metadata": {"continue": more}}
        name = path.rpartition("/")[2]
        if method == "PATCH" and name in self.pods:
            self.pods[name]["metadata"]["annotations"] |= json.loads(body)["metadata"]["annotations"]
            return 200, self.pods[name]
        return 404, {"reason": "NotFound"}


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[ThreadingHTTPServer] = []

    def start(answer: Any) -> Server:
        server = Server(answer)
        running.append(server.start())
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def pool(driver: str, **params: Any) -> PoolSpec:
    scaling = ScalingSpec(ScalingMode.AUTOMATIC, 1, 9, driver, params)
    return PoolSpec("llama", "meta/llama", "meta/llama", (), scaling=scaling)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(Kube.token + "\n")
    (tmp_path / "namespace").write_text("inference")
    return tmp_path


def _kubernetes(serve: Any, account: Path) -> tuple[Kube, KubernetesDriver]:
    kube = Kube()
    server = serve(kube)
    return kube, KubernetesDriver(pool("kubernetes", deployment="vllm"), Cluster(server.url, account))


def test_kubernetes_grows_by_the_scale_and_pods_become_replicas(serve: Any, account: Path) -> None:
    kube, driver = _kubernetes(serve, account)
    driver.grow(Order("scale-1", 3))
    driver.grow(Order("scale-1", 3))
    assert kube.replicas == 3
    assert [r.url for r in driver.replicas()] == [f"http://10.2.0.{n}:8000" for n in (1, 2, 3)]
    kube.pods["vllm-6c9f-00002"]["status"] = {"phase": "Pending"}
    kube.pods["vllm-6c9f-00003"]["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert [r.name for r in driver.replicas()] == ["vllm-6c9f-00001"]


def test_kubernetes_ends_the_drained_pods_and_no_others_also_when_asked_twice(serve: Any, account: Path) -> None:
    kube, driver = _kubernetes(serve, account)
    driver.grow(Order("scale-1", 4))
    drained = tuple(r for r in driver.replicas() if r.name.endswith(("00001", "00003")))
    driver.shrink(Order("end-1", 2, drained))
    driver.shrink(Order("end-1", 2, drained))
    assert sorted(kube.pods) == ["vllm-6c9f-00002", "vllm-6c9f-00004"]


def test_kubernetes_says_what_it_was_not_allowed(serve: Any, account: Path) -> None:
    _, driver = _kubernetes(serve, account)
    (account / "token").write_text("another")  # the kubelet renews it: read at each call
    with pytest.raises(DriverError, match=r"401 to GET .*service account"):
        driver.replicas()


def test_kubernetes_outside_a_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(DriverError, match="does not run in Kubernetes"):
        KubernetesDriver(pool("kubernetes", deployment="vllm"))


def test_the_webhook_is_signed_retried_and_keeps_its_id(serve: Any, settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_SECRET = SECRET
    answers = iter([503, 500, 204])
    server = serve(lambda *_: (next(answers), {}))
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "127.0.0.1"
    driver = WebhookDriver(pool("webhook", url=f"{server.url}/scale"), pauses_s=(0.0, 0.0, 0.0))
    driver.shrink(Order("end-r-1", 2, (Replica("r-1", "http://10.0.0.9:8000"),)))
    assert len(server.seen) == 3
    assert {headers["x-quartermaster-id"] for _, _, headers, _ in server.seen} == {"end-r-1"}
    _, _, headers, body = server.seen[-1]
    assert verify(SECRET, body, headers["x-quartermaster-signature"], time.time())
    assert not verify(SECRET, body + b" ", headers["x-quartermaster-signature"], time.time())
    assert not verify(SECRET, body, headers["x-quartermaster-signature"], time.time() + 3600)
    content = json.loads(body)
    assert (content["action"], content["replicas"]) == ("shrink", 2)
    assert content["remove"] == [{"name": "r-1", "url": "http://10.0.0.9:8000"}]


def test_a_webhook_that_refuses_three_times_fails(serve: Any, settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_SECRET = SECRET
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "127.0.0.1"
    server = serve(lambda *_: (500, {}))
    driver = WebhookDriver(pool("webhook", url=server.url), pauses_s=(0.0, 0.0, 0.0))
    with pytest.raises(DriverError, match=r"500.*, 3 times"):
        driver.grow(Order("scale-1", 2))


@pytest.mark.parametrize("listed", ["", "scaler.test", "127.0.0.1:1"])
def test_a_scaling_order_goes_to_no_host_that_is_not_listed(serve: Any, settings: Any, listed: str) -> None:
    settings.QUARTERMASTER_WEBHOOK_SECRET, settings.QUARTERMASTER_WEBHOOK_HOSTS = SECRET, listed
    server = serve(lambda *_: (200, {}))
    driver = WebhookDriver(pool("webhook", url=f"{server.url}/latest/meta-data"), pauses_s=(0.0,))
    with pytest.raises(DriverError, match="QUARTERMASTER_WEBHOOK_HOSTS"):
        driver.grow(Order("scale-1", 2))
    assert server.seen == []


def test_a_listed_host_sends_a_scaling_order_nowhere_else(serve: Any, settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_SECRET = SECRET
    inside = serve(lambda *_: (200, {}))
    receiver = serve(lambda *_: (307, {}, ("Location", f"{inside.url}/latest")))
    settings.QUARTERMASTER_WEBHOOK_HOSTS = receiver.url.removeprefix("http://")
    with pytest.raises(DriverError, match="307"):
        WebhookDriver(pool("webhook", url=receiver.url), pauses_s=(0.0,)).grow(Order("scale-1", 2))
    assert len(receiver.seen) == 1
    assert inside.seen == []


@pytest.mark.django_db
def test_a_pool_is_not_saved_with_a_scaling_webhook_that_is_not_listed(settings: Any) -> None:
    from tenants import services
    from tenants.audit import SYSTEM
    from tenants.models import Pool

    settings.QUARTERMASTER_WEBHOOK_HOSTS = "scaler.test"
    row = Pool(slug="p", model="m", scaling_driver="webhook", scaling_params={"url": "http://169.254.169.254/latest"})
    with pytest.raises(ValidationError, match="QUARTERMASTER_WEBHOOK_HOSTS") as refused:
        services.save(actor=SYSTEM, instance=row)
    assert set(refused.value.message_dict) == {"scaling_params"}
    row.scaling_params = {"url": "https://scaler.test/orders"}
    row = services.save(actor=SYSTEM, instance=row)
    settings.QUARTERMASTER_WEBHOOK_HOSTS = ""  # what was saved does not hold up another change
    row.description = "changed"
    assert services.save(actor=SYSTEM, instance=row).description == "changed"


def test_without_a_secret_nothing_is_sent(settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_SECRET = ""
    with pytest.raises(DriverError, match="WEBHOOK_SECRET"):
        WebhookDriver(pool("webhook", url="http://127.0.0.1:1")).grow(Order("scale-1", 2))


@pytest.mark.django_db
def test_alerts_are_delivered_once_and_again_after_a_failure(serve: Any, settings: Any) -> None:
    from telemetry.alerts.lifecycle import deliver, raise_alert

    settings.QUARTERMASTER_WEBHOOK_SECRET = SECRET
    answers = iter([500, 200])
    server = serve(lambda *_: (next(answers), {}))
    settings.QUARTERMASTER_ALERT_WEBHOOK = server.url
    assert raise_alert("quota_soft", "quota_soft:acme:2026-11", "acme used 8 of 10 tokens", tenant="acme")
    assert not raise_alert("quota_soft", "quota_soft:acme:2026-11", "acme used 9 of 10 tokens", tenant="acme")
    assert deliver() == 0
    assert deliver() == 0, "tried again before its pause was over"
    Alert.objects.update(next_attempt_at=None)
    assert deliver() == 1
    assert deliver() == 0
    assert len(server.seen) == 2
    assert json.loads(server.seen[1][3])["text"] == "acme used 8 of 10 tokens"


def test_the_local_driver_writes_down_what_the_supervisor_should_run(tmp_path: Path) -> None:
    driver = LocalDriver(pool("local"), tmp_path)
    with pytest.raises(DriverError, match="supervisor"):
        driver.grow(Order("scale-1", 1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / replicas.SUPPORT).touch()
    driver.grow(Order("scale-1", 2))
    driver.grow(Order("scale-1", 2))
    first, second = driver.replicas()
    assert (first.name, second.name) == ("llama-r1", "llama-r2")
    command = ["engine", "--port", "4000", "--name", "{x}"]
    words = replicas.template("", Plan([Engine("engine-0", "", 1)], commands={"engine-0": command}))
    assert words is not None
    wanted = replicas.wanted(tmp_path, words)
    assert wanted["llama-r1"] == ["engine", "--port", first.url.rpartition(":")[2], "--name", "{x}"]
    driver.shrink(Order("end-1", 1, (first,)))
    assert [r.name for r in driver.replicas()] == ["llama-r2"]
    driver.grow(Order("scale-2", 2))
    assert [r.name for r in driver.replicas()] == ["llama-r1", "llama-r2"]


def test_a_command_of_ones_own_gets_port_index_and_name(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / replicas.SUPPORT).touch()
    LocalDriver(pool("local"), tmp_path).grow(Order("scale-1", 1))
    words = replicas.template("env CUDA_VISIBLE_DEVICES={index} vllm serve 'my model' --port {port}", Plan([]))
    assert words is not None
    (command,) = replicas.wanted(tmp_path, words).values()
    assert command[:5] == ["env", "CUDA_VISIBLE_DEVICES=1", "vllm", "serve", "my model"]
    assert command[-1].isdigit()
    assert replicas.template("", Plan([Engine("engine-0", "http://10.0.0.1:8000", 1)])) is None
