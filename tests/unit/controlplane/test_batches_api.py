"""Batches in the management API: who sees them, who may cancel and read them, and what is said of their end."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.batches import services
from controlplane.batches.api import expected_end
from controlplane.batches.http import Problem, _keep
from controlplane.batches.models import Batch, Status, StoredFile
from tenants.models import AuditEntry
from tests.support import worlds

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _storage(settings: Any, tmp_path: Path) -> None:
    backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": tmp_path}}
    settings.STORAGES = settings.STORAGES | {"batches": backend}


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def client(world: worlds.World, who: str) -> APIClient:
    made = APIClient()
    made.force_login(world.users[who])
    return made


def batch(tenant: str = "acme", **changes: Any) -> Batch:
    now = timezone.now()
    given: dict[str, Any] = {
        "public_id": services.new_id("batch_"), "tenant": tenant, "entitlement": f"{tenant}-llama", "key_id": "k",
        "endpoint": "/v1/chat/completions", "model": "llama", "completion_window": "24h", "input_file": "file-1",
        "input_name": "x", "status": Status.IN_PROGRESS, "total": 100, "completed": 20, "failed": 5,
        "created_at": now, "in_progress_at": now - timedelta(seconds=50), "expires_at": now + timedelta(hours=1),
    }  # fmt: skip
    return Batch.objects.create(**(given | changes))


def written(tenant: str = "acme") -> StoredFile:
    return services.keep_file(
        tenant=tenant, entitlement=f"{tenant}-llama", filename="x", content=io.BytesIO(b'{"custom_id": "a"}\n'),
        size=19, keep_s=None,
    )  # fmt: skip


def test_batches_are_seen_by_their_tenant_and_by_those_who_see_all(world: worlds.World) -> None:
    mine, other = batch(project="chat"), batch("globex")
    for who, seen in (("alice", {mine}), ("carol", {other}), ("olga", {mine, other}), ("adam", {mine, other})):
        rows = client(world, who).get("/api/v1/batches").json()["results"]
        assert {row["id"] for row in rows} == {row.public_id for row in seen}
        status = client(world, who).get(f"/api/v1/batches/{mine.public_id}").status_code
        assert status == (200 if mine in seen else 404)
    assert APIClient().get("/api/v1/batches").status_code in (401, 403)
    found = client(world, "adam").get("/api/v1/batches", {"project": "chat"}).json()["results"]
    assert [(row["id"], row["completed"], row["failed"], row["total"]) for row in found] == [
        (mine.public_id, 20, 5, 100)
    ]


def test_members_and_admins_cancel_and_operators_do_not(world: worlds.World) -> None:
    row = batch()
    url = f"/api/v1/batches/{row.public_id}/cancel"
    with mock.patch("controlplane.batches.services.notify") as told:
        assert client(world, "carol").post(url).status_code == 404
        assert client(world, "olga").post(url).status_code == 403
        assert not told.called
        answer = client(world, "alice").post(url)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")
        assert told.called
    entry = AuditEntry.objects.filter(kind="batch").get()
    assert (entry.actor, entry.action, entry.object_id) == ("alice", "cancel", row.public_id)
    Batch.objects.filter(pk=row.pk).update(status=Status.COMPLETED)
    assert client(world, "alice").post(url).status_code == 409


def test_lines_are_read_by_members_and_admins_alone(world: worlds.World) -> None:
    row = batch(status=Status.COMPLETED, output_file=written().public_id)
    url = f"/api/v1/batches/{row.public_id}/output"
    answer = client(world, "alice").get(url)
    assert answer.status_code == 200
    assert b"".join(answer.streaming_content) == b'{"custom_id": "a"}\n'
    assert answer["Content-Disposition"] == f'attachment; filename="{row.public_id}-output.jsonl"'
    assert answer["Cache-Control"] == "no-store"
    for who, status in (("carol", 404), ("olga", 403)):
        assert client(world, who).get(url).status_code == status
    assert client(world, "alice").get(url.replace("output", "errors")).status_code == 404
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client(world, "alice").get(url).status_code == 404


def test_the_expected_end_follows_from_the_pace_and_is_unknown_before_there_is_one() -> None:
    now = timezone.now()
    row = batch(in_progress_at=now - timedelta(seconds=50))
    assert expected_end(row, now) == now + timedelta(seconds=150)  # 25 lines in 50 s, 75 are left
    for changes in ({"completed": 0, "failed": 0}, {"status": Status.VALIDATING}, {"status": Status.COMPLETED}):
        assert expected_end(batch(**changes), now) is None


def test_what_is_wrong_with_a_form_is_a_sentence_with_one_full_stop(settings: Any) -> None:
    body = b"--y\r\ncontent-disposition: form-data; name=a\r\nx: " + b"x" * 2000 + b"\r\n\r\n1\r\n--y--\r\n"
    with pytest.raises(Problem, match=r"^The form cannot be read: Request max total header size exceeded\.$"):
        _keep(io.BytesIO(body), len(body), "multipart/form-data; boundary=y", settings.ENV, "acme", "acme-llama", "")
