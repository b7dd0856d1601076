"""The operator against an API that conflicts, forgets, refuses, fails or does not answer."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from kmock import Request

from controlplane.kubernetes import api as calls
from controlplane.kubernetes import capacity, catalog, leases, operator
from tenants import keys
from tenants.connections import own_connection
from tenants.models import ApiKey, Entitlement, Tenant
from tests.support.kubernetes_fake import FakeApi, fake_api, operating, to, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

NO_RIGHT = 'nodes "x" is forbidden: User "system:serviceaccount:llm:operator" cannot get resource "nodes"'


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as made:
        yield made


def share(tenant: str, slots: int = 4) -> dict[str, Any]:
    return {
        "tenantRef": {"name": tenant}, "poolRef": {"name": "llama"}, "qos": {"tier": "gold"},
        "resources": {"concurrency": slots},
    }  # fmt: skip


async def contract(api: FakeApi) -> None:
    """A pool with sixteen slots, a tier and a tenant."""
    await api.make("Slo", "quick", {"ttftSeconds": 5.0, "tbtSeconds": 0.5})
    await api.make("Tier", "gold", {"serviceClass": "guaranteed", "slo": "quick", "rank": 0, "weight": 10})
    backend = {"name": "gpu-1", "url": "http://127.0.0.1:9", "slots": 16, "kvTokens": 100_000}
    await api.make("TokenPool", "llama", {"model": "llama", "backends": [backend]})
    await api.make("Tenant", "acme", {"description": "Tests."})


def ready(api: FakeApi, kind: str, name: str, namespace: str = "default") -> bool:
    """As the resource is now, not as it was before its last change."""
    there = api.get(kind, name, namespace) or {}
    seen = (there.get("status") or {}).get("observedGeneration") == there["metadata"]["generation"]
    return bool(seen and api.condition(kind, name, namespace=namespace).get("status") == "True")


async def to_thread(ask: Callable[..., Any], **named: Any) -> Any:
    """Of the database; the thread's connection is given back."""
    return await asyncio.to_thread(own_connection(ask), **named)


async def row(model: Any, slug: str) -> Any:
    return await to_thread(model.objects.filter(slug=slug).first)


# --- what is there


