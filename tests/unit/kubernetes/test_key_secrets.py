"""Keys whose values are in Secrets of the cluster."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from jsonschema import Draft202012Validator

from controlplane.kubernetes import key_secrets
from controlplane.kubernetes.catalog import CustomResource
from controlplane.kubernetes.key_secrets import KeyFault, SecretReference
from controlplane.kubernetes.resources import BY_KIND, definition
from tenants import keys, services
from tenants.audit import Actor
from tenants.models import ApiKey, Owner, Project
from tests.support import worlds

pytestmark = pytest.mark.django_db

# Without closing the connection that holds the test's transaction.
is_due, settle = key_secrets.is_due.__wrapped__, key_secrets.settle.__wrapped__
remove = key_secrets.remove.__wrapped__


@pytest.fixture(autouse=True)
def world() -> worlds.World:
    return worlds.build()


def resource(**spec: Any) -> CustomResource:
    spec = {"entitlementRef": {"name": "acme-llama"}, "secret": {"name": "app"}} | spec
    return CustomResource("ApiKey", "research", "app", "uid-1", spec)


def in_a_secret(text: str) -> dict[str, Any]:
    return {"data": {"api-key": base64.b64encode(text.encode()).decode()}}


def made(one: CustomResource) -> keys.Credential:
    credential = keys.make()
    settle(one, SecretReference.of(one), credential.text)
    return credential


def test_a_secret_without_a_value_gets_one_and_the_catalog_knows_it() -> None:
    one = resource(limits={"concurrency": 3}, user="search")
    place = SecretReference.of(one)
    assert place.value(None) == place.value({"data": {"other": "eA=="}}) == ""
    assert is_due(one, place, "", {})
    credential = keys.make()
    body = place.body(one, credential)
    assert place.value(body) == credential.text
    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    settle(one, place, credential.text)
    row = ApiKey.objects.get(public_id=credential.public_id)
    assert keys.matches(credential, row.digest)
    assert (row.entitlement.slug, row.name, row.user, row.concurrency) == ("acme-llama", "app", "search", 3)
    assert not is_due(one, place, credential.text, {})


def test_a_second_look_changes_nothing_and_a_changed_resource_its_fields() -> None:
    one = resource()
    credential = made(one)
    versions = services.CatalogVersion.objects.get(pk=1).version
    settle(one, SecretReference.of(one), credential.text)
    assert services.CatalogVersion.objects.get(pk=1).version == versions
    settle(resource(displayName="Search"), SecretReference.of(one), credential.text)
    assert ApiKey.objects.get(public_id=credential.public_id).name == "Search"


def test_a_rotated_key_ends_at_once_or_after_its_overlap() -> None:
    one = resource()
    first = made(one)
    turned = resource(secret={"name": "app", "rotate": "november"})
    assert is_due(turned, SecretReference.of(turned), first.text, {key_secrets.ROTATED: ""})
    assert not is_due(turned, SecretReference.of(turned), first.text, {key_secrets.ROTATED: "november"})
    second = made(turned)
    assert ApiKey.objects.get(public_id=first.public_id).revoked_at is not None
    slow = resource(secret={"name": "app", "overlapSeconds": 600})
    third = made(slow)
    before = ApiKey.objects.get(public_id=second.public_id)
    assert before.revoked_at is None
    assert before.expires_at is not None
    assert ApiKey.objects.get(public_id=third.public_id).expires_at is None
    assert [owner.name for owner in Owner.objects.filter(kind="ApiKey")] == [third.public_id]


def test_a_key_is_rotated_by_itself_when_it_is_old() -> None:
    one = resource(secret={"name": "app", "rotateEverySeconds": 3600})
    credential = made(one)
    assert not is_due(one, SecretReference.of(one), credential.text, {})
    row = ApiKey.objects.get(public_id=credential.public_id)
    ApiKey.objects.filter(pk=row.pk).update(created_at=row.created_at.replace(year=row.created_at.year - 1))
    assert is_due(one, SecretReference.of(one), credential.text, {})


def test_what_is_no_key_of_ours_is_not_overwritten() -> None:
    place = SecretReference.of(resource())
    for text in ("sk-of-somebody-else", "qma-" + keys.make().text[3:], "\xff"):
        with pytest.raises(KeyFault, match="is no key of ours"):
            place.value(in_a_secret(text))


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {"app": "shop"}},
        {"labels": {key_secrets.FOR_KEY: "another"}},
        {"ownerReferences": [{"kind": "ApiKey", "name": "app", "uid": "uid-of-another"}]},
    ],
)
def test_into_a_secret_of_somebody_else_nothing_is_written(metadata: dict[str, Any]) -> None:
    one = resource()
    with pytest.raises(KeyFault, match=r"Secret app was not made for this resource.*quartermaster\.dev/key=app"):
        SecretReference.of(one).check_ours(one, {"metadata": metadata, "data": {"password": "eA=="}})


def test_into_its_own_secret_and_one_that_is_labelled_for_it_a_value_is_written() -> None:
    one = resource()
    place = SecretReference.of(one)
    made_by_us = place.body(one, keys.make())
    place.check_ours(one, made_by_us)
    made_by_us["metadata"].pop("labels")  # some tools take away what they do not know
    place.check_ours(one, made_by_us)
    place.check_ours(one, {"metadata": {"labels": {"app": "shop", key_secrets.FOR_KEY: "app"}}})


def test_a_key_of_somebody_else_is_not_taken_over() -> None:
    issued = services.issue_key(
        actor=Actor("adam", "api"), name="theirs", entitlement=worlds.Entitlement.objects.get(slug="acme-llama")
    )
    one = resource(limits={"concurrency": 1000})
    with pytest.raises(KeyFault, match="was not made for this resource"):
        settle(one, SecretReference.of(one), issued.credential.text)
    other = CustomResource("ApiKey", "other", "app", "uid-2", resource().spec)
    mine = made(resource())
    with pytest.raises(KeyFault, match="was not made for this resource"):
        settle(other, SecretReference.of(other), mine.text)


def test_a_key_of_somebody_else_is_not_replaced_either() -> None:
    """Two resources name one Secret: asking for another value gives the second one no right to the first one's."""
    mine = made(resource())
    second = {"name": "app", "rotate": "now", "rotateEverySeconds": 3600}
    other = CustomResource("ApiKey", "research", "second", "uid-2", resource(secret=second).spec)
    with pytest.raises(KeyFault, match="was not made for this resource"):
        is_due(other, SecretReference.of(other), mine.text, {})
    assert ApiKey.objects.get(public_id=mine.public_id).revoked_at is None


