"""Files and batches in the database: one executor at a time, one result a line, nothing of another tenant."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.batches import services
from controlplane.batches.models import Batch, Result, Status, StoredFile
from controlplane.batches.services import Outcome, Work
from controlplane.batches.wire import batch_object
from controlplane.v1_routes import Problem
from tenants.models import Project, Tenant

pytestmark = pytest.mark.django_db
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def _storage(settings: Any, tmp_path: Path) -> None:
    backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": tmp_path}}
    settings.STORAGES = settings.STORAGES | {"batches": backend}


def bring(tenant: str = "acme", count: int = 3, entitlement: str = "", project: str = "") -> StoredFile:
    rows = [
        json.dumps({"custom_id": f"r-{n}", "method": "POST", "url": CHAT, "body": {"model": "demo"}})
        for n in range(1, count + 1)
    ]
    data = "\n".join(rows).encode()
    return services.keep_file(
        tenant=tenant, entitlement=entitlement or f"{tenant}-demo", filename="in.jsonl", content=io.BytesIO(data),
        size=len(data), keep_s=None, project=project,
    )  # fmt: skip


def make(file: StoredFile, **changes: Any) -> Batch:
    asked: dict[str, Any] = {
        "tenant": file.tenant, "entitlement": file.entitlement, "key_id": "key000000001", "model": "demo",
        "endpoint": CHAT, "input_file": file.public_id, "window": "24h", "metadata": None,
    }  # fmt: skip
    return services.create(**(asked | changes))


def started(holder: str = "first", count: int = 3) -> Work:
    make(bring(count=count))
    [work] = services.claim(holder)
    assert services.validate(work, {"demo"}) == Status.IN_PROGRESS
    return work


def taken_over(work: Work) -> Work:
    """Its holder was not heard of for longer than its lease."""
    Batch.objects.filter(pk=work.id).update(lease_until=timezone.now() - timedelta(seconds=1))
    [other] = services.claim("second")
    return other


def said(line: int, text: str = "") -> Outcome:
    return Outcome(line, True, json.dumps({"line": line, "by": text}), 5, 2)


def written(batch: Batch) -> list[Any]:
    name = StoredFile.objects.get(public_id=batch.output_file).name
    return [json.loads(row) for row in services.storage().open(name).read().splitlines()]


def no_fence(work: Work) -> Batch | None:
    return Batch.objects.filter(pk=work.id).first()


@pytest.mark.parametrize("variant", [None, "no fence"])
def test_who_was_stopped_for_longer_than_its_lease_writes_nothing_any_more(
    variant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variant is not None:
        monkeypatch.setattr(services, "_locked", no_fence)
    first = started()
    assert services.store(first, [said(1, "first")]) == Status.IN_PROGRESS
    second = taken_over(first)
    assert second.claim == first.claim + 1
    late = services.store(first, [said(2, "first")])
    lines = services.done_lines(second)
    assert (late == "" and lines == {1} and not services.finalize(first, Status.COMPLETED)) is (variant is None)


def test_a_line_has_the_result_that_was_written_first_and_counts_once() -> None:
    first = started()
    services.store(first, [said(1, "first"), said(2, "first")])
    second = taken_over(first)
    services.store(second, [said(2, "second"), said(3, "second"), said(3, "twice")])
    row = Batch.objects.get(pk=first.id)
    assert (row.completed, row.failed, row.output_tokens) == (3, 0, 6)
    assert services.finalize(second, Status.COMPLETED)
    row.refresh_from_db()
    assert [(r["line"], r["by"]) for r in written(row)] == [(1, "first"), (2, "first"), (3, "twice")]
    assert not services.finalize(second, Status.COMPLETED)  # it has ended


def test_nobody_takes_a_batch_while_an_executor_lives() -> None:
    first = started()
    make(bring())
    assert services.claim("second") == []
    assert not services.due()
    assert len(services.claim("first")) == 1  # the new one goes to who works already
    services.release([first])
    assert services.claim("second") == []  # it still holds the other
    Batch.objects.update(lease_until=None)
    assert services.due()
    assert len(services.claim("second")) == 2


def test_batches_that_cannot_get_on_hold_up_no_other_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "CLAIMED", 3)
    monkeypatch.setattr(services, "CLAIMED_OF_TENANT", 2)
    stuck, other = bring(), bring("globex")
    first = [make(stuck).public_id for _ in range(6)]
    last = make(other).public_id
    one = services.claim("first")
    assert [w.public_id for w in one] == [*first[:2], last]
    services.release(one)
    turns = [w.public_id for _ in range(2) for w in _turn()]
    assert {*first[2:6]} <= {*turns}  # whoever had fewest turns is next


def _turn() -> list[Work]:
    taken = services.claim("first")
    services.release(taken)
    return taken


@pytest.mark.parametrize(("ends_as", "code"), [("expired", "batch_expired"), ("cancelled", "batch_cancelled")])
def test_each_line_that_did_not_run_stands_in_the_file_of_errors(ends_as: str, code: str) -> None:
    work = started(count=4)
    services.store(work, [said(2)])
    if ends_as == "cancelled":
        assert services.cancel("acme", work.public_id).status == Status.CANCELLING
    assert services.finalize(work, ends_as)
    row = Batch.objects.get(pk=work.id)
    errors = services.storage().open(StoredFile.objects.get(public_id=row.error_file).name).read().splitlines()
    assert [(e["custom_id"], e["error"]["code"]) for e in map(json.loads, errors)] == [
        (f"r-{n}", code) for n in (1, 3, 4)
    ]
    assert (row.status, row.completed, row.failed, len(written(row))) == (ends_as, 1, 3, 1)


def test_files_are_rewritten_by_the_executor_that_goes_on_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    first = started()
    services.store(first, [said(n) for n in (1, 2, 3)])
    real = StoredFile.save

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoredFile, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        services.finalize(first, Status.COMPLETED)
    monkeypatch.setattr(StoredFile, "save", real)
    second = taken_over(first)
    assert second.status == Status.FINALIZING
    assert services.finalize(second, Status.EXPIRED)  # what it ends as was written down before
    row = Batch.objects.get(pk=first.id)
    assert (row.status, len(written(row))) == (Status.COMPLETED, 3)
    _, names = services.storage().listdir("")
    assert sum(name.endswith("output.jsonl") for name in names) == 1


def test_an_input_with_faults_fails_the_batch_with_their_lines() -> None:
    make(bring(), model="other")
    [work] = services.claim("first")
    assert services.validate(work, {"other"}) == Status.FAILED
    row = Batch.objects.get(pk=work.id)
    assert [p["line"] for p in row.problems] == [1, 2, 3]
    assert batch_object(row)["model"] is None, "no line names one that the key may use"
    assert not services.due()


def test_a_batch_has_the_model_of_its_lines_once_they_were_read() -> None:
    row = make(bring(), model="first-of-the-key")
    assert batch_object(row)["model"] is None
    [work] = services.claim("first")
    services.validate(work, {"demo", "first-of-the-key"})
    row.refresh_from_db()
    assert batch_object(row)["model"] == "demo"


WRONG: list[tuple[str, Callable[[str], Any]]] = [
    ("file", lambda tenant: services.file(tenant, StoredFile.objects.get().public_id)),
    ("delete", lambda tenant: services.delete_file(tenant, StoredFile.objects.get().public_id)),
    ("batch", lambda tenant: services.batch(tenant, Batch.objects.get().public_id)),
    ("cancel", lambda tenant: services.cancel(tenant, Batch.objects.get().public_id)),
    ("create", lambda tenant: make(StoredFile.objects.get(), tenant=tenant)),
]


@pytest.mark.parametrize("ask", [ask for _, ask in WRONG], ids=[name for name, _ in WRONG])
def test_what_is_another_tenants_does_not_exist(ask: Callable[[str], Any]) -> None:
    make(bring())
    with pytest.raises(Problem) as refused:
        ask("globex")
    assert refused.value.status == 404
    assert services.files("globex", after="", limit=10, ascending=False, purpose="") == ([], False)
    assert services.batches("globex", after="", limit=10) == ([], False)


def ended(file: StoredFile, hours_ago: int) -> Batch:
    batch = make(file)
    at = timezone.now() - timedelta(hours=hours_ago)
    Batch.objects.filter(pk=batch.pk).update(status=Status.CANCELLED, ended_at=at)
    return batch


def test_who_makes_and_cancels_batches_for_ever_leaves_a_bounded_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_ENDED", 3)
    other = ended(bring("globex"), 90)
    file = bring()
    made = [ended(file, 10 - number) for number in range(8)]
    open_one, listed = make(file), services.batches("acme", after="", limit=100)[0]
    assert {row.pk for row in listed} == {open_one.pk, *(batch.pk for batch in made[-3:])}, "the newest that ended"
    assert services.batch("globex", other.public_id).pk == other.pk, "another tenant's"
    monkeypatch.setattr(services, "MOST_ENDED", 0)
    monkeypatch.setattr(services, "FORGOTTEN", 2)
    make(file)
    assert Batch.objects.filter(tenant="acme").count() == 3, "few at a time"


def test_what_one_may_have_is_bounded(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(settings.ENV, files_per_entitlement=2, batches_per_entitlement=1, tenant_file_bytes=1_000)
    monkeypatch.setattr(services, "_env", lambda: small)
    file = bring()
    make(file)
    with pytest.raises(Problem, match="1 open batches"):
        make(file)
    bring()
    with pytest.raises(Problem, match="2 files"):
        bring()
    with pytest.raises(Problem, match="1000 bytes"):
        bring(entitlement="acme-other", count=20)
    assert bring("globex", entitlement="other").tenant == "globex"


@pytest.mark.parametrize("bound", ["files_per_entitlement", "tenant_file_bytes"])
def test_files_that_come_at_the_same_moment_are_never_more_than_one_may_have(
    bound: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = bring("globex").bytes
    most = {"files_per_entitlement": 2, "tenant_file_bytes": 2 * size + 1}[bound]
    env = replace(settings.ENV, **{bound: most})
    monkeypatch.setattr(services, "_env", lambda: env)
    bring()
    storage, others = services.storage(), [1]

    class Slow:
        """Stores a file while another one comes and goes through all of it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

        def save(self, *args: Any) -> str:
            if others:
                others.pop()
                bring()
            return storage.save(*args)

    monkeypatch.setattr(services, "storage", Slow)
    with pytest.raises(Problem, match="Delete some first"):
        bring()
    kept = StoredFile.objects.filter(tenant="acme")
    assert kept.count() == 2
    assert len(storage.listdir("")[1]) == 3, "what was not kept is not stored either"