async def test_a_resource_becomes_a_row_that_follows_it_and_goes_with_it(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await api.make("Tenant", "acme", {"description": "first"})
        await until(lambda: ready(api, "Tenant", "acme"))
        assert (await row(Tenant, "acme")).description == "first"
        await api.change("Tenant", "acme", {"description": "second"})
        await until(lambda: ready(api, "Tenant", "acme"))
        assert (await row(Tenant, "acme")).description == "second"
        await api.delete("Tenant", "acme")
        await until(lambda: api.get("Tenant", "acme") is None)
        assert await row(Tenant, "acme") is None


def tenant_body(**metadata: Any) -> dict[str, Any]:
    there = {"name": "acme", "namespace": "default", "uid": "u1", "generation": 1, **metadata}
    return {"kind": "Tenant", "metadata": there, "spec": {"description": "first"}}


@pytest.mark.parametrize("told", [True, False], ids=["the deletion was told of", "the deletion was not told of yet"])
async def test_what_is_deleted_while_it_is_being_applied_is_not_made_again(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = operator.Operator(with_leases=False)
    begun, go_on = threading.Event(), threading.Event()
    apply = catalog.reconcile

    def slowly(resources: list[Any], suspects: Any) -> dict[str, str]:
        begun.set()
        go_on.wait(60)
        return apply(resources, suspects)

    monkeypatch.setattr(catalog, "reconcile", slowly)
    made.on_resource("Tenant", "ADDED", tenant_body())
    applying = asyncio.create_task(made._apply(None))
    await asyncio.to_thread(begun.wait, 60)
    gone = tenant_body(deletionTimestamp="2026-01-01T00:00:00Z")
    deleting = asyncio.create_task(made.on_delete("Tenant", gone))
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(applying, deleting)
    assert await row(Tenant, "acme") is None
    made._dirty.add(("Tenant", "default", "acme"))  # as each 15 s, of what the cluster told last
    if told:
        made.on_resource("Tenant", "MODIFIED", gone)
    await made._apply(None)
    assert await row(Tenant, "acme") is None
    made.on_resource("Tenant", "DELETED", gone)
    made.on_resource("Tenant", "ADDED", tenant_body(uid="u2"))
    await made._apply(None)
    assert await row(Tenant, "acme") is not None, "another one of that name is"


async def test_a_change_made_behind_its_back_is_undone_and_nothing_is_deleted(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await api.make("Tenant", "acme", {"description": "ours"})
        await until(lambda: ready(api, "Tenant", "acme"))
        await to_thread(Tenant.objects.create, slug="globex")
        await to_thread(Tenant.objects.filter(slug="acme").update, description="somebody's")
        async with asyncio.timeout(30):
            while (await row(Tenant, "acme")).description != "ours":
                await asyncio.sleep(0.01)
        assert await row(Tenant, "globex") is not None


async def test_a_lease_is_bound_when_the_scheduler_binds_its_pod(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        pod = await until(lambda: api.get("v1/pods", "lease-search"))
        assert pod["spec"]["containers"][0]["resources"]["requests"]["quartermaster.dev/slots"] == "4"
        node = api.get("v1/nodes", leases.node_name("default", "llama"), None)
        assert node is not None
        assert node["status"]["allocatable"]["quartermaster.dev/slots"] == "16"
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "False")
        await api.bind("lease-search")
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "True")


async def test_without_leases_what_the_scheduler_said_before_counts_no_more(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``operator.leases: false`` on an installation that had them: the catalog judges capacity alone."""
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "False")
        assert (await row(Entitlement, "search")).lease == "pending"
    async with operating(api, tmp_path, monkeypatch, with_leases=False):
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "True")
    assert (await row(Entitlement, "search")).lease == ""
    assert (await row(Entitlement, "search")).state == "bound"


async def test_what_one_look_did_not_come_to_is_looked_at_by_the_next_ones(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "TRIES", 10)
    names = [f"lost-{number}" for number in range(12)]
    async with operating(api, tmp_path, monkeypatch):
        for name in names:
            await api.make("TokenEntitlement", name, share("nobody"))
        await contract(api)
        await until(lambda: ready(api, "TokenPool", "llama"))
        for name in names:
            await until(lambda n=name: "there is no tenant" in api.condition("TokenEntitlement", n).get("message", ""))


# --- conflicts


async def test_a_secret_that_another_made_at_the_same_moment_is_taken_as_it_is(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = keys.make()
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        await until(lambda: ready(api, "TokenEntitlement", "search"))
        with api.answering(to("POST", "secrets"), 409):
            await api.make("ApiKey", "app", {"entitlementRef": {"name": "search"}, "secret": {"name": "app"}})
            await until(lambda: "another one made the Secret" in api.condition("ApiKey", "app").get("message", ""))
            assert await to_thread(ApiKey.objects.count) == 0
        value = base64.b64encode(credential.text.encode()).decode()
        await api._call(
            "POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "app"}, "data": {"api-key": value}}
        )
        await until(lambda: ready(api, "ApiKey", "app"))
        made = await to_thread(lambda: [one.public_id for one in ApiKey.objects.all()])
        assert made == [credential.public_id]


async def test_a_key_reaches_no_secret_of_another_namespace(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Definitions in the cluster may be those of an older version, which took any name."""
    theirs = {"metadata": {"name": "app"}, "data": {"other": "eA=="}}
    await api._call("POST", "/api/v1/namespaces/search/secrets", theirs)
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        secret = {"name": "../../search/secrets/app"}
        await api.make("ApiKey", "app", {"entitlementRef": {"name": "search"}, "secret": secret}, "research")
        await until(lambda: api.condition("ApiKey", "app", namespace="research"))
        said = api.condition("ApiKey", "app", namespace="research")
        assert said["status"] == "False"
        assert said["message"] == "spec.secret.name: a Secret cannot be called '../../search/secrets/app'"
    there = api.get("v1/secrets", "app", "search")
    assert there is not None
    assert there["data"] == {"other": "eA=="}
    assert await to_thread(ApiKey.objects.count) == 0


async def test_whoever_may_write_keys_writes_into_no_secret_of_somebody_else(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = {"metadata": {"name": "database"}, "data": {"password": "eA=="}}
    await api._call("POST", "/api/v1/namespaces/default/secrets", database)
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        spec = {"entitlementRef": {"name": "search"}, "secret": {"name": "database"}}
        await api.make("ApiKey", "app", spec)
        await until(lambda: "was not made for this resource" in api.condition("ApiKey", "app").get("message", ""))
        there = api.get("v1/secrets", "database")
        assert there is not None
        assert there["data"] == {"password": "eA=="}
        assert "annotations" not in there["metadata"]
        assert await to_thread(ApiKey.objects.count) == 0

        labelled = {"metadata": {"labels": {"quartermaster.dev/key": "app"}}}
        await api._call("PATCH", "/api/v1/namespaces/default/secrets/database", labelled)
        await until(lambda: ready(api, "ApiKey", "app"))
        there = api.get("v1/secrets", "database")
        assert there is not None
        assert sorted(there["data"]) == ["api-key", "password"]


async def test_a_secret_that_changed_since_it_was_looked_at_is_looked_at_again(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        await api.make("ApiKey", "app", {"entitlementRef": {"name": "search"}, "secret": {"name": "app"}})
        await until(lambda: ready(api, "ApiKey", "app"))
        with api.answering(to("PATCH", "secrets"), 409):
            await api.change("ApiKey", "app", {"secret": {"rotate": "now"}})
            said = lambda: api.condition("ApiKey", "app").get("message", "")  # noqa: E731
            await until(lambda: "changed the Secret at the same moment" in said())
        await until(lambda: ready(api, "ApiKey", "app"))


async def test_a_lease_that_was_bound_while_it_was_to_be_made_anew_stays(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme", 4))
        first = await until(lambda: api.get("v1/pods", "lease-search"))
        with api.answering(to("DELETE", "pods"), 409):
            await api.change("TokenEntitlement", "search", share("acme", 8))
            await until(lambda: api.calls(to("DELETE", "pods")) >= 2)
            assert api.get("v1/pods", "lease-search")["metadata"]["uid"] == first["metadata"]["uid"]
            assert (await row(Entitlement, "search")).concurrency == 8
        await until(
            lambda: (api.get("v1/pods", "lease-search") or first)["metadata"]["uid"] != first["metadata"]["uid"]
        )


# --- 410


async def test_what_a_watch_that_is_too_old_did_not_tell_is_listed_again(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await api.make("Tenant", "acme", {"description": "first"})
        await until(lambda: ready(api, "Tenant", "acme"))
        api.change_unseen("Tenant", "acme", {"description": "second"})
        await api.expire_watches("Tenant")
        await until(lambda: ready(api, "Tenant", "acme"))
        assert (await row(Tenant, "acme")).description == "second"


async def test_a_watch_of_replicas_ends_with_410_and_what_was_told_last_stands(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[set[str]] = []
    path = "/api/v1/namespaces/default/pods"
    await api._call("POST", path, {"metadata": {"name": "vllm-0", "labels": {"app": "vllm"}}})
    async with httpx.AsyncClient(base_url=str(api.url)) as http:
        client = calls.Api(http)

        def tell(objects: dict[str, dict[str, Any]]) -> None:
            told.append({one["metadata"]["name"] for one in objects.values()})

        watching = asyncio.create_task(client.watch(path, "app=vllm", tell))
        await until(lambda: told)
        await api._call("POST", path, {"metadata": {"name": "vllm-1", "labels": {"app": "vllm"}}})
        await until(lambda: told[-1] == {"vllm-0", "vllm-1"})
        await api.expire_watches("v1/pods")
        await asyncio.wait_for(watching, 30)
        assert told[-1] == {"vllm-0", "vllm-1"}
        too_old = api.answering(lambda request: request.params.get("watch") == "true", 410, "too old")
        with too_old, pytest.raises(httpx.HTTPStatusError, match="410 "):
            await client.watch(path, "app=vllm", tell)


# --- refusals


async def test_without_a_right_to_nodes_resources_say_so_and_all_others_go_on(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "HEARTBEAT_S", 0.3)
    async with operating(api, tmp_path, monkeypatch):
        with api.answering(to("GET", "nodes"), 403, NO_RIGHT):
            await contract(api)
            await until(lambda: api.condition("TokenPool", "llama", "Offered").get("status") == "False")
            said = api.condition("TokenPool", "llama", "Offered")["message"]
            assert said == f"the API server refuses its node: {NO_RIGHT}"
            assert api.get("TokenPool", "llama")["status"]["reason"] == said
            await until(lambda: ready(api, "Tenant", "acme"))
        await until(lambda: api.condition("TokenPool", "llama", "Offered").get("status") == "True")
        assert api.get("TokenPool", "llama")["status"].get("reason") is None


async def test_a_namespace_that_takes_no_lease_pod_holds_up_nobody_else(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of pods, or a policy: its entitlement says what the API server said."""
    monkeypatch.setattr(capacity, "REFUSED_AGAIN_S", 0.5)
    quota = 'pods "lease-search" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=9, limited: pods=9'
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        with api.answering(to("POST", "pods", "full"), 403, quota):
            await api.make("TokenEntitlement", "search", share("acme"), "full")
            await until(
                lambda: quota in api.condition("TokenEntitlement", "search", "Bound", "full").get("message", "")
            )
            await api.make("TokenEntitlement", "batch", share("acme"))
            await until(lambda: api.get("v1/pods", "lease-batch"))
            await api.bind("lease-batch")
            await until(lambda: api.condition("TokenEntitlement", "batch", "Bound").get("status") == "True")
        await until(lambda: api.get("v1/pods", "lease-search", "full"))


@pytest.mark.parametrize("container", [{"name": "other"}, {"name": "lease"}], ids=["none", "nothing"])
async def test_a_pod_that_somebody_put_in_a_leases_place_holds_up_nobody_and_goes(
    container: dict[str, Any], api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may make pods in a namespace may call one as the lease will be called."""
    labels = {leases.LEASE_LABEL: "search", leases.NODE_LABEL: "llama"}
    pod = {"metadata": {"name": "lease-search", "labels": labels}, "spec": {"containers": [container]}}
    await api._call("POST", "/api/v1/namespaces/default/pods", pod)
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        await api.make("TokenEntitlement", "batch", share("acme"))
        for name in ("batch", "search"):
            await until(lambda name=name: _is_a_lease(api.get("v1/pods", f"lease-{name}")))
            await api.bind(f"lease-{name}")
            await until(lambda name=name: api.condition("TokenEntitlement", name, "Bound").get("status") == "True")


async def test_a_pod_that_names_its_node_itself_is_replaced_by_a_lease_that_the_scheduler_binds(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may make pods may name their node; only who may bind writes the condition of a binding."""
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        made = await until(lambda: api.get("v1/pods", "lease-search"))
        uid = made["metadata"]["uid"]
        named = {"spec": {"nodeName": leases.node_name("default", "llama")}}
        await api._call("PATCH", "/api/v1/namespaces/default/pods/lease-search", named)
        anew = await until(lambda: _other_than(uid, api.get("v1/pods", "lease-search")))
        assert not anew["spec"].get("nodeName")
        assert api.condition("TokenEntitlement", "search", "Bound").get("status") == "False"
        await api.bind("lease-search")
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "True")


def _other_than(uid: str, pod: dict[str, Any] | None) -> dict[str, Any] | None:
    return pod if pod and pod["metadata"]["uid"] != uid else None


def _is_a_lease(pod: dict[str, Any] | None) -> bool:
    return bool(pod and "resources" in pod["spec"]["containers"][0])


async def test_what_was_refused_is_not_asked_for_again_at_once(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        with api.answering(to("POST", "pods"), 403, "exceeded quota"):
            await api.make("TokenEntitlement", "search", share("acme"))
            await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("message"))
            for n in range(5):  # rounds of the operator
                await api.change("Tenant", "acme", {"description": f"change {n}"})
                await until(lambda: ready(api, "Tenant", "acme"))
            assert api.calls(to("POST", "pods")) == 1
            await api.change("TokenEntitlement", "search", share("acme", 8))  # another share is another question
            await until(lambda: api.calls(to("POST", "pods")) == 2)


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (403, 'secrets "app" is forbidden: User "x" cannot get resource "secrets"', "operator.secrets.namespaces"),
        (403, 'secrets "app" is forbidden: exceeded quota: secrets', "its Secret cannot be written: secrets"),
        (500, "", "its Secret cannot be written: "),
    ],
)
async def test_a_secret_that_cannot_be_written_holds_up_no_other_key(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, message: str, says: str
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        spec = {"entitlementRef": {"name": "search"}, "secret": {"name": "app"}}
        with api.answering(to("GET", "secrets", "closed"), status, message):
            await api.make("ApiKey", "shut", spec, "closed")
            await api.make("ApiKey", "open", spec)
            await until(lambda: says in api.condition("ApiKey", "shut", namespace="closed").get("message", ""))
            await until(lambda: ready(api, "ApiKey", "open"))
        await until(lambda: ready(api, "ApiKey", "shut", "closed"))


@pytest.mark.parametrize(
    "more",
    [
        {"secret": {"name": "odd", "rotateEverySeconds": 2**62}},
        {"secret": {"name": "odd", "rotateEverySeconds": "often"}},
        {"secret": {"name": "odd", "overlapSeconds": 2**62}},
        {"secret": {"name": "odd", "key": ["a"]}},
        {"secret": {"name": 5}},
        {"displayName": "a\0b"},
        {"displayName": {"a": 1}},
        {"entitlementRef": "search"},
        {"entitlementRef": {"name": ["search"]}},
    ],
    ids=repr,
)
async def test_a_key_with_a_value_that_nobody_thought_of_holds_up_nobody(
    more: dict[str, Any], api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write ApiKeys is a tenant; definitions in the cluster may be older than the rules for a value."""
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        await api.make("ApiKey", "odd", {"entitlementRef": {"name": "search"}, "secret": {"name": "odd"}} | more)
        await until(lambda: api.condition("ApiKey", "odd"))
        await api.change("ApiKey", "odd", {"secret": {"rotate": "now"}})
        await api.make("ApiKey", "open", {"entitlementRef": {"name": "search"}, "secret": {"name": "open"}})
        await api.change("Tenant", "acme", {"description": "changed"})
        await until(lambda: ready(api, "ApiKey", "open"))
        await until(lambda: ready(api, "Tenant", "acme"))
        seen = lambda: api.get("ApiKey", "odd")["status"]["observedGeneration"]  # type: ignore[index]  # noqa: E731
        await until(lambda: seen() == 2)


async def test_a_namespace_of_one_tenant_has_no_key_of_another(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operating(api, tmp_path, monkeypatch, key_tenants={"theirs": {"globex"}}):
        await contract(api)
        await api.make("TokenEntitlement", "search", share("acme"))
        spec = {"entitlementRef": {"name": "search"}, "secret": {"name": "app"}}
        await api.make("ApiKey", "app", spec, "theirs")
        await api.make("ApiKey", "app", spec)
        await until(lambda: ready(api, "ApiKey", "app"))
        await until(lambda: api.condition("ApiKey", "app", namespace="theirs").get("message"))
        assert "operator.secrets.tenants" in api.condition("ApiKey", "app", namespace="theirs")["message"]
        assert not api.get("ApiKey", "app", "theirs")["status"].get("keyId")


# --- failures and silence


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_status_that_could_not_be_written_is_written_later(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with operating(api, tmp_path, monkeypatch):
        await api.make("Tenant", "acme", {"description": "first"})
        await until(lambda: ready(api, "Tenant", "acme"))
        failing = to("PATCH", "tenants", subresource="status")
        with api.answering(failing, status):
            await api.change("Tenant", "acme", {"description": "second"})
            before = api.calls(failing)
            await until(lambda: api.calls(failing) >= before + 2)
            assert (await row(Tenant, "acme")).description == "second", "the catalog does not wait for the API"
            assert not ready(api, "Tenant", "acme")
        await until(lambda: ready(api, "Tenant", "acme"))


async def test_a_status_that_is_refused_is_logged_once_for_each_reason_and_said_in_a_condition(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the cluster's definition is another version's."""
    monkeypatch.setattr(operator, "REFUSED_AGAIN_S", 0.2)
    writes = to("PATCH", "tokenpools", subresource="status")

    def whole(request: Request) -> bool:
        return writes(request) and "capacity" in request.data["status"]

    def logged() -> list[str]:
        return [line for line in caplog.messages if "refuses the status of TokenPool default/llama: " in line]

    async def tried(times: int) -> None:
        before = api.calls(whole)
        await until(lambda: api.calls(whole) >= before + times)

    async with operating(api, tmp_path, monkeypatch):
        with api.answering(whole, 422, "status.backends: Invalid value"):
            await contract(api)
            await until(lambda: api.condition("TokenPool", "llama", "StatusWritten").get("status") == "False")
            said = api.condition("TokenPool", "llama", "StatusWritten")["message"]
            assert said.endswith("status.backends: Invalid value")
            assert ready(api, "TokenPool", "llama"), "it was applied all the same"
            await tried(3)
            await until(lambda: ready(api, "Tenant", "acme"))
            assert len(logged()) == 1
        with api.answering(writes, 403, "tokenpools/status is forbidden"):
            await tried(3)
            assert [line.rsplit(": ", 1)[1] for line in logged()] == ["Invalid value", "tokenpools/status is forbidden"]
        await until(lambda: "capacity" in api.get("TokenPool", "llama")["status"])
        assert not api.condition("TokenPool", "llama", "StatusWritten")
    assert "a round failed" not in caplog.text


async def test_where_no_status_is_taken_nothing_is_asked_again_at_once(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = to("PATCH", "tenants", subresource="status")
    async with operating(api, tmp_path, monkeypatch):
        with api.answering(writes, 403, "tenants/status is forbidden"):
            await api.make("Tenant", "acme", {"description": "first"})
            await until(lambda: api.calls(writes) == 2)  # the whole, then the conditions alone
            for n in range(5):  # rounds of the operator
                await api.make("Slo", f"slo-{n}", {"ttftSeconds": 5.0, "tbtSeconds": 0.5})
                await until(lambda n=n: ready(api, "Slo", f"slo-{n}"))
            assert api.calls(writes) == 2
            await api.change("Tenant", "acme", {"description": "second"})
            await until(lambda: api.calls(writes) == 4)
            assert (await row(Tenant, "acme")).description == "second"


async def test_a_server_that_does_not_answer_is_asked_again_and_nothing_is_lost(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(capacity, "HEARTBEAT_S", 0.3)
    async with operating(api, tmp_path, monkeypatch):
        await contract(api)
        await until(lambda: ready(api, "TokenPool", "llama"))
        with api.silent(to("GET", "nodes")):
            before = api.calls(to("GET", "nodes"))
            await api.make("TokenEntitlement", "search", share("acme"))
            await api.change("Tenant", "acme", {"description": "second"})
            await until(lambda: api.calls(to("GET", "nodes")) > before)
            await until(lambda: ready(api, "Tenant", "acme") and api.get("v1/pods", "lease-search"))
            assert (await row(Tenant, "acme")).description == "second"
        await api.bind("lease-search")
        await until(lambda: api.condition("TokenEntitlement", "search", "Bound").get("status") == "True")