@pytest.mark.parametrize("name", ["../../search/secrets/app", "..", ".", "a/b", "a?b=c", "a#b", "a%2f..%2fb", "A", ""])
def test_a_name_that_leads_out_of_its_namespace_is_no_secrets_name(name: str) -> None:
    with pytest.raises(KeyFault, match=r"spec\.secret\.name: a Secret cannot be called"):
        SecretReference.of(resource(secret={"name": name}))
    schema = definition(BY_KIND["ApiKey"])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    named = schema["properties"]["spec"]["properties"]["secret"]["properties"]["name"]
    assert not Draft202012Validator(named).is_valid(name)
    assert Draft202012Validator(named).is_valid("search-app.key-1")


def test_a_revoked_key_stays_revoked_and_says_what_to_do() -> None:
    one = resource()
    credential = made(one)
    services.revoke_key(actor=Actor("adam", "api"), key=ApiKey.objects.get(public_id=credential.public_id))
    with pytest.raises(KeyFault, match="was revoked; remove its value"):
        settle(one, SecretReference.of(one), credential.text)


def test_what_it_should_open_has_to_be_there() -> None:
    one = resource(entitlementRef={"name": "nothing"})
    with pytest.raises(KeyFault, match="there is no entitlement 'nothing'"):
        settle(one, SecretReference.of(one), keys.make().text)
    neither = resource(entitlementRef=None)
    with pytest.raises(KeyFault, match="one entitlement or a project"):
        settle(neither, SecretReference.of(neither), keys.make().text)


@pytest.mark.parametrize(
    "reference", [{"entitlementRef": {"name": "acme-llama"}}, {"projectRef": {"name": "acme-web"}}]
)
def test_a_namespace_has_keys_of_the_tenants_that_are_listed_for_it_and_of_no_other(
    world: worlds.World, reference: dict[str, Any]
) -> None:
    Project.objects.create(slug="acme-web", tenant=world.tenants["acme"])
    one = CustomResource("ApiKey", "research", "app", "uid-1", reference | {"secret": {"name": "app"}})
    place, credential, keys_before = SecretReference.of(one), keys.make(), ApiKey.objects.count()
    for tenants in (frozenset({"globex"}), frozenset[str]()):
        with pytest.raises(KeyFault, match="namespace research may not have keys of this tenant"):
            settle(one, place, credential.text, tenants)
        assert ApiKey.objects.count() == keys_before
    settle(one, place, credential.text, frozenset({"globex", "acme"}))
    assert ApiKey.objects.get(public_id=credential.public_id).tenant.slug == "acme"


def test_a_key_cannot_be_moved_to_a_tenant_that_is_not_listed_for_its_namespace() -> None:
    one = resource()
    credential = made(one)
    moved = resource(entitlementRef={"name": "globex-llama"})
    with pytest.raises(KeyFault):
        settle(moved, SecretReference.of(moved), credential.text, frozenset({"acme"}))
    assert ApiKey.objects.get(public_id=credential.public_id).tenant.slug == "acme"


def test_pairs_of_namespace_and_tenant_are_read_strictly() -> None:
    assert key_secrets.tenants_by_namespace(["a/x", "a/y", "b/"]) == {"a": {"x", "y"}, "b": set()}
    for wrong in ("a", "/x", "a/x/y", ""):
        with pytest.raises(ValueError, match="is not NAMESPACE/TENANT"):
            key_secrets.tenants_by_namespace([wrong])


def test_the_console_neither_rotates_it_nor_changes_what_its_resource_sets() -> None:
    credential = made(resource(limits={"concurrency": 3}))
    row = ApiKey.objects.get(public_id=credential.public_id)
    person = Actor("adam", "api")
    with pytest.raises(ValidationError, match="Rotate it there"):
        services.rotate_key(actor=person, key=row)
    row.concurrency = 9
    with pytest.raises(ValidationError, match="in Kubernetes sets this"):
        services.save(actor=person, instance=row)


def test_a_deleted_resource_ends_its_key_and_keeps_the_row() -> None:
    one = resource()
    credential = made(one)
    remove(one)
    assert ApiKey.objects.get(public_id=credential.public_id).revoked_at is not None
    assert not Owner.objects.filter(kind="ApiKey").exists()
