"""The operator on a real API server and scheduler, with the rights that the chart gives it and no more."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from controlplane.kubernetes import leases
from controlplane.kubernetes.resources import GROUP, RESOURCES
from tests.support.chart import SECRET, render
from tests.support.instance import ROOT, Up
from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_operator import (
    NARROW,
    OPERATOR,
    STRANGER,
    Catalog,
    Names,
    condition,
    contract,
    entitlement,
    operating,
    pool,
    reason_of,
    seconds,
    share,
    state_of,
)
from tests.support.ports import free_port

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


def test_the_admission_of_the_paper_goes_through_the_scheduler(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token pools 4.1: what fits is bound, what does not stays pending with the scheduler's reason, room binds it."""
    tier, llama = contract(there, names), pool(there, names, 16)
    began = time.monotonic()
    first = entitlement(there, names, tier, llama, 10, "first")
    there.wait(lambda: state_of(there, first) == "bound")
    bound = seconds(began)
    began = time.monotonic()
    second = entitlement(there, names, tier, llama, 10, "second")
    there.wait(lambda: "Insufficient" in reason_of(there, second))
    pending = seconds(began)
    assert state_of(there, second) == "pending"
    assert "Insufficient quartermaster.dev/slots" in reason_of(there, second)
    assert condition(there, "TokenEntitlement", second, "Bound")["status"] == "False"
    began = time.monotonic()  # a shrunk share gives back
    there.change("TokenEntitlement", first, {"resources": {"concurrency": 6}})
    there.wait(lambda: state_of(there, second) == "bound")
    room = seconds(began)
    there.wait(lambda: state_of(there, first) == "bound")  # its lease was made anew, and may be bound a moment later
    third = entitlement(there, names, tier, llama, 12, "third")
    there.wait(lambda: "Insufficient" in reason_of(there, third))
    began = time.monotonic()
    for name in (first, second):  # deleted ones give back
        there.client.delete(there.path("TokenEntitlement", name))
    there.wait(lambda: state_of(there, third) == "bound")
    with capsys.disabled():
        print(
            f"\nbound after {bound}, pending after {pending}, bound after room by {room}, by deletion {seconds(began)}"
        )