def test_a_file_that_is_read_is_not_deleted_and_one_whose_time_is_over_is() -> None:
    file = bring()
    batch = make(file)
    with pytest.raises(Problem, match=batch.public_id):
        services.delete_file("acme", file.public_id)
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    services.tidy()
    assert StoredFile.objects.count() == 1
    [work] = services.claim("first")
    services.validate(work, {"demo"})
    services.store(work, [said(1)])
    services.finalize(work, Status.EXPIRED)
    services.tidy()
    assert not StoredFile.objects.filter(public_id=file.public_id).exists()
    assert not Result.objects.exists()
    assert not services.storage().exists(file.name)


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86_400), ("1m", 60), ("14d", 1_209_600)])
def test_a_window_is_a_time(text: str, seconds: int) -> None:
    assert services.window_s(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "0h", "15d", "-1h", "1w", "9999999h", "²h", "1.5h"])
def test_any_other_window_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        services.window_s(text)


@pytest.mark.parametrize(("mine", "other"), [("chat", "code"), ("chat", ""), ("", "chat")])
def test_a_project_sees_nothing_of_another_projects_files_and_batches(mine: str, other: str) -> None:
    file = bring(project=mine)
    batch = make(file, project=mine)
    for ask in (
        lambda: services.file("acme", file.public_id, other),
        lambda: services.delete_file("acme", file.public_id, other),
        lambda: services.batch("acme", batch.public_id, other),
        lambda: services.cancel("acme", batch.public_id, other),
        lambda: make(file, project=other),
    ):
        with pytest.raises(Problem) as found:
            ask()
        assert found.value.status == 404
    listed: dict[str, Any] = {"after": "", "limit": 10}
    assert services.files("acme", ascending=True, purpose="", project=other, **listed) == ([], False)
    assert services.batches("acme", project=other, **listed) == ([], False)
    assert services.files("acme", ascending=True, purpose="", project=mine, **listed)[0] == [file]
    assert services.batches("acme", project=mine, **listed)[0] == [batch]


