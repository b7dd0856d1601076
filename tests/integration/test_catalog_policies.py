"""Policy, modifiers and routing as settings of a pool: in the API, the manifest, the back office and the catalog."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from rest_framework.test import APIClient

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.parameters import parameters_of
from scheduling.core.policies.registry import modifiers, orderings, routings
from tenants import services, specs
from tenants.audit import SYSTEM
from tenants.models import Pool
from tests.support import worlds

pytestmark = pytest.mark.django_db

API = "/api/v1/"
AROUND = {"bands": {}, "fair": {"output_weight": 3.0}}


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def adam(world: worlds.World) -> APIClient:
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['adam'].credential.text}")


def test_what_an_operator_sets_is_what_the_leader_gets(adam: APIClient) -> None:
    given = {
        "policy": "edf",
        "params": {},
        "modifiers": AROUND,
        "routing": "prefix_affinity",
        "routing_params": {"skew_tokens": 500},
    }
    answer = adam.post(API + "pools/llama/policy", given, format="json")
    assert answer.status_code == 200, answer.json()
    assert (answer.json()["modifiers"], answer.json()["policy_version"]) == (AROUND, 2)
    spec = specs.load_catalog().pools["llama"]
    assert (spec.policy, spec.modifiers, spec.policy_version) == ("edf", AROUND, 2)
    assert (spec.routing, spec.routing_params) == ("prefix_affinity", {"skew_tokens": 500})
    assert make_policy(spec.policy, spec.policy_params, spec.modifiers).name == "bands+fair+edf"


def test_a_policy_replaces_no_other_version_than_the_one_that_was_read(adam: APIClient) -> None:
    first = adam.post(API + "pools/llama/policy", {"policy": "edf", "replaces": 1}, format="json")
    late = adam.post(API + "pools/llama/policy", {"policy": "fifo", "replaces": 1}, format="json")
    assert (first.status_code, late.status_code) == (200, 409), late.json()
    assert "edf@2 serves" in late.json()["detail"]
    assert Pool.objects.get(slug="llama").policy == "edf"
    again = adam.post(API + "pools/llama/policy", {"policy": "fifo", "replaces": 2}, format="json")
    assert (again.status_code, again.json()["policy_version"]) == (200, 3)


@pytest.mark.parametrize(
    "change",
    [{"modifiers": {"bands": {}}}, {"routing": "prefix_affinity"}, {"routing_params": {}, "policy_params": {}}],
)
def test_each_change_of_what_decides_is_a_new_version_and_nothing_else_is(
    world: worlds.World, change: dict[str, Any]
) -> None:
    pool = Pool.objects.get(slug="llama")
    before = {name: getattr(pool, name) for name in change}
    for name, value in change.items():
        setattr(pool, name, value)
    services.save(actor=SYSTEM, instance=pool)
    assert pool.policy_version == (1 if before == change else 2)
    pool.description = "another"
    assert services.save(actor=SYSTEM, instance=pool).policy_version == (1 if before == change else 2)


def test_what_is_not_named_stays_as_it_is(adam: APIClient) -> None:
    adam.patch(API + "pools/llama", {"modifiers": AROUND, "routing": "prefix_affinity"}, format="json")
    adam.post(API + "pools/llama/policy", {"policy": "fifo"}, format="json")
    pool = Pool.objects.get(slug="llama")
    assert (pool.policy, pool.modifiers, pool.routing) == ("fifo", AROUND, "prefix_affinity")


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"modifiers": {"bnads": {}}}, "modifiers", "unknown modifier 'bnads', did you mean 'bands'?"),
        ({"modifiers": {"fair": {"weight": 1}}}, "modifiers", "modifier 'fair' has no parameter 'weight'"),
        ({"modifiers": {"fair": {"output_weight": -2}}}, "modifiers", "must be at least 0"),
        ({"modifiers": ["bands"]}, "modifiers", "Write modifiers by name with their parameters"),
        ({"modifiers": {"bands": 1}}, "modifiers", "Write the parameters of 'bands' by name"),
        ({"modifiers": {"fair": {"output_weight": True}}}, "modifiers", "must be a number or a word, not True"),
        ({"routing": "random"}, "routing", "unknown routing policy 'random'; there are: least_work, prefix_affinity"),
        (
            {"routing_params": {"skew_tokens": -1}},
            "routing_params",
            "'skew_tokens' of routing policy 'prefix_affinity' must",
        ),
        ({"routing_params": {"s": 1}}, "routing_params", "routing policy 'prefix_affinity' has no parameter 's'"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(
    adam: APIClient, given: dict[str, Any], field: str, message: str
) -> None:
    answer = adam.patch(API + "pools/llama", given, format="json")
    assert answer.status_code == 400
    assert list(answer.json()["errors"] if "errors" in answer.json() else answer.json()) == [field]
    assert message in answer.content.decode().replace("\\u0027", "'")
    with pytest.raises(ValidationError):
        services.set_policy(actor=SYSTEM, pool=Pool.objects.get(), policy="fifo", params={}, **given)


def test_all_that_can_be_named_is_listed_by_kind(adam: APIClient) -> None:
    listed = adam.get(API + "policies").json()
    found = {kind: [p["name"] for p in listed if p["kind"] == kind] for kind in ("ordering", "modifier", "routing")}
    assert found == {"ordering": list(orderings()), "modifier": list(modifiers()), "routing": list(routings())}
    assert all(entry["question"] for entry in listed)


def test_each_parameter_is_described_as_its_policy_declares_it(adam: APIClient) -> None:
    listed = {(entry["kind"], entry["name"]): entry["params"] for entry in adam.get(API + "policies").json()}
    registries = {"ordering": orderings(), "modifier": modifiers(), "routing": routings()}
    for (kind, name), params in listed.items():
        declared = parameters_of(registries[kind][name])
        for given, each in zip(params, declared, strict=True):
            assert (given["name"], given["type"], given["default"]) == (each.name, each.type, each.default)
            assert (given["meaning"], given["unit"] or "none") == (each.meaning, each.unit)
            assert given["allowed"] == str(each.allowed)
    every = next(each for each in listed["ordering", "unified"] if each["name"] == "every")
    assert every == {
        "name": "every",
        "type": "int",
        "default": 32,
        "meaning": "One turn in so many goes to the request that has been overdue longest.",
        "unit": "turns",
        "allowed": "at least 2",
        "minimum": 2,
        "maximum": None,
        "exclusive_minimum": False,
        "exclusive_maximum": False,
        "choices": None,
    }
    assert [each["exclusive_minimum"] for each in listed["ordering", "aging"]] == [True]
    assert {each["name"]: each["choices"] for each in listed["ordering", "unified"]}["relegate"] == [0, 1, 2]
    classes = [each["choices"] for each in listed["modifier", "relegate"]][-1]
    assert classes == ["dedicated", "guaranteed", "elastic", "spot", "preemptible"]


def test_the_manifest_carries_them_and_its_export_changes_nothing(tmp_path: Any, world: worlds.World) -> None:
    services.set_policy(
        actor=SYSTEM, pool=world.pool, policy="hybrid", params={}, modifiers=AROUND, routing="prefix_affinity"
    )
    out = StringIO()
    call_command("export", stdout=out)
    text = out.getvalue()
    assert "modifiers:" in text
    assert "prefix_affinity" in text
    file = tmp_path / "catalog.yaml"
    file.write_text(text)
    call_command("apply", file=str(file), yes=True, stdout=StringIO())
    assert Pool.objects.get().policy_version == 2
    file.write_text(text.replace("prefix_affinity", "least_work"))
    call_command("apply", file=str(file), yes=True, stdout=StringIO())
    pool = Pool.objects.get()
    assert (pool.routing, pool.modifiers, pool.policy_version) == ("least_work", AROUND, 3)
