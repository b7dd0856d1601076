"""The chart, installed by Helm itself on a real API server: what ``helm install``, ``upgrade``, ``rollback`` and
``uninstall`` do. Helm is its own engine (a library); what is a command in docs/guide/kubernetes.md is a call here."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import helm_python
import pytest
import yaml

from controlplane.kubernetes.chart import CHART
from tests.support.chart import SECRET, render
from tests.support.kubernetes_cluster import Cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

NAMESPACE = "release"
FOREIGN = (  # custom resources of other products that the chart makes where it is told to
    ("ServiceMonitor", "monitoring.coreos.com", "v1"),
    ("PrometheusRule", "monitoring.coreos.com", "v1"),
    ("HTTPRoute", "gateway.networking.k8s.io", "v1"),
)
# Each value of the guide's tables, and of values.yaml what else makes an object.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "image": {"image": {"repository": "registry.example.org/qm", "digest": "sha256:" + "0" * 64}},
    "ingress": {"ingress": {"enabled": True, "hosts": ["llm.example.org"], "className": "nginx"}},
    "httpRoute": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["a.example.org"]}},
    "trustedProxies": {"trustedProxies": ["10.42.0.0/16"]},
    "settings": {"settings": {"HTTPS": "on", "LOG_LEVEL": "INFO", "FILE_BYTES": 104857600}},
    "files.persistence": {"files": {"persistence": {"enabled": True, "storageClassName": "nfs"}}},
    "web.autoscaling": {"web": {"autoscaling": {"enabled": True}}},
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        }
    },
    "scaling.namespaces": {"scaling": {"namespaces": ["default"]}},
    "networkPolicy": {"networkPolicy": {"enabled": True, "ingressFrom": [{"namespaceSelector": {}}]}},
    "operator": {"operator": {"enabled": True, "leases": False, "secrets": {"namespaces": ["default"]}}},
    "bundled": {"bundled": {"enabled": True}, "secrets": {"existingSecret": ""}},
    "test": {"test": {"existingSecret": "key", "model": "llama"}},
}
MADE_UP = {"password", "secret-key", "metrics-token", "database-url", "redis-url"}  # of bundled servers, each time anew


@pytest.fixture(scope="module")
def helm(there: Cluster) -> Iterator[helm_python.Config]:
    for kind, group, version in FOREIGN:
        there.serve(kind, group, version)
    there.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    with helm_python.Config(kubeconfig_path=there.kubeconfig(), namespace=NAMESPACE) as config:
        yield config


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The chart without its definitions, which are there already (``--skip-crds``): Helm 4 applies them on the server's
    side, and one before Kubernetes 1.25 does not know the rules (CEL) in them."""
    folder = tmp_path_factory.mktemp("chart") / CHART.name
    shutil.copytree(CHART, folder, ignore=shutil.ignore_patterns("crds"))
    return str(folder)