def test_what_a_projects_batch_wrote_is_the_projects(settings: Any) -> None:
    make(bring(project="chat"), project="chat")
    [work] = services.claim("first")
    assert services.validate(work, {"demo"}) == Status.IN_PROGRESS
    services.store(work, [said(n) for n in range(1, 4)])
    services.finalize(work, Status.COMPLETED, None)
    assert {file.project for file in StoredFile.objects.all()} == {"chat"}
    assert StoredFile.objects.count() == 2


@pytest.mark.parametrize("project", ["", "team"])
def test_who_takes_the_name_of_one_that_is_gone_has_none_of_its_files_and_batches(project: str, tmp_path: Path) -> None:
    tenant = Tenant.objects.create(slug="acme")
    gone = Project.objects.create(slug=project, tenant=tenant) if project else tenant
    mine, other = bring(project=project), bring("globex")
    ended = make(mine, project=project)
    make(other)
    works = services.claim("first")
    work = next(work for work in works if work.public_id == ended.public_id)
    assert services.validate(work, {"demo"}) == Status.IN_PROGRESS
    gone.delete()
    assert services.store(work, [Outcome(1, True, "{}")]) == "", "its executor stops"
    assert not services.finalize(work, Status.COMPLETED)
    bring(project=project)  # it was on its way
    if project:
        Project.objects.create(slug=project, tenant=tenant)
    else:
        Tenant.objects.create(slug="acme")
    page: dict[str, Any] = {"after": "", "limit": 10, "project": project}
    assert services.files("acme", ascending=True, purpose="", **page) == ([], False)
    assert services.batches("acme", **page) == ([], False)
    with pytest.raises(Problem, match="does not exist"):
        services.file("acme", mine.public_id, project)
    services.tidy()
    assert list(StoredFile.objects.values_list("public_id", flat=True)) == [other.public_id]
    assert list(Batch.objects.values_list("tenant", flat=True)) == ["globex"]
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [other.name]


def test_what_another_tenant_has_under_a_name_that_was_given_again_takes_no_room(monkeypatch: Any) -> None:
    """An entitlement is deleted, its tenant and files stay, and another tenant's gets the name."""
    env = replace(services._env(), files_per_entitlement=1, batches_per_entitlement=1)
    monkeypatch.setattr(services, "_env", lambda: env)
    make(bring("acme", entitlement="chat"))
    make(bring("globex", entitlement="chat"))
    with pytest.raises(Problem, match="1 files already"):
        bring("globex", entitlement="chat")
