"""The operator beside a cluster of tests, and the resources it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.instance import ROOT, Up
from tests.support.kubernetes_cluster import Cluster
from tests.support.ports import free_port

OPERATOR = "llm:qm-quartermaster-operator"
NARROW = "llm:narrow-quartermaster-operator"  # of a release whose operator watches few namespaces
WORKER = "llm:qm-quartermaster"
STRANGER = "default:stranger"
OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}  # the API server of the tests is 1.20
OTHERS = ("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1")  # custom resources of other products


class Catalog:
    """A database alone: nobody asks whether a backend answers, so that pools need no engines."""

    def __init__(self, home: Path) -> None:
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
            "QUARTERMASTER_HOME": str(home)
        }

    def manage(self, *words: str) -> str:
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environ, check=True, capture_output=True, text=True).stdout

    def ask(self, expression: str) -> str:
        return self.manage("shell", "--no-imports", "-c", f"from tenants.models import *; print({expression})").strip()


@contextmanager
def operating(
    there: Cluster, instance: Up | Catalog, *options: str, account: str = OPERATOR
) -> Iterator[subprocess.Popen[bytes]]:
    """An operator with the token of its service account."""
    environ = instance.environ | {"KUBECONFIG": str(there.kubeconfig(account))}
    with (there.folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "operator", *options], cwd=ROOT, env=environ, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)  # a second or two, where nothing else runs


Names = Callable[[str, str], str]


def contract(there: Cluster, names: Names, service_class: str = "guaranteed") -> str:
    """A tier with its SLO."""
    slo, tier = names("Slo", f"slo-{service_class}"), names("Tier", f"tier-{service_class}")
    there.make("Slo", slo, {"ttftSeconds": 5.0, "tbtSeconds": 0.5})
    there.make("Tier", tier, {"serviceClass": service_class, "slo": slo, "rank": 0, "weight": 10})
    return tier


def pool(there: Cluster, names: Names, slots: int, url: str = "") -> str:
    name = names("TokenPool", "pool")
    backend = {"name": name, "url": url or f"http://127.0.0.1:{free_port()}", "slots": slots, "kvTokens": 100_000}
    there.make("TokenPool", name, {"model": name, "backends": [backend]})
    return name


def entitlement(there: Cluster, names: Names, tier: str, pool: str, slots: int, what: str = "share") -> str:
    tenant, name = names("Tenant", f"tenant-{what}"), names("TokenEntitlement", what)
    there.make("Tenant", tenant, {"description": "Tests."})
    there.make("TokenEntitlement", name, share(tenant, pool, tier, slots))
    return name


def share(tenant: str, pool: str, tier: str, slots: int) -> dict[str, Any]:
    return {
        "tenantRef": {"name": tenant}, "poolRef": {"name": pool}, "qos": {"tier": tier},
        "resources": {"concurrency": slots},
    }  # fmt: skip


def state_of(there: Cluster, name: str) -> str:
    return (there.get("TokenEntitlement", name).get("status") or {}).get("state", "")


def reason_of(there: Cluster, name: str) -> str:
    return (there.get("TokenEntitlement", name).get("status") or {}).get("reason", "")


def condition(there: Cluster, kind: str, name: str, of: str = "Ready", namespace: str = "default") -> dict[str, Any]:
    conditions = (there.get(kind, name, namespace).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == of), {})


def seconds(began: float) -> str:
    return f"{time.monotonic() - began:.2f} s"
