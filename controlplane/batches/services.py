"""What happens to files and batches in the database and the storage. All of it blocks.

One executor works on a batch: it holds a lease, and its ``claim`` is the number under which its writes are taken. So a
process that was stopped for longer than the lease and goes on writes nothing any more, and a result is written once.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any

from celery import current_app
from django.conf import settings
from django.core.files import File
from django.core.files.storage import Storage, storages
from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from controlplane.batches import lines, wire
from controlplane.batches.models import BATCH, BATCH_OUTPUT, OPEN, Batch, Result, Status, StoredFile
from controlplane.env import Env
from controlplane.owners import NOBODY
from controlplane.v1_routes import Problem
from scheduling.core.admission.batch_account import REQUEST_ID
from tenants.connections import own_connection
from tenants.models import Entitlement

log = logging.getLogger(__name__)

LEASE_S = 10.0  # the executor of a batch renews its lease twice a second
CLAIMED, CLAIMED_OF_TENANT = 64, 4  # batches that one executor works on at once
LOOKED_AT = 1_000  # open batches in one look for those
CHUNK = 500  # rows of a statement
MOST_ENDED = 10_000  # batches of one tenant that ended and are listed
FORGOTTEN = 10  # of those beyond, that go with each new one
KEPT_NAMES = 10  # claims whose unfinished files are looked for
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
WINDOWS = {"m": 60, "h": 3600, "d": 86400}
SHORTEST_S, LONGEST_S = 60, 14 * 86400  # completion_window
EXPIRED = "batch_expired", "This request could not be executed before the completion window expired."
CANCELLED = "batch_cancelled", "This request was not executed: the batch was cancelled before."


def storage() -> Storage:
    return storages["batches"]


def new_id(kind: str) -> str:
    return f"{kind}{secrets.token_hex(12)}"


def _env() -> Env:
    return settings.ENV


def window_s(text: str) -> int:
    """``24h``, ``30m`` or ``7d`` in seconds; Problem for anything else."""
    number, unit = text[:-1], text[-1:]
    if unit in WINDOWS and number.isascii() and number.isdigit() and len(number) <= 5:
        seconds = int(number) * WINDOWS[unit]
        if SHORTEST_S <= seconds <= LONGEST_S:
            return seconds
    raise Problem("completion_window is like 24h, 30m or 7d: 1 minute to 14 days.", "completion_window")


# --- files


@own_connection
def room_for_file(tenant: str, entitlement: str, size: int, more: int = 1) -> None:
    """Raises Problem where the tenant has no room for ``more`` files of so many bytes in all."""
    if size > room_left(tenant, entitlement, more):
        raise no_room()


@own_connection
def room_left(tenant: str, entitlement: str, more: int = 1) -> int:
    """How many bytes the tenant may still store. Raises Problem where it may not have ``more`` files."""
    env = _env()
    if StoredFile.objects.filter(tenant=tenant, entitlement=entitlement).count() + more > env.files_per_entitlement:
        raise Problem(f"This entitlement has {env.files_per_entitlement} files already. Delete some first.")
    stored_bytes = StoredFile.objects.filter(tenant=tenant).aggregate(sum=Sum("bytes"))["sum"] or 0
    return env.tenant_file_bytes - stored_bytes


def no_room() -> Problem:
    return Problem(f"This tenant's files may have {_env().tenant_file_bytes} bytes in all. Delete some first.")


@own_connection
def keep_file(
    *,
    tenant: str,
    entitlement: str,
    filename: str,
    content: IO[bytes],
    size: int,
    keep_s: int | None,
    project: str = "",
) -> StoredFile:
    """Stores what a client brought. Raises Problem."""
    room_for_file(tenant, entitlement, size)
    public_id, now = new_id("file-"), timezone.now()
    name = storage().save(public_id, File(content, name=public_id))
    longest = timedelta(days=_env().file_keep_days)
    keep = longest if keep_s is None else min(longest, timedelta(seconds=keep_s))
    row = StoredFile.objects.create(
        public_id=public_id, tenant=tenant, project=project, entitlement=entitlement, purpose=BATCH,
        filename="".join(c for c in filename if c.isprintable())[:255] or "file", bytes=size, name=name,
        created_at=now, expires_at=now + keep,
    )  # fmt: skip
    try:
        room_for_file(tenant, entitlement, 0, more=0)
    except Problem:  # others were stored meanwhile: all of them looked before any was there
        _forget([row])
        raise
    return row


@own_connection
def file(tenant: str, public_id: str, project: str = "") -> StoredFile:
    """A file of the tenant's project; 404 for another's as for none."""
    owned = StoredFile.objects.filter(tenant=tenant, project=project)
    row = owned.filter(public_id=public_id, expires_at__gt=timezone.now()).first()
    if row is None:
        raise Problem("This file does not exist.", "file_id", 404)
    return row


@own_connection
def files(
    tenant: str, *, after: str, limit: int, ascending: bool, purpose: str, project: str = ""
) -> tuple[list[StoredFile], bool]:
    """A page of the files of the tenant's project, and whether there are more."""
    rows = StoredFile.objects.filter(tenant=tenant, project=project, expires_at__gt=timezone.now())
    if purpose:
        rows = rows.filter(purpose=purpose)
    if after:
        rows = _after(rows, rows.filter(public_id=after).first(), ascending)
    rows = rows.order_by("created_at", "id") if ascending else rows.order_by("-created_at", "-id")
    page = list(rows[: limit + 1])
    return page[:limit], len(page) > limit