def objects(manifest: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = [one for one in yaml.safe_load_all(manifest) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def without_made_up(one: dict[str, Any]) -> dict[str, Any]:
    if one["kind"] == "Secret":
        return one | {"stringData": {name: "" for name in one["stringData"] if name in MADE_UP}}
    # The versions that this cluster serves: a renderer alone assumes the newest.
    return {name: value for name, value in one.items() if name != "apiVersion"}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_helm_would_install_is_what_the_renderer_of_the_tests_makes(
    helm: helm_python.Config, chart: str, name: str
) -> None:
    """... and the API server knows each kind of it (``helm install --dry-run=server``)."""
    values = SECRET | DOCUMENTED[name]
    release = helm.install(chart, "qm", values, namespace=NAMESPACE, dry_run="server")
    theirs = objects(release["manifest"])
    hooks = {"Job", "Pod"}
    ours = {
        (one["kind"], one["metadata"]["name"]): one
        for one in render(values, namespace=NAMESPACE)
        if "helm.sh/hook" not in (one["metadata"].get("annotations") or {})
    }
    assert {kind for kind, _ in theirs} & hooks == set()
    assert {key: without_made_up(one) for key, one in theirs.items()} == {
        key: without_made_up(one) for key, one in ours.items()
    }


def test_a_second_release_with_an_operator_leaves_the_priority_classes_to_the_first(
    helm: helm_python.Config, chart: str
) -> None:
    """They are the whole cluster's, and another's here."""
    values = SECRET | {"operator": {"enabled": True}}
    with pytest.raises(helm_python.HelmError, match='PriorityClass "quartermaster-'):
        helm.install(chart, "qm", values, namespace=NAMESPACE, dry_run="server")
    values["operator"] = {"enabled": True, "priorityClasses": False}
    release = helm.install(chart, "qm", values, namespace=NAMESPACE, dry_run="server")
    assert "--no-leases" not in release["manifest"]


def test_a_volume_of_bundled_servers_with_a_longer_name_is_seen(
    there: Cluster, helm: helm_python.Config, chart: str
) -> None:
    long = "r" * 42
    values = {**DOCUMENTED["bundled"], "fullnameOverride": long}
    helm.install(chart, "qm", values, namespace=NAMESPACE, dry_run="server")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    name = f"data-{long}-postgresql-0"
    there.create(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim}, NAMESPACE
    )
    with pytest.raises(helm_python.HelmError, match=f"bundled.postgresql.existingClaim={name}"):
        helm.install(chart, "qm", values, namespace=NAMESPACE, dry_run="server")


def test_a_misspelt_value_is_refused_before_anything_is_made(helm: helm_python.Config, chart: str) -> None:
    with pytest.raises(helm_python.HelmError, match="webb"):
        helm.install(chart, "qm", SECRET | {"webb": {}}, namespace=NAMESPACE)
    assert helm.list(all_states=True) == []


def test_a_release_is_installed_upgraded_rolled_back_and_removed(
    there: Cluster, helm: helm_python.Config, chart: str
) -> None:
    """The migration goes first each time: nothing of an upgrade is made before its Job has ended."""
    apps = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    migrated: list[set[str]] = []  # Deployments that were there when the Job ended
    over = threading.Event()

    def migrate() -> None:
        """The Job's controller and its pod."""
        done: set[str] = set()
        while not over.wait(0.1):
            for job in there.call("GET", jobs)["items"]:
                uid = job["metadata"]["uid"]
                if uid not in done:
                    done.add(uid)
                    migrated.append({image_of(one) for one in there.call("GET", apps)["items"]})
                    status = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
                    path = f"{jobs}/{job['metadata']['name']}/status"
                    there.call("PATCH", path, {"status": status}, kind="application/merge-patch+json")

    def image_of(deployment: dict[str, Any]) -> str:
        return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    def images() -> set[str]:
        return {image_of(one) for one in there.call("GET", apps)["items"]}

    def run(act: Callable[[], Any]) -> None:
        act()
        names = {one["metadata"]["name"] for one in there.call("GET", apps)["items"]}
        assert names == {f"qm-quartermaster-{name}" for name in ("web", "worker", "standby")}

    thread = threading.Thread(target=migrate, daemon=True)
    thread.start()
    try:
        first, second = ({"image": {"repository": "quartermaster", "tag": tag}} for tag in ("1", "2"))
        run(lambda: helm.install(chart, "qm", SECRET | first, namespace=NAMESPACE, timeout=60))
        run(lambda: helm.upgrade(chart, "qm", second, namespace=NAMESPACE, reuse_values=True, timeout=60))
        assert images() == {"quartermaster:2"}
        run(lambda: helm.rollback("qm", timeout=60))
        assert images() == {"quartermaster:1"}
        assert [one["status"] for one in helm.history("qm")] == ["superseded", "superseded", "deployed"]
        assert migrated == [set(), {"quartermaster:1"}], "before anything of it; a rollback needs none"
        helm.uninstall("qm", timeout=60)
        assert there.call("GET", apps)["items"] == []
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tokenpools.quartermaster.dev"
        assert there.client.get(crd).status_code == 200, "resources of people outlive the release"
    finally:
        over.set()
        thread.join(30)


def test_the_api_server_takes_the_pod_of_helm_test(there: Cluster) -> None:
    """... which no cluster without a kubelet runs; its command is run in ``tests/integration/test_helm_test.py``."""
    [pod] = [made for made in render(SECRET | DOCUMENTED["test"], namespace=NAMESPACE) if made["kind"] == "Pod"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    try:
        made = there.create(pod, "default")
        assert made["spec"]["restartPolicy"] == "Never"
        secret = {"name": "key", "key": "api-key"}
        env = {entry["name"]: entry for entry in made["spec"]["containers"][0]["env"]}
        assert env["KEY"]["valueFrom"]["secretKeyRef"] == secret
    finally:
        there.client.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
