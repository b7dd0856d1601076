"""Each ``kubectl`` command of docs/guide/kubernetes.md, on the real API server. Skipped where there is no kubectl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from controlplane.kubernetes import leases
from controlplane.kubernetes.leases import Reservation
from scheduling.core.capacity.pool import Amounts
from tests.support.instance import ROOT
from tests.support.kubernetes_cluster import Cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "guide" / "kubernetes.md").read_text(encoding="utf-8")
IN_BLOCK = re.compile(r"^(?:    \$ )?(kubectl (?:[^\n\\]|\\\n)*)", re.M)
IN_LINE = re.compile(r"`(kubectl [^`]+)`")
NO_KUBELET = "kubectl exec "  # pods do not run here


def commands() -> list[str]:
    """As they are written, whole lines and those within the text."""
    found = [re.sub(r"\\\n\s*", "", one).split("  #")[0].strip() for one in IN_BLOCK.findall(PAGE)]
    return sorted({*found, *IN_LINE.findall(PAGE)})


def examples(kind: str) -> list[dict[str, object]]:
    """Whole resources of that kind that the page shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    whole = [one for block in blocks if "\nkind: " in block for one in yaml.safe_load_all(block)]
    return [one for one in whole if one["kind"] == kind]


@pytest.fixture
def kubectl(there: Cluster) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not program:
        pytest.skip("there is no kubectl (KUBECTL names one)")
    environ = os.environ | {
        "KUBECONFIG": str(there.kubeconfig()),
        "PATH": f"{os.path.dirname(program)}:{os.environ['PATH']}",
    }

    def run(command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environ, input=given, capture_output=True, text=True)
        assert not ran.returncode, (command, ran.stderr)
        return ran

    return run


@pytest.fixture
def place(there: Cluster) -> Iterator[str]:
    """A namespace of this try's own: a deleted one stays, as nobody here finalizes it."""
    name = f"docs-{os.urandom(3).hex()}"
    yield name
    there.client.delete(f"/api/v1/namespaces/{name}")


def test_the_commands_that_the_page_has_are_known_to_this_test() -> None:
    """A new one has to be run below."""
    known = (
        "kubectl create namespace ",
        "kubectl -n llm create secret ",
        "kubectl apply -f ",
        "kubectl get ",
        "kubectl describe",
        "kubectl delete nodes ",
        "kubectl delete pods ",
        "kubectl patch tokenpool ",
    )
    assert [c for c in commands() if not c.startswith((*known, NO_KUBELET))] == []
    assert len(commands()) >= 6


def test_each_command_does_what_the_page_says(
    there: Cluster, kubectl: Callable[..., subprocess.CompletedProcess[str]], place: str
) -> None:
    ours = {c: c.replace("namespace llm", f"namespace {place}").replace("-n llm", f"-n {place}") for c in commands()}

    def one(begins: str) -> subprocess.CompletedProcess[str]:
        [command] = [mine for c, mine in ours.items() if c.startswith(begins)]
        return kubectl(command)

    assert f"namespace/{place} created" in one("kubectl create namespace").stdout
    assert "secret/quartermaster created" in one("kubectl -n llm create secret").stdout
    secret = there.call("GET", f"/api/v1/namespaces/{place}/secrets/quartermaster")
    assert set(secret["data"]) == {"secret-key", "metrics-token", "database-url", "redis-url"}
    [apply] = [c for c in commands() if c.startswith("kubectl apply -f deploy")]
    old = int(there.call("GET", "/version")["minor"].rstrip("+")) < 25  # as the page says
    applied = kubectl(f"{apply} --validate=false" if old else apply).stdout
    assert len(re.findall(r"customresourcedefinition\S+ (configured|unchanged|created)", applied)) == 8, applied

    [pool], [share] = examples("TokenPool"), examples("TokenEntitlement")
    made = kubectl(f"kubectl apply -n {place} -f -", yaml.safe_dump_all([pool, share]))
    assert made.stdout.count(" created") == 2, made.stdout
    listed = kubectl(f"kubectl get -n {place} tokenentitlements -o wide").stdout.splitlines()
    shown = next(line for line in PAGE.splitlines() if line.startswith("    NAME "))
    assert [*shown.split(), "AGE"] == listed[0].split()
    assert listed[1].split()[0] == share["metadata"]["name"]  # type: ignore[index]
    [describe] = [c for c in commands() if c.startswith("kubectl describe pod lease-")]
    there.create(
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lease-search"},
            "spec": {"containers": [{"name": "lease", "image": "pause"}]},
        },
        place,
    )  # fmt: skip
    described = kubectl(describe.replace("kubectl", f"kubectl -n {place}").replace("NAME", "search")).stdout
    assert re.search(r"^Name:\s+lease-search$", described, re.M)
    node = leases.node(place, str(pool["metadata"]["name"]), "uid")  # type: ignore[index]
    kept = leases.pod(place, Reservation("kept", "p", "spot", Amounts(1, 0, 0), ""), "uid", place, Amounts(1, 0, 0))
    del kept["spec"]["priorityClassName"]
    for made_by_the_operator in (node, kept):
        there.create(made_by_the_operator, place)
    for what, name in (("nodes", node["metadata"]["name"]), ("pods", "lease-kept")):
        command = next(c for c in commands() if c.startswith(f"kubectl delete {what} "))
        assert f'"{name}" ' in kubectl(f"{command} --dry-run=server").stdout
    finalizers = {"metadata": {"finalizers": ["quartermaster.dev/kept"]}}
    path = there.path("TokenPool", pool["metadata"]["name"], place)  # type: ignore[index]
    there.call("PATCH", path, finalizers, kind="application/merge-patch+json")
    [patch] = [c for c in commands() if c.startswith("kubectl patch tokenpool ")]
    kubectl(patch.replace("kubectl", f"kubectl -n {place}").replace("NAME", pool["metadata"]["name"]))  # type: ignore[index]
    assert "finalizers" not in there.call("GET", path)["metadata"]
    deleted = kubectl(f"kubectl delete -n {place} tokenentitlement {share['metadata']['name']} --wait=false").stdout  # type: ignore[index]
    assert "deleted" in deleted