def _after(rows: Any, last: StoredFile | Batch | None, ascending: bool) -> Any:
    if last is None:
        raise Problem("after names nothing that is listed here.", "after")
    at, pk = last.created_at, last.pk
    if ascending:
        return rows.filter(Q(created_at__gt=at) | Q(created_at=at, pk__gt=pk))
    return rows.filter(Q(created_at__lt=at) | Q(created_at=at, pk__lt=pk))


@own_connection
def delete_file(tenant: str, public_id: str, project: str = "") -> None:
    """Raises Problem, also while a batch needs it."""
    row = file(tenant, public_id, project)
    user = Batch.objects.filter(tenant=tenant, input_file=public_id, status__in=OPEN).first()
    if user is not None:
        raise Problem(f"The batch {user.public_id} still reads this file. Cancel it first.", "file_id", 409)
    _forget([row])


def _forget(rows: Sequence[StoredFile]) -> None:
    """The row goes first: contents without a row are bytes, a row without contents is a fault."""
    StoredFile.objects.filter(pk__in=[row.pk for row in rows]).delete()
    for row in rows:
        storage().delete(row.name)


# --- batches


@own_connection
def create(
    *, tenant: str, entitlement: str, key_id: str, model: str, endpoint: str, input_file: str, window: str,
    metadata: Mapping[str, str] | None, project: str = "",
) -> Batch:  # fmt: skip
    """A new batch, not looked at yet. Raises Problem."""
    seconds = window_s(window)
    if endpoint not in ENDPOINTS:
        raise Problem(f"endpoint is one of {', '.join(ENDPOINTS)}.", "endpoint")
    now = timezone.now()
    with transaction.atomic():
        source = file(tenant, input_file, project)
        if source.purpose != BATCH:
            raise Problem("The input file was not brought with the purpose batch.", "input_file_id")
        most = _env().batches_per_entitlement
        list(Entitlement.objects.select_for_update().filter(slug=entitlement))  # those who make one take turns
        if Batch.objects.filter(tenant=tenant, entitlement=entitlement, status__in=OPEN).count() >= most:
            raise Problem(f"This entitlement has {most} open batches already. Wait for one to end.", None, 429)
        _forget_ended(tenant)
        return Batch.objects.create(
            public_id=new_id(REQUEST_ID), tenant=tenant, project=project, entitlement=entitlement, key_id=key_id,
            model=model, endpoint=endpoint, completion_window=window, metadata=dict(metadata) if metadata else None,
            input_file=input_file, input_name=source.name, created_at=now,
            expires_at=now + timedelta(seconds=seconds),
        )  # fmt: skip


