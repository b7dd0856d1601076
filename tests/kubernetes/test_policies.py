"""Namespaces with policies of their own: defaults for every pod, and a quota that takes none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.kubernetes import leases
from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_operator import Names, condition, contract, entitlement, pool, share, state_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

WHERE = "policed"
CORE = f"/api/v1/namespaces/{WHERE}"


@pytest.fixture
def policed(there: Cluster) -> Iterator[None]:
    if there.client.get(CORE).status_code == 404:
        there.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WHERE}})
    yield
    for kind in ("limitranges", "resourcequotas"):
        there.client.delete(f"{CORE}/{kind}/all")


def made(there: Cluster, name: str, spec: dict[str, Any]) -> None:
    there.make("TokenEntitlement", name, spec, WHERE)


def reason(there: Cluster, name: str) -> str:
    return (there.get("TokenEntitlement", name, WHERE).get("status") or {}).get("reason") or ""


def state(there: Cluster, name: str) -> str:
    return (there.get("TokenEntitlement", name, WHERE).get("status") or {}).get("state") or ""


def test_a_lease_is_bound_where_every_pod_gets_defaults_and_is_made_once(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names, policed: None
) -> None:
    """A LimitRange gives CPU and memory to whoever says nothing of them, which no virtual node offers."""
    limits = [{"type": "Container", "default": {"cpu": "1", "ephemeral-storage": "1Gi"},
               "defaultRequest": {"cpu": "100m", "memory": "64Mi"}}]  # fmt: skip
    there.call("POST", f"{CORE}/limitranges", {"metadata": {"name": "all"}, "spec": {"limits": limits}})
    tier, llama = contract(there, names), pool(there, names, 16)
    tenant, mine = names("Tenant", "limited"), names("TokenEntitlement", "limited")
    there.make("Tenant", tenant, {})
    made(there, mine, share(tenant, llama, tier, 4))
    try:
        path = f"{CORE}/pods/{leases.pod_name(mine)}"
        there.wait(lambda: state(there, mine) == "bound")
        first = there.call("GET", path)
        assert first["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "0"
        there.change("Tenant", tenant, {"description": "another round of the operator"})
        there.wait(lambda: condition(there, "Tenant", tenant).get("observedGeneration") == 2)
        assert there.call("GET", path)["metadata"]["uid"] == first["metadata"]["uid"]
    finally:
        there.client.delete(there.path("TokenEntitlement", mine, WHERE))
        there.wait(lambda: there.client.get(there.path("TokenEntitlement", mine, WHERE)).status_code == 404)


def test_a_quota_that_takes_no_pod_is_said_and_holds_up_nobody_else(
    there: Cluster, operator: subprocess.Popen[bytes], names: Names, policed: None
) -> None:
    quota = {"hard": {"pods": "0"}}
    there.call("POST", f"{CORE}/resourcequotas", {"metadata": {"name": "all"}, "spec": quota})
    there.call(
        "PATCH", f"{CORE}/resourcequotas/all/status", {"status": quota | {"used": {"pods": "0"}}},
        kind="application/merge-patch+json",
    )  # fmt: skip
    tier, llama = contract(there, names), pool(there, names, 16)
    tenant, mine = names("Tenant", "full"), names("TokenEntitlement", "full")
    there.make("Tenant", tenant, {})
    made(there, mine, share(tenant, llama, tier, 4))
    try:
        there.wait(lambda: "exceeded quota" in reason(there, mine))
        assert "the API server refuses its lease pod" in reason(there, mine)
        other = entitlement(there, names, tier, llama, 4, "other")
        there.wait(lambda: state_of(there, other) == "bound")
        there.call("DELETE", f"{CORE}/resourcequotas/all")
        there.wait(lambda: state(there, mine) == "bound")
    finally:
        there.client.delete(there.path("TokenEntitlement", mine, WHERE))
        there.wait(lambda: there.client.get(there.path("TokenEntitlement", mine, WHERE)).status_code == 404)
