"""Leaving Kubernetes: rows stay, and people may change them."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command

from controlplane.kubernetes import catalog
from controlplane.kubernetes.catalog import CustomResource
from tenants import services
from tenants.audit import Actor
from tenants.models import AuditEntry, Entitlement, Owner
from tests.support import worlds

pytestmark = pytest.mark.django_db

PERSON = Actor("adam", "api")
# Without closing the connection that holds the test's transaction.
reconcile = catalog.reconcile.__wrapped__


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds.build()
    monkeypatch.setattr(catalog, "release", catalog.release.__wrapped__)
    for namespace, name in (("search", "acme-llama"), ("research", "globex-llama")):
        spec = {"resources": {"concurrency": 3}}
        one = CustomResource("TokenEntitlement", namespace, name, f"uid-{name}", spec)
        assert reconcile([one]) == {one.uid: ""}
    services.set_leases(dict.fromkeys(("acme-llama", "globex-llama"), ("pending", "Kubernetes: no node")))


def change(name: str) -> None:
    row = Entitlement.objects.get(slug=name)
    row.concurrency += 1
    services.save(actor=PERSON, instance=row)


def release(*words: str) -> str:
    out = StringIO()
    call_command("operator", "--release", *words, stdout=out)
    return out.getvalue()


def refused(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except ValidationError as error:
        return "in Kubernetes sets this" in str(error)
    return False


def test_rows_that_are_let_go_stay_and_may_be_changed() -> None:
    assert refused(lambda: change("acme-llama"))
    before = set(Entitlement.objects.values_list("slug", "concurrency"))
    assert release() == (
        "TokenEntitlement search/acme-llama\nTokenEntitlement research/globex-llama\nRows let go: 2.\n"
    )
    assert set(Entitlement.objects.values_list("slug", "concurrency")) == before
    for name in ("acme-llama", "globex-llama"):
        change(name)
        row = Entitlement.objects.get(slug=name)
        assert (row.lease, row.lease_reason) == ("", "")
        assert not row.state_reason.startswith("Kubernetes"), "no scheduler has a say any more"
    entries = AuditEntry.objects.filter(action="release").values_list("object_id", flat=True)
    assert sorted(entries) == ["acme-llama", "globex-llama"]


def test_those_of_other_namespaces_are_kept() -> None:
    assert release("--namespace", "search") == "TokenEntitlement search/acme-llama\nRows let go: 1.\n"
    change("acme-llama")
    assert refused(lambda: change("globex-llama"))
    assert Entitlement.objects.get(slug="globex-llama").lease == "pending"
    assert [owner.name for owner in Owner.objects.all()] == ["globex-llama"]


def test_another_clusters_resource_takes_what_was_let_go() -> None:
    moved = CustomResource("TokenEntitlement", "elsewhere", "acme-llama", "new", {"resources": {"concurrency": 5}})
    assert "belongs to TokenEntitlement search/acme-llama" in reconcile([moved])["new"]
    release()
    assert reconcile([moved]) == {"new": ""}
    assert Entitlement.objects.get(slug="acme-llama").concurrency == 5