def _forget_ended(tenant: str) -> None:
    """Takes away those that ended first, so that whoever makes and cancels for ever leaves no endless list. What they
    wrote stays: it counts as files."""
    ended = Batch.objects.filter(tenant=tenant).exclude(status__in=OPEN)
    over = ended.count() - MOST_ENDED
    if over > 0:
        oldest = ended.order_by("ended_at", "id").values_list("pk", flat=True)[: min(over, FORGOTTEN)]
        Batch.objects.filter(pk__in=list(oldest)).delete()


@own_connection
def batch(tenant: str, public_id: str, project: str = "") -> Batch:
    """A batch of the tenant's project; 404 for another's as for none."""
    row = Batch.objects.filter(tenant=tenant, project=project, public_id=public_id).first()
    if row is None:
        raise Problem("This batch does not exist.", "batch_id", 404)
    return row


@own_connection
def batches(tenant: str, *, after: str, limit: int, project: str = "") -> tuple[list[Batch], bool]:
    """A page of the batches of the tenant's project, newest first, and whether there are more."""
    rows = Batch.objects.filter(tenant=tenant, project=project)
    if after:
        rows = _after(rows, rows.filter(public_id=after).first(), False)
    page = list(rows.order_by("-created_at", "-id")[: limit + 1])
    return page[:limit], len(page) > limit


@own_connection
def cancel(tenant: str, public_id: str, project: str = "") -> Batch:
    """Begins to cancel; what was done stays. Problem for one that has ended."""
    with transaction.atomic():
        batch(tenant, public_id, project)
        row = Batch.objects.select_for_update().get(public_id=public_id)
        if row.status in (Status.VALIDATING, Status.IN_PROGRESS):
            row.status, row.cancelling_at = Status.CANCELLING, timezone.now()
            row.save(update_fields=["status", "cancelling_at"])
        elif row.status not in OPEN:
            raise Problem(f"The batch is {row.status}: nothing is left to cancel.", None, 409)
    return row


def notify(batch_id: int) -> bool:
    """Tells a worker, within a second or not at all; whether it was told. What is due is found without it as well."""
    try:
        current_app.send_task("batches.work", (batch_id,), retry=False)
    except Exception as error:
        log.warning("batch %d could not be announced (%s); it is found later", batch_id, type(error).__name__)
        return False
    return True


# --- work


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that this process works on."""

    id: int
    public_id: str
    claim: int
    tenant: str
    entitlement: str
    key_id: str
    model: str
    endpoint: str
    input_name: str
    status: str
    expires_at: datetime
    total: int

    @property
    def prefix(self) -> str:
        """How the ids of its requests begin: the claim tells runs after a kill apart from those before."""
        return f"{self.public_id}-{self.claim}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line's result."""

    line: int
    ok: bool
    text: str
    input_tokens: int = 0
    output_tokens: int = 0


def _live(now: datetime) -> QuerySet[Batch]:
    """Those that somebody works on."""
    return Batch.objects.filter(status__in=OPEN, lease_until__gte=now)


@own_connection
def due() -> bool:
    """Whether batches are left to do and no executor works. An executor finds further batches by itself."""
    return Batch.objects.filter(status__in=OPEN).exists() and not _live(timezone.now()).exists()


@own_connection
def claim(holder: str) -> list[Work]:
    """Claims batches that no executor works on: a few of each tenant, those claimed least often first, so that a batch
    that makes no progress holds up no others. Empty while another executor lives, which takes them."""
    now = timezone.now()
    with transaction.atomic():
        if _live(now).exclude(holder=holder).exists():
            return []
        claimed = Counter(_live(now).values_list("tenant", flat=True))
        free = Batch.objects.filter(Q(lease_until__isnull=True) | Q(lease_until__lt=now), status__in=OPEN)
        chosen = []
        for pk, tenant in free.order_by("claim", "id").values_list("pk", "tenant")[:LOOKED_AT]:
            if claimed.total() < CLAIMED and claimed[tenant] < CLAIMED_OF_TENANT:
                claimed[tenant] += 1
                chosen.append(pk)
        taken = list(free.filter(pk__in=chosen).order_by("id").select_for_update())
        for row in taken:
            row.claim += 1
            row.holder, row.lease_until = holder, now + timedelta(seconds=LEASE_S)
            row.save(update_fields=["claim", "holder", "lease_until"])
    return [
        Work(
            r.pk, r.public_id, r.claim, r.tenant, r.entitlement, r.key_id, r.model, r.endpoint, r.input_name,
            r.status, r.expires_at, r.total,
        )
        for r in taken
    ]  # fmt: skip


