"""The catalog as custom resources."""

from __future__ import annotations

from io import StringIO

import pytest
import yaml
from django.core.management import call_command
from jsonschema import Draft202012Validator

from controlplane.kubernetes.catalog import CustomResource, reconcile
from controlplane.kubernetes.resources import BY_KIND, definition
from tenants.manifest import export
from tenants.models import Pool
from tests.support import worlds

pytestmark = pytest.mark.django_db


def exported() -> list[dict]:
    out = StringIO()
    call_command("export", "--kubernetes", "llm", stdout=out)
    return list(yaml.safe_load_all(out.getvalue()))


def test_every_exported_resource_fits_its_definition() -> None:
    worlds.build()
    found = exported()
    assert {"TokenPool", "TokenEntitlement", "Tenant", "Tier", "Slo"} <= {one["kind"] for one in found}
    for one in found:
        schema = definition(BY_KIND[one["kind"]])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for error in Draft202012Validator(schema).iter_errors(one):
            assert error.instance is None, (one["kind"], list(error.path), error.message)  # nullable, in OpenAPI 3.0


def test_applying_what_was_exported_changes_nothing() -> None:
    worlds.build()
    before = export()
    wanted = [
        CustomResource(one["kind"], "llm", one["metadata"]["name"], f"uid-{number}", one["spec"])
        for number, one in enumerate(exported())
    ]
    applied = reconcile.__wrapped__(wanted)  # without closing the connection that holds the test's transaction
    assert set(applied.values()) == {""}
    assert export() == before


def test_a_pool_whose_replicas_the_cluster_finds_is_left_out_and_that_is_said() -> None:
    """Applied without them, its resource would let its replicas go."""
    worlds.build()
    name = Pool.objects.first().slug
    found = {"replicas": {"from": {"kind": "Deployment", "name": "vllm"}}}
    one = CustomResource("TokenPool", "llm", name, "uid", found)
    assert reconcile.__wrapped__([one]) == {"uid": ""}
    out = StringIO()
    call_command("export", "--kubernetes", "llm", stdout=out)
    assert out.getvalue().startswith(f"# Left out: TokenPool llm/{name}, whose spec.replicas only the cluster has")
    assert ("TokenPool", name) not in {(made["kind"], made["metadata"]["name"]) for made in exported()}
