"""Many writers and readers at once: every write is one version, nothing is lost, connections come back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import close_old_connections, connection
from django.test import Client
from rest_framework.test import APIClient

from telemetry.ledger import writer
from telemetry.models import SavedView
from tenants import notify, services, specs
from tenants.audit import SYSTEM
from tenants.epochs import BookedEpochs
from tenants.models import AuditEntry, Backend, CatalogVersion, Pool, Tenant
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _real_server() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("threads cannot share SQLite's test database in memory; `make test-postgresql` runs this")


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    def run(job: Callable[[], Any]) -> Any:
        try:
            return job()
        finally:
            close_old_connections()

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(run, jobs))


def test_each_write_is_one_version_and_is_announced_after_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds.build()
    before = CatalogVersion.objects.get().version
    announced: list[tuple[int, int]] = []

    def listen(version: int) -> None:
        announced.append((version, specs.catalog_version()))

    monkeypatch.setattr(notify, "listeners", [listen])

    def write(n: int) -> Callable[[], Any]:
        return lambda: services.save(actor=SYSTEM, instance=Tenant(slug=f"t-{n}"))

    at_once([write(n) for n in range(40)])
    assert sorted(version for version, _ in announced) == list(range(before + 1, before + 41))
    assert all(visible >= version for version, visible in announced)
    assert AuditEntry.objects.filter(kind="tenant", object_id__startswith="t-").count() == 40


def test_views_that_are_saved_at_the_same_moment_are_no_more_than_one_person_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice = worlds.build().users["alice"]
    monkeypatch.setattr("telemetry.api.views.MOST_VIEWS", 3)

    def save(number: int) -> Callable[[], int]:
        client = APIClient()
        client.force_login(alice)
        body = {"name": f"view {number}", "query": "tenant=acme"}
        return lambda: client.post("/api/v1/saved-views", body, format="json").status_code

    assert Counter(at_once([save(number) for number in range(16)])) == {201: 3, 400: 13}
    assert SavedView.objects.filter(user=alice).count() == 3


def test_changes_to_one_row_do_not_overwrite_each_other() -> None:
    world = worlds.build()

    def grow() -> None:
        with services.change(actor=SYSTEM):
            row = Backend.objects.get(pk=world.backend.pk)
            row.slots += 1
            services.save(actor=SYSTEM, instance=row)

    def drain() -> None:
        services.drain_backend(actor=SYSTEM, backend=world.backend, draining=True)

    at_once([grow] * 20 + [drain] * 5)
    row = Backend.objects.get()
    assert (row.slots, row.draining) == (52, True)


def test_reading_in_threads_leaves_no_connection_behind() -> None:
    world = worlds.build()
    versions = at_once([lambda: (specs.load_catalog().version, BookedEpochs().read("llama"))] * 40)
    assert set(versions) == {(specs.catalog_version(), 0)}
    assert world.pool.slug in specs.load_catalog().pools


def test_floors_raised_at_once_end_at_the_highest() -> None:
    floor = BookedEpochs()
    at_once([lambda n=n: floor.raise_to("llama", n) for n in range(1, 41)])
    assert floor.read("llama") == 40


@pytest.mark.parametrize(
    ("path", "made", "changes"),
    [
        (
            "alert-rules", {"name": "queue", "kind": "queue_age", "threshold": 5},
            {"threshold": 9.0, "for_s": 90, "severity": "critical", "enabled": False},
        ),
        (
            "notification-channels", {"name": "pager", "kind": "pagerduty", "target": "0" * 32},
            {"name": "night", "for_all": True, "enabled": False},
        ),
    ],
)  # fmt: skip
def test_people_who_change_different_fields_of_one_row_at_once_all_do(
    path: str, made: dict[str, Any], changes: dict[str, Any]
) -> None:
    adam = worlds.build().users["adam"]

    def client() -> APIClient:
        api = APIClient()
        api.force_authenticate(adam)
        return api

    for _ in range(5):
        row = f"/api/v1/{path}/{client().post(f'/api/v1/{path}', made, format='json').json()['id']}"

        def change(name: str, row: str = row) -> Callable[[], Any]:
            return lambda: client().patch(row, {name: changes[name]}, format="json").status_code

        assert set(at_once([change(name) for name in changes])) == {200}
        shown = client().get(row).json()
        assert {name: shown[name] for name in changes} == changes
        assert client().delete(row).status_code == 204


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("alert-rules", {"name": "queue", "kind": "queue_age", "threshold": 5}),
        ("notification-channels", {"name": "pager", "kind": "pagerduty", "target": "0" * 32}),
        ("saved-views", {"name": "slow", "query": "waited_over=8"}),
        ("lab/recordings", {"name": "an hour", "pool": "llama", "minutes": 60}),
    ],
)
def test_of_several_that_take_one_name_at_once_one_gets_it_and_the_others_an_error(
    path: str, asked: dict[str, Any]
) -> None:
    adam = worlds.build().users["adam"]
    writer.write([record(number, received_s=time.time() - 60, done_s=time.time() - 59) for number in range(3)])

    def make() -> int:
        api = APIClient()
        api.force_authenticate(adam)
        return api.post(f"/api/v1/{path}", asked, format="json").status_code

    answers = Counter(at_once([make] * 8))
    assert answers[201] == 1
    assert answers[400] + answers[409] == 7, answers


ONE_ENGINE = (
    "http://gpu-7:8000", "http://GPU-7:8000", "http://gpu-7.:8000", "http://Gpu-7.:8000",
    "http://127.0.0.1:8100", "http://localhost:8100", "http://0.0.0.0:8100", "http://[::1]:8100",
)  # fmt: skip


@pytest.mark.parametrize("way", ["management API", "services", "back office"])
def test_of_several_that_enter_one_engine_at_once_each_in_its_own_spelling_one_does(way: str) -> None:
    """No constraint of the database knows spellings: whoever writes to the catalog looks under its lock."""
    world = worlds.build()
    adam, pool = world.users["adam"], Pool.objects.get(slug="llama")

    def enter(number: int, url: str) -> bool:
        if way == "services":
            try:
                services.save(actor=SYSTEM, instance=Backend(slug=f"b-{number}", pool=pool, url=url))
            except ValidationError:
                return False
            return True
        if way == "management API":
            api = APIClient()
            api.force_authenticate(adam)
            body = {"slug": f"b-{number}", "pool": "llama", "url": url, "slots": 4, "kv_tokens": 1000}
            return bool(api.post("/api/v1/backends", body, format="json").status_code == 201)
        browser = Client()
        browser.force_login(adam)
        form = {"slug": f"b-{number}", "pool": pool.pk, "url": url, "slots": 4, "kv_tokens": 1000, "phase": "both"}
        return bool(browser.post("/admin/tenants/backend/add/", form | {"tokens_per_s": 0}).status_code == 302)

    for turn, spellings in enumerate((ONE_ENGINE[:4], ONE_ENGINE[4:])):
        numbers = range(10 * turn, 10 * turn + 4)
        asked = list(zip(numbers, spellings, strict=True))
        entered = at_once([lambda number=number, url=url: enter(number, url) for number, url in asked])
        assert entered.count(True) == 1, list(zip(spellings, entered, strict=True))
        assert Backend.objects.filter(slug__in=[f"b-{number}" for number in numbers]).count() == 1