@own_connection
def release(works: Collection[Work]) -> None:
    """Gives leases back."""
    for work in works:
        Batch.objects.filter(pk=work.id, claim=work.claim).update(lease_until=None, holder="")


def _locked(work: Work) -> Batch | None:
    """The batch, locked for this transaction; None where it is not this claim's any more, or has ended."""
    return Batch.objects.select_for_update().filter(pk=work.id, claim=work.claim, status__in=OPEN).first()


@own_connection
def store(work: Work, outcomes: Sequence[Outcome]) -> str:
    """Writes results, each line's first and no other, and renews the lease. The batch's status; empty where it is not
    this claim's any more: then nothing was written."""
    with transaction.atomic():
        row = _locked(work)
        if row is None:
            return ""
        stored = set(row.results.filter(line__in=[o.line for o in outcomes]).values_list("line", flat=True))
        new = {o.line: o for o in outcomes if o.line not in stored}.values()
        Result.objects.bulk_create(
            [Result(batch=row, line=o.line, ok=o.ok, text=o.text) for o in new], batch_size=CHUNK, ignore_conflicts=True
        )
        row.completed += sum(o.ok for o in new)
        row.failed += sum(not o.ok for o in new)
        row.input_tokens += sum(o.input_tokens for o in new)
        row.output_tokens += sum(o.output_tokens for o in new)
        row.lease_until = timezone.now() + timedelta(seconds=LEASE_S)
        row.save(update_fields=["completed", "failed", "input_tokens", "output_tokens", "lease_until"])
    return row.status


@own_connection
def done_lines(work: Work) -> set[int]:
    """The lines that have a result."""
    return set(Result.objects.filter(batch_id=work.id).values_list("line", flat=True))


def open_input(work: Work) -> IO[bytes]:
    """The input file. OSError where it is not there."""
    return storage().open(work.input_name, "rb")


@own_connection
def validate(work: Work, models: Collection[str]) -> str:
    """Reads the whole file; the status that follows."""
    env = _env()
    try:
        with open_input(work) as source:
            checked = lines.check(source, work.endpoint, models, env.batch_lines, env.max_body_bytes)
    except OSError:
        checked = lines.Checked()
        checked.add(None, "missing_file", "The input file cannot be read.")
    now = timezone.now()
    with transaction.atomic():
        row = _locked(work)
        if row is None or row.status != Status.VALIDATING:
            return "" if row is None else row.status
        row.total, row.model = checked.total, checked.model
        if checked.problems:
            row.status, row.problems, row.ended_at = Status.FAILED, checked.problems[: lines.MAX_PROBLEMS], now
            row.lease_until, row.holder = None, ""
        else:
            row.status, row.in_progress_at = Status.IN_PROGRESS, now
        row.save()
    return row.status


@own_connection
def finalize(work: Work, ends_as: str, problem: Mapping[str, Any] | None = None) -> bool:
    """Writes output and errors, then ends the batch; again from the start after a kill, with the same names. Whether
    it was this claim's to end."""
    with transaction.atomic():
        row = _locked(work)
        if row is None:
            return False
        again = row.status == Status.FINALIZING
        if not again:
            row.ends_as = Status.CANCELLED if row.status == Status.CANCELLING else ends_as
            row.status, row.finalizing_at = Status.FINALIZING, timezone.now()
            if problem is not None:
                row.problems = [dict(problem)]
            row.save(update_fields=["status", "finalizing_at", "ends_as", "problems"])
    if again:
        for number in range(max(1, work.claim - KEPT_NAMES), work.claim):  # what attempts before this one have left
            for kind in ("output", "error"):
                storage().delete(_name(row, number, kind))
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        unanswered = _write_lines(work, row, output, errors)
        written = [_put(row, kind, data) for kind, data in (("output", output), ("error", errors)) if data.tell()]
    with transaction.atomic():
        mine = _locked(work)
        if mine is None:
            for stored in written:  # under names that no other claim has
                storage().delete(stored.name)
            return False
        row = mine
        for stored in written:
            stored.save()
        ids = {stored.filename.rpartition("_")[2]: stored.public_id for stored in written}
        row.output_file, row.error_file = ids.get("output.jsonl", ""), ids.get("error.jsonl", "")
        row.failed += unanswered
        row.status, row.ended_at = row.ends_as, timezone.now()
        row.lease_until, row.holder = None, ""
        row.save()
    return True