def test_a_share_that_the_cluster_writes_in_thousands_is_bound_and_stays(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    """Of a request for 20000 tokens the API server keeps "20k"."""
    tier, llama = contract(there, names), pool(there, names, 16)
    tenant, name = names("Tenant", "tenant-thousands"), names("TokenEntitlement", "thousands")
    there.make("Tenant", tenant, {"description": "Tests."})
    spec = share(tenant, llama, tier, 4)
    spec["resources"]["kvCacheTokens"] = 20_000
    there.make("TokenEntitlement", name, spec)
    there.wait(lambda: state_of(there, name) == "bound")
    path = f"/api/v1/namespaces/default/pods/lease-{name}"
    pod = there.call("GET", path)
    assert pod["spec"]["containers"][0]["resources"]["requests"]["quartermaster.dev/kv-cache-tokens"] == "20k"
    other = entitlement(there, names, tier, llama, 4, "after")  # rounds go on
    there.wait(lambda: state_of(there, other) == "bound")
    assert there.call("GET", path)["metadata"]["uid"] == pod["metadata"]["uid"], "it was not made anew"


def test_a_node_offers_what_answers_and_keeps_other_pods_away(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    llama = pool(there, names, 16)
    path = f"/api/v1/nodes/{leases.node_name('default', llama)}"
    node = there.wait(lambda: there.call("GET", path) if there.client.get(path).status_code == 200 else None)
    there.wait(lambda: there.call("GET", path)["status"].get("allocatable", {}).get(f"{GROUP}/slots") == "16")
    node = there.call("GET", path)
    assert [taint["key"] for taint in node["spec"]["taints"]] == [leases.TAINT]
    assert [c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"] == ["True"]
    backends = [{"name": llama, "url": f"http://127.0.0.1:{free_port()}", "slots": 24, "kvTokens": 1000}]
    there.change("TokenPool", llama, {"backends": backends})
    there.wait(lambda: there.call("GET", path)["status"]["allocatable"].get(f"{GROUP}/slots") == "24")
    there.client.delete(there.path("TokenPool", llama))
    there.wait(lambda: there.client.get(path).status_code == 404)


def test_long_names_of_a_namespace_and_its_pool_make_a_node_all_the_same(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    """Together they are longer than the value of a label may be, of which a node has one with its own name."""
    own = os.urandom(3).hex()  # the namespace stays: a second try has another one
    long = "search-production-inference-europe-west-" + own + "n" * 17
    there.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": long}})
    llama = "meta-llama-3-1-70b-instruct-" + own + "p" * 29
    backend = {"name": names("TokenPool", "long"), "url": f"http://127.0.0.1:{free_port()}", "slots": 8, "kvTokens": 9}
    there.make("TokenPool", llama, {"model": llama, "backends": [backend]}, long)
    try:
        there.wait(lambda: condition(there, "TokenPool", llama, "Offered", long).get("status") == "True")
        node = there.call("GET", f"/api/v1/nodes/{leases.node_name(long, llama)}")
        assert node["status"]["allocatable"][f"{GROUP}/slots"] == "8"
        tier, tenant, mine = contract(there, names), names("Tenant", "long"), names("TokenEntitlement", "long")
        there.make("Tenant", tenant, {})
        there.make("TokenEntitlement", mine, share(tenant, llama, tier, 4))
        there.wait(lambda: state_of(there, mine) == "bound")
        there.client.delete(there.path("TokenEntitlement", mine))
        there.wait(lambda: there.client.get(there.path("TokenEntitlement", mine)).status_code == 404)
    finally:
        there.client.delete(there.path("TokenPool", llama, long))


def test_a_guaranteed_share_takes_the_room_of_a_spot_lease(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    guaranteed, spot = contract(there, names), contract(there, names, "spot")
    llama = pool(there, names, 16)
    cheap = entitlement(there, names, spot, llama, 12, "cheap")
    there.wait(lambda: there.get("TokenEntitlement", cheap).get("status", {}).get("lease") == "bound")
    dear = entitlement(there, names, guaranteed, llama, 12, "dear")
    there.wait(lambda: state_of(there, dear) == "bound")
    there.wait(lambda: there.get("TokenEntitlement", cheap)["status"].get("lease") == "pending")
    assert state_of(there, cheap) == "bound"  # it reserves nothing: it is served from what is idle


def test_what_the_catalog_refuses_is_said_in_the_resource_and_changes_nothing(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    tier, llama = contract(there, names), pool(there, names, 16)
    lost = names("TokenEntitlement", "lost")
    there.make("TokenEntitlement", lost, share("nobody", llama, tier, 4))
    there.wait(lambda: condition(there, "TokenEntitlement", lost).get("status") == "False")
    assert "there is no tenant 'nobody'" in condition(there, "TokenEntitlement", lost)["message"]
    tenant = names("Tenant", "late")
    there.change("TokenEntitlement", lost, {"tenantRef": {"name": tenant}})
    there.make("Tenant", tenant, {})
    there.wait(lambda: state_of(there, lost) == "bound", 40)  # it is tried again by itself
    refused = there.client.post(
        there.path("Slo"), json={"apiVersion": "quartermaster.dev/v1alpha1", "kind": "Slo", "metadata": {"name": "x"},
                                 "spec": {"ttftSeconds": "soon"}},
    )  # fmt: skip
    assert refused.status_code == 422  # by the schema, before we see it


def test_a_status_that_the_definition_refuses_is_said_and_holds_up_nobody(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names
) -> None:
    """A definition of another version, whose status is narrower: 422."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tokenpools.{GROUP}"
    backends = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/backends"

    def narrow(**more: int) -> None:
        change = [{"op": "replace", "path": backends, "value": {"type": "string"} | more}]
        answer = there.client.patch(path, json=change, headers={"content-type": "application/json-patch+json"})
        assert answer.is_success, answer.text

    log = there.folder / "operator.log"
    began = log.stat().st_size

    def logged(text: str) -> list[str]:
        return [line for line in log.read_bytes()[began:].decode().splitlines() if text in line]

    narrow(maxLength=1)
    try:
        tier, llama = contract(there, names), pool(there, names, 16)
        there.wait(lambda: condition(there, "TokenPool", llama, "StatusWritten").get("status") == "False")
        assert "status.backends" in condition(there, "TokenPool", llama, "StatusWritten")["message"]
        assert condition(there, "TokenPool", llama)["status"] == "True"
        share = entitlement(there, names, tier, llama, 4)
        there.wait(lambda: state_of(there, share) == "bound")
        for slots in (24, 32):  # each change is another try
            backends_now = [{"name": llama, "url": f"http://127.0.0.1:{free_port()}", "slots": slots, "kvTokens": 1000}]
            generation = there.change("TokenPool", llama, {"backends": backends_now})["metadata"]["generation"]
            there.wait(lambda g=generation: there.get("TokenPool", llama)["status"]["observedGeneration"] == g)
        assert len(logged(f"refuses the status of TokenPool default/{llama}: ")) == 1
    finally:
        narrow()
    there.wait(lambda: there.get("TokenPool", llama)["status"].get("capacity", {}).get("slots") == 32)
    assert not condition(there, "TokenPool", llama, "StatusWritten")
    assert not logged("a round failed")


def test_what_a_resource_sets_is_changed_there_and_nowhere_else(there: Cluster, instance: Up, names: Names) -> None:
    with operating(there, instance), httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.admin()) as api:
        tier, llama = contract(there, names), pool(there, names, 16)
        mine = entitlement(there, names, tier, llama, 4, "mine")
        there.wait(lambda: condition(there, "TokenEntitlement", mine).get("status") == "True")
        refused = api.patch(f"/entitlements/{mine}", json={"concurrency": 9})
        assert refused.status_code == 400
        assert f"TokenEntitlement default/{mine} in Kubernetes sets this. Change it there." in refused.text
        assert api.delete(f"/entitlements/{mine}").status_code in (400, 409)
        free = api.patch(f"/entitlements/{mine}", json={"tokens_per_s": 5.0, "burst_tokens": 50.0})
        assert free.status_code == 200, free.text  # the resource says nothing of a token budget
        time.sleep(2)
        assert api.get(f"/entitlements/{mine}").json()["tokens_per_s"] == 5.0


def test_a_killed_operator_repairs_what_happened_meanwhile_and_deletes_nothing(
    there: Cluster, catalog: Catalog, names: Names
) -> None:
    with operating(there, catalog) as process:
        tier, llama = contract(there, names), pool(there, names, 16)
        kept = entitlement(there, names, tier, llama, 4, "kept")
        gone = entitlement(there, names, tier, llama, 4, "gone")
        there.wait(lambda: state_of(there, kept) == state_of(there, gone) == "bound")
        process.send_signal(signal.SIGKILL)
        process.wait()
    pod = f"/api/v1/namespaces/default/pods/{leases.pod_name(kept)}"
    there.client.delete(pod)
    there.client.delete(there.path("TokenEntitlement", gone))
    catalog.ask(f"Entitlement.objects.filter(slug='{kept}').update(concurrency=1)")
    assert there.get("TokenEntitlement", gone)["metadata"]["deletionTimestamp"]  # its finalizer waits for us
    with operating(there, catalog):
        there.wait(lambda: there.client.get(there.path("TokenEntitlement", gone)).status_code == 404)
        there.wait(lambda: there.client.get(pod).status_code == 200)
        there.wait(lambda: catalog.ask(f"Entitlement.objects.get(slug='{kept}').concurrency") == "4")
        assert catalog.ask(f"Entitlement.objects.filter(slug='{gone}').count()") == "0"


def rows(instance: Up) -> dict[str, dict[str, int]]:
    """What the catalog has, with the number that the resources say."""
    numbers = {"pools": "max_model_len", "backends": "slots", "entitlements": "concurrency", "tiers": "weight"}
    with httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.admin()) as api:
        return {
            kind: {row["slug"]: row[number] for row in api.get(f"/{kind}", params={"limit": 500}).json()["results"]}
            for kind, number in numbers.items()
        }


def leaving(there: Cluster) -> list[str]:
    """What is deleted and still held by the operator's finalizer."""
    lists = [there.call("GET", there.path(resource.kind))["items"] for resource in RESOURCES]
    return [made["metadata"]["name"] for items in lists for made in items if "deletionTimestamp" in made["metadata"]]


@pytest.mark.parametrize("away_s", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_requests_go_on_while_the_api_server_is_away(
    there: Cluster, instance: Up, names: Names, away_s: int, figure: Callable[[str], None]
) -> None:
    """... and the operator finds it again by itself."""
    with operating(there, instance) as process:
        tier, llama = contract(there, names), pool(there, names, 16)
        mine = entitlement(there, names, tier, llama, 4, "mine")
        there.wait(lambda: condition(there, "TokenEntitlement", mine).get("status") == "True")
        there.wait(lambda: not leaving(there), 60)  # what earlier tests deleted is removed from the catalog first
        before = rows(instance)
        with there.away():
            client = instance.client(max_retries=5)  # a busy machine keeps Redis from answering within its second
            until, answered = time.monotonic() + away_s, 0
            while time.monotonic() < until or answered <= 10:
                answer = client.chat.completions.create(
                    model=instance.demo()["model"], max_tokens=2, messages=[{"role": "user", "content": "hello"}]
                )
                answered += bool(answer.choices[0].message.content)
            assert process.poll() is None
            figure(f"{answered} requests served while the API server was away for {away_s} s")
            assert rows(instance) == before, "nothing is taken for gone"
        later = entitlement(there, names, tier, llama, 4, "later")
        there.wait(lambda: condition(there, "TokenEntitlement", later).get("status") == "True", 60)
        after = rows(instance)
        lost = {kind: sorted(before[kind].items() - after[kind].items()) for kind in before}
        assert not any(lost.values()), lost


def test_from_an_empty_cluster_to_a_first_answer(there: Cluster, instance: Up, names: Names) -> None:
    port = free_port()
    model = f"model-{os.urandom(3).hex()}"
    engine = subprocess.Popen(
        [sys.executable, "-m", "scheduling.engines.simulated", "--model", model, "--port", str(port)], cwd=ROOT
    )
    try:
        with operating(there, instance):
            tier = contract(there, names)
            served = names("TokenPool", "served")
            backend = {"name": served, "url": f"http://127.0.0.1:{port}", "slots": 16, "kvTokens": 100_000}
            there.make("TokenPool", served, {"model": model, "backends": [backend]})
            mine = entitlement(there, names, tier, served, 4, "mine")
            there.wait(lambda: state_of(there, mine) == "bound")
            with httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.admin()) as api:
                key = api.post("/keys", json={"name": "first", "entitlement": mine}).json()["key"]
            ask = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
            with httpx.Client(base_url=f"{instance.url}/v1", headers={"authorization": f"Bearer {key}"}) as client:
                answer = there.wait(
                    lambda: found if (found := client.post("/chat/completions", json=ask)).is_success else None
                )
            assert answer.json()["usage"]["completion_tokens"] == 3
    finally:
        engine.kill()
        engine.wait()


def test_a_stranger_may_read_and_write_nothing_of_ours(there: Cluster) -> None:
    headers = {"authorization": f"Bearer {there.tokens[STRANGER]}"}
    for resource in RESOURCES:
        assert there.client.get(there.path(resource.kind), headers=headers).status_code == 403
    mine = {"authorization": f"Bearer {there.tokens[OPERATOR]}"}
    for path in ("/api/v1/namespaces/default/secrets", "/apis/apps/v1/namespaces/default/deployments", "/api/v1/nodes"):
        assert there.client.get(path, headers=mine).status_code == 403


def test_an_operator_of_listed_namespaces_does_all_there_and_may_nothing_elsewhere(
    there: Cluster, tmp_path: Path, names: Names
) -> None:
    narrow = {**SECRET, "operator": {"enabled": True, "namespaces": ["research"]}}
    for made in render(narrow, name="narrow"):
        if made["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            there.create(made, "llm")
    catalog = Catalog(tmp_path / "home")
    catalog.manage("migrate", "--noinput")
    slo, tier, tenant, llama, mine = (names(kind, "narrow") for kind in KINDS)
    backend = {"name": llama, "url": f"http://127.0.0.1:{free_port()}", "slots": 16, "kvTokens": 100_000}
    specs: list[dict[str, Any]] = [
        {"ttftSeconds": 5.0, "tbtSeconds": 0.5},
        {"serviceClass": "guaranteed", "slo": slo, "rank": 0, "weight": 10},
        {"description": "Tests."},
        {"model": llama, "backends": [backend]},
        share(tenant, llama, tier, 4),
    ]
    with operating(there, catalog, "--namespace=research", account=NARROW):
        for kind, spec in zip(KINDS, specs, strict=True):
            there.make(kind, slo, spec, "research")
        there.wait(
            lambda: (there.get("TokenEntitlement", mine, "research").get("status") or {}).get("state") == "bound"
        )
        for kind in reversed(KINDS):
            there.client.delete(there.path(kind, slo, "research"))
        there.wait(lambda: there.client.get(there.path("Slo", slo, "research")).status_code == 404)
    headers = {"authorization": f"Bearer {there.tokens[NARROW]}"}
    elsewhere = (
        "/api/v1/namespaces/default/pods", "/api/v1/pods", there.path("TokenPool"),
        "/apis/apps/v1/namespaces/default/deployments/x",
    )  # fmt: skip
    assert {there.client.get(path, headers=headers).status_code for path in elsewhere} == {403}
    lease = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/kube-scheduler"
    for account in (NARROW, OPERATOR):
        headers = {"authorization": f"Bearer {there.tokens[account]}", "content-type": "application/merge-patch+json"}
        assert there.client.patch(lease.format("kube-system"), headers=headers, content="{}").status_code == 403
        assert there.client.patch(lease.format("kube-node-lease"), headers=headers, content="{}").status_code == 404


KINDS = ("Slo", "Tier", "Tenant", "TokenPool", "TokenEntitlement")


def test_a_key_is_in_a_secret_that_the_operator_makes_and_rotates(there: Cluster, instance: Up, names: Names) -> None:
    """... in a namespace where it may, an adapter beside it; in another one it says what it lacks."""
    with operating(there, instance), httpx.Client(base_url=f"{instance.url}/api/v1", headers=instance.admin()) as api:
        tier, llama = contract(there, names), pool(there, names, 16)
        adapter, model = names("Adapter", "tuned"), f"tuned-{os.urandom(3).hex()}"
        there.make("Adapter", adapter, {"poolRef": {"name": llama}, "model": model})
        mine = entitlement(there, names, tier, llama, 4, "mine")
        there.wait(lambda: api.get(f"/adapters/{adapter}").is_success)
        assert api.get(f"/adapters/{adapter}").json()["model"] == model
        key = f"app-{os.urandom(3).hex()}"
        path = f"/api/v1/namespaces/research/secrets/{key}"

        def value() -> str:
            data = there.call("GET", path).get("data") or {}
            return base64.b64decode(data.get("api-key", "")).decode()

        def opens(secret: str) -> bool:
            answer = httpx.get(f"{instance.url}/v1/models", headers={"authorization": f"Bearer {secret}"})
            return answer.is_success

        there.make("ApiKey", key, {"entitlementRef": {"name": mine}, "secret": {"name": key}}, "research")
        first = there.wait(value)
        there.wait(lambda: opens(first))
        there.change("ApiKey", key, {"secret": {"rotate": "now"}}, "research")
        second = there.wait(lambda: found if (found := value()) != first else None)
        there.wait(lambda: opens(second) and not opens(first))
        there.call("PATCH", path, {"data": {"api-key": None}}, kind="application/merge-patch+json")
        third = there.wait(lambda: found if (found := value()) != second else None)  # lost: another one is made
        there.wait(lambda: opens(third) and not opens(second))
        there.client.delete(there.path("ApiKey", key, "research"))
        there.wait(lambda: not opens(third))

        there.make("ApiKey", key, {"entitlementRef": {"name": mine}, "secret": {"name": key}})
        there.wait(lambda: "operator.secrets.namespaces" in condition(there, "ApiKey", key).get("message", ""))
        there.client.delete(there.path("ApiKey", key))


def calls_of(there: Cluster, *resources: str) -> dict[str, int]:
    """Writes that the API server has answered, by kind; the test's own, the scheduler's and the operator's."""
    found: Counter[str] = Counter()
    for line in there.client.get("/metrics").text.splitlines():
        read = re.match(r'apiserver_request_total\{.*resource="(\w+)".*verb="(POST|PUT|PATCH|DELETE)".*\} (\S+)$', line)
        if read and read[1] in resources:
            found[f"{read[2]} {read[1]}"] += int(float(read[3]))
    return dict(found)


@pytest.mark.slow
def test_five_hundred_entitlements_in_fifty_pools(
    there: Cluster, catalog: Catalog, names: Names, figure: Callable[[str], None]
) -> None:
    with operating(there, catalog) as process:
        tier = contract(there, names)
        tenant = names("Tenant", "many")
        there.make("Tenant", tenant, {})
        before = calls_of(there, "tokenentitlements", "tokenpools", "pods", "nodes", "leases")
        began = time.monotonic()
        pools = [pool(there, names, 100) for _ in range(1)] + [names("TokenPool", f"pool-{n}") for n in range(49)]
        for name in pools[1:]:
            backend = {"name": name, "url": f"http://{name}.example:8000", "slots": 100, "kvTokens": 1000}
            there.make("TokenPool", name, {"model": name, "backends": [backend]})
        made = []
        for n in range(500):
            name = names("TokenEntitlement", f"e-{n}")
            there.make("TokenEntitlement", name, share(tenant, pools[n % 50], tier, 2))
            made.append(name)
        written = seconds(began)

        def all_bound() -> bool:
            items = there.call("GET", there.path("TokenEntitlement"))["items"]
            return (
                sum((i.get("status") or {}).get("state") == "bound" for i in items if i["metadata"]["name"] in made)
                == 500
            )

        there.wait(all_bound, 240)
        memory = psutil.Process(process.pid).memory_info().rss / 1e6
        bound = seconds(began)
        after = calls_of(there, "tokenentitlements", "tokenpools", "pods", "nodes", "leases")
        asked = {name: count - before.get(name, 0) for name, count in after.items()}
        figure(
            f"500 entitlements in 50 pools: written in {written}, all bound after {bound}, {memory:.0f} MB; "
            f"{sum(asked.values())} API calls of all clients: {asked}"
        )