def _write_lines(work: Work, row: Batch, output: IO[bytes], errors: IO[bytes]) -> int:
    """Writes each line of the input once, in order: its result to ``output`` or ``errors``, or that it was not
    answered. How many were not."""
    code, message = CANCELLED if row.ends_as == Status.CANCELLED else EXPIRED
    unanswered = 0
    results = _results(row)
    done = next(results, None)
    try:
        with open_input(work) as source:
            for line in lines.read(source, _env().max_body_bytes) if row.total else ():
                if done is not None and done[0] == line.number:
                    (output if done[1] else errors).write(done[2].encode() + b"\n")
                    done = next(results, None)
                    continue
                text = wire.unanswered_line(f"{work.prefix}-{line.number}", line.custom_id, code, message)
                errors.write(text.encode() + b"\n")
                unanswered += 1
    except OSError:
        log.error("batch %s: its input file cannot be read; lines without a result are not listed", row.public_id)
    while done is not None:
        (output if done[1] else errors).write(done[2].encode() + b"\n")
        done = next(results, None)
    return unanswered


def _results(row: Batch) -> Iterator[tuple[int, bool, str]]:
    """By their lines, a piece at a time."""
    last = 0
    while True:
        chunk = list(row.results.filter(line__gt=last).order_by("line").values_list("line", "ok", "text")[:CHUNK])
        yield from chunk
        if len(chunk) < CHUNK:
            return
        last = chunk[-1][0]


def _name(row: Batch, claim: int, kind: str) -> str:
    """Another for each claim: who was stopped for longer than its lease overwrites nothing."""
    return f"{row.public_id}-{claim}-{kind}.jsonl"


def _put(row: Batch, kind: str, data: IO[bytes]) -> StoredFile:
    size, now = data.tell(), timezone.now()
    data.seek(0)
    name = _name(row, row.claim, kind)
    name = storage().save(name, File(data, name=name))
    return StoredFile(
        public_id=new_id("file-"), tenant=row.tenant, project=row.project, entitlement=row.entitlement,
        purpose=BATCH_OUTPUT,
        filename=f"{row.public_id}_{kind}.jsonl", bytes=size, name=name, created_at=now,
        expires_at=now + timedelta(days=_env().file_keep_days),
    )  # fmt: skip


def forget(tenant: str, project: str | None) -> None:
    """Of a tenant that is gone, or one project: its files are nobody's, its batches end. ``tidy`` deletes them."""
    mine = Q(tenant=tenant) if project is None else Q(tenant=tenant, project=project)
    now = timezone.now()
    old = now - timedelta(days=_env().file_keep_days, seconds=1)
    Batch.objects.filter(mine).update(
        tenant=NOBODY, project="", status=Status.CANCELLED, ended_at=old, holder="", lease_until=None
    )
    StoredFile.objects.filter(mine).update(tenant=NOBODY, project="", entitlement="", expires_at=now)


@own_connection
def tidy() -> None:
    """Deletes files whose time is over, and results whose files are written, in bounded pieces."""
    for _ in range(100):
        ids = list(Result.objects.exclude(batch__status__in=OPEN).values_list("pk", flat=True)[:CHUNK])
        if not ids:
            break
        Result.objects.filter(pk__in=ids).delete()
    now = timezone.now()
    needed = Batch.objects.filter(status__in=OPEN).values_list("input_file", flat=True)
    _forget(list(StoredFile.objects.filter(expires_at__lt=now).exclude(public_id__in=list(needed))[:CHUNK]))
    old = now - timedelta(days=_env().file_keep_days)
    ended = Batch.objects.exclude(status__in=OPEN).filter(ended_at__lt=old)
    Batch.objects.filter(pk__in=list(ended.values_list("pk", flat=True)[:CHUNK])).delete()
