"""``/v1/files`` and ``/v1/batches``, as OpenAI defines them.

A file that comes is written to the temporary folder as it comes, whatever is wrong with it found before any of it is
parsed, then taken apart by Django's own parser.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation, TooManyFieldsSent, TooManyFilesSent
from django.core.files.uploadhandler import StopUpload, TemporaryFileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from controlplane.batches import services, wire
from controlplane.batches.arriving import Arriving, Upload
from controlplane.batches.models import BATCH, BATCH_OUTPUT
from controlplane.env import Env
from controlplane.v1_routes import (
    MAX_ID,
    DatabaseRoutes,
    Problem,
    handle,
    is_id,
    limit_of,
    order_of,
    page_object,
    query_of,
)
from scheduling.core.outcomes import Reason
from scheduling.gateway.endpoints import not_served
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import ClientGone, Head, check_size
from scheduling.gateway.errors import Refusal
from scheduling.gateway.stages import Call

FORM_BYTES = 64 * 1024  # what a form may have beside its file
BODY_BYTES = 64 * 1024  # of a new batch
PIECE = 256 * 1024  # bytes read, written and sent at once
MAX_PAIRS, MAX_NAME, MAX_VALUE = 16, 64, 512  # of metadata, in characters
SHORTEST_KEEP_S, LONGEST_KEEP_S = 3600, 2_592_000  # of a file, as a client may ask
MAX_LIST, MAX_FILES_LIST = 100, 10_000
FILES, BATCHES = "/v1/files", "/v1/batches"


class FileRoutes(DatabaseRoutes):
    """What the gateway of a web process hands on."""

    def __init__(self, env: Env) -> None:
        super().__init__(env, "files")
        self._arriving = Arriving(env.file_bytes + FORM_BYTES)

    def serves(self, path: str) -> bool:
        return path.startswith((FILES, BATCHES)) and path[len(FILES if path.startswith(FILES) else BATCHES) :][:1] in (
            "", "/",
        )  # fmt: skip

    async def route(self, call: Call, access: Access, head: Head) -> None:
        path = call.scope["path"].rstrip("/")
        kind, _, rest = path.removeprefix("/v1/").partition("/")
        ident, _, action = rest.partition("/")
        handlers: dict[str, Callable[[], Any]]
        if ident and not is_id(ident):
            raise Problem("This does not exist.", None, 404)
        if kind == "files" and not ident:
            handlers = {"POST": lambda: self._upload(call, access, head), "GET": lambda: self._files(call, access)}
        elif kind == "files" and not action:
            handlers = {
                "GET": lambda: self._file(call, access, ident),
                "DELETE": lambda: self._drop(call, access, ident),
            }
        elif kind == "files" and action == "content":
            handlers = {"GET": lambda: self._content(call, access, ident)}
        elif kind == "batches" and not ident:
            handlers = {"POST": lambda: self._create(call, access, head), "GET": lambda: self._batches(call, access)}
        elif kind == "batches" and not action:
            handlers = {"GET": lambda: self._batch(call, access, ident)}
        elif kind == "batches" and action == "cancel":
            handlers = {"POST": lambda: self._cancel(call, access, ident, head)}
        else:
            raise Problem(not_served(call.scope["path"]), None, 404)
        await handle(call, handlers)

    # --- files

    async def _upload(self, call: Call, access: Access, head: Head) -> None:
        env, whose = self._env, access.entitlement
        limit = env.file_bytes + FORM_BYTES
        check_size(head, limit)
        content_type = next((v for k, v in call.scope["headers"] if k == b"content-type"), b"").decode("latin-1")
        if not content_type.lower().startswith("multipart/form-data"):
            raise Problem("Send a form: multipart/form-data with purpose and file.")
        room = await self.ask(services.room_left, whose.tenant, whose.id) + FORM_BYTES
        with self._arriving.upload(whose.tenant, room) as upload, tempfile.TemporaryFile() as body:
            upload.is_of(head.content_length or 0)
            size = await self._receive(call, body, limit, upload)
            call.body_read = True
            call.limit(Reason.DEADLINE, call.last_deadline)
            row = await self.ask(_keep, body, size, content_type, env, whose.tenant, whose.id, access.key.project)
        await self.answer(call, wire.file_object(row))

    async def _receive(self, call: Call, body: IO[bytes], limit: int, upload: Upload) -> int:
        """Writes the body as it comes, piece by piece, and returns its size."""
        size, pieces, more = 0, list[bytes](), True
        held_bytes = 0
        while more:
            call.limit(Reason.SLOW_REQUEST, call.loop.time() + self._env.body_timeout_s)
            message = await call.receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if size > limit:
                raise Refusal(Reason.TOO_LARGE, close=True, what="request body", limit=limit)
            upload.is_of(size)
            pieces.append(piece)
            held_bytes += len(piece)
            if held_bytes >= PIECE or not more:
                await self.ask(body.write, b"".join(pieces))
                pieces, held_bytes = [], 0
        return size

    async def _files(self, call: Call, access: Access) -> None:
        query = query_of(call, {"after", "limit", "order", "purpose"})
        order, purpose = order_of(query), query.get("purpose", "")
        if purpose not in ("", BATCH, BATCH_OUTPUT):
            raise Problem(f"purpose is {BATCH} or {BATCH_OUTPUT}.", "purpose")
        rows, more = await self.ask(
            services.files, access.entitlement.tenant, after=query.get("after", ""),
            limit=limit_of(query, MAX_FILES_LIST, MAX_FILES_LIST), ascending=order == "asc", purpose=purpose,
            project=access.key.project,
        )  # fmt: skip
        await self.answer(call, page_object([wire.file_object(row) for row in rows], more))

    async def _file(self, call: Call, access: Access, ident: str) -> None:
        row = await self.ask(services.file, access.entitlement.tenant, ident, access.key.project)
        await self.answer(call, wire.file_object(row))

    async def _drop(self, call: Call, access: Access, ident: str) -> None:
        await self.ask(services.delete_file, access.entitlement.tenant, ident, access.key.project)
        await self.answer(call, {"id": ident, "object": "file", "deleted": True})

    async def _content(self, call: Call, access: Access, ident: str) -> None:
        row = await self.ask(services.file, access.entitlement.tenant, ident, access.key.project)
        try:
            content = await self.ask(services.storage().open, row.name, "rb")
        except OSError:
            raise Problem("The contents of this file are gone.", "file_id", 404) from None
        try:
            headers = [
                (b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % row.bytes),
                (b"x-request-id", call.id.encode("ascii")), (b"content-disposition", b"attachment"),
                (b"x-content-type-options", b"nosniff"),
            ]  # fmt: skip
            call.responding, call.status = True, 200
            await call.send({"type": "http.response.start", "status": 200, "headers": headers})
            left = row.bytes
            while left > 0 and call.scope["method"] != "HEAD":
                piece = await self.ask(content.read, min(PIECE, left))
                if not piece:
                    await call.abort_client()  # a length was promised that cannot be kept
                    return
                left -= len(piece)
                call.limit(Reason.SLOW_READER, call.loop.time() + self._env.send_timeout_s)
                await call.send({"type": "http.response.body", "body": piece, "more_body": left > 0})
            if not row.bytes or call.scope["method"] == "HEAD":
                await call.send({"type": "http.response.body", "body": b""})
            call.closed = True
        finally:
            await self.ask(content.close)

    # --- batches

    async def _create(self, call: Call, access: Access, head: Head) -> None:
        body = await self._json(call, head)
        given = {name for name, value in body.items() if value is not None}
        unknown = given - {"input_file_id", "endpoint", "completion_window", "metadata"}
        if unknown:
            raise Problem(f"This field is not known here: {min(unknown)[:100]}.", min(unknown)[:100])
        for name in ("input_file_id", "endpoint", "completion_window"):
            if not isinstance(body.get(name), str) or len(body[name]) > MAX_ID:
                raise Problem(f"{name} is a text.", name)
        if not is_id(body["input_file_id"]):
            raise Problem("This file does not exist.", "input_file_id", 404)
        row = await self.ask(
            services.create, tenant=access.entitlement.tenant, entitlement=access.entitlement.id,
            key_id=access.key.id, model=access.pool.model, endpoint=body["endpoint"],
            input_file=body["input_file_id"], window=body["completion_window"], metadata=_metadata(body),
            project=access.key.project,
        )  # fmt: skip
        await self.ask(services.notify, row.pk)
        await self.answer(call, wire.batch_object(row))

    async def _batches(self, call: Call, access: Access) -> None:
        query = query_of(call, {"after", "limit"})
        rows, more = await self.ask(
            services.batches, access.entitlement.tenant, after=query.get("after", ""),
            limit=limit_of(query, MAX_LIST, 20), project=access.key.project,
        )  # fmt: skip
        await self.answer(call, page_object([wire.batch_object(row) for row in rows], more))

    async def _batch(self, call: Call, access: Access, ident: str) -> None:
        row = await self.ask(services.batch, access.entitlement.tenant, ident, access.key.project)
        await self.answer(call, wire.batch_object(row))

    async def _cancel(self, call: Call, access: Access, ident: str, head: Head) -> None:
        await self.body(call, head, BODY_BYTES)
        row = await self.ask(services.cancel, access.entitlement.tenant, ident, access.key.project)
        await self.ask(services.notify, row.pk)
        await self.answer(call, wire.batch_object(row))

    async def _json(self, call: Call, head: Head) -> dict[str, Any]:
        data = await self.body(call, head, BODY_BYTES)
        try:
            document = msgspec.json.decode(data)  # refuses half of a surrogate pair, which no error could name
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise Problem("The body is not valid JSON.") from None
        if not isinstance(document, dict):
            raise Problem("The body is not a JSON object.")
        return document


class _OneFile(TemporaryFileUploadHandler):
    """Takes one file, of a bounded size."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._seen = 0
        self.too_much = False

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if start + len(raw_data) > self._most:
            self.too_much = True
            raise StopUpload(connection_reset=True)
        super().receive_data_chunk(raw_data, start)

    def new_file(self, *args: Any, **options: Any) -> None:
        self._seen += 1
        if self._seen > 1:
            self.too_much = True
            raise StopUpload(connection_reset=True)
        super().new_file(*args, **options)


def _keep(body: IO[bytes], size: int, content_type: str, env: Env, tenant: str, entitlement: str, project: str) -> Any:
    """Takes a form apart and stores its file. Raises Problem."""
    body.seek(0)
    one = _OneFile(env.file_bytes)
    meta = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(size)}
    try:
        parser = MultiPartParser(meta, cast(Any, body), [one], settings.DEFAULT_CHARSET)
        form, files = parser.parse()
    except (TooManyFieldsSent, TooManyFilesSent):
        raise Problem("The form has too many fields: send purpose, file and, if you like, expires_after.") from None
    except (MultiPartParserError, SuspiciousOperation, ValueError) as problem:
        raise Problem(f"The form cannot be read: {str(problem)[:200].rstrip('.')}.") from None
    if one.too_much:
        raise Problem(f"There is one file of at most {env.file_bytes} bytes in a form.", "file")
    if form.get("purpose") != BATCH:
        raise Problem(f"purpose is {BATCH}: nothing else is done with files here.", "purpose")
    upload = files.get("file")
    if upload is None:
        raise Problem("file is missing: send the lines in a field of this name.", "file")
    if not upload.size:
        raise Problem("The file is empty: a batch has at least one line.", "file")
    keep_s = None
    if form.get("expires_after[seconds]") is not None or form.get("expires_after[anchor]") is not None:
        text = str(form.get("expires_after[seconds]", ""))
        keep_s = int(text) if text.isascii() and text.isdigit() and len(text) <= 8 else 0
        if form.get("expires_after[anchor]") != "created_at" or not SHORTEST_KEEP_S <= keep_s <= LONGEST_KEEP_S:
            raise Problem(
                f"expires_after is created_at and {SHORTEST_KEEP_S} to {LONGEST_KEEP_S} seconds.", "expires_after"
            )
    with upload:
        return services.keep_file(
            tenant=tenant, entitlement=entitlement, filename=upload.name or "", content=upload, size=upload.size or 0,
            keep_s=keep_s, project=project,
        )  # fmt: skip


def _is_text(text: str) -> bool:
    """Whether a database keeps it: neither NUL nor half of a pair of surrogates."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _metadata(body: Mapping[str, Any]) -> dict[str, str] | None:
    metadata = body.get("metadata")
    if metadata is None:
        return None
    if (
        not isinstance(metadata, dict)
        or len(metadata) > MAX_PAIRS
        or not all(isinstance(v, str) and len(k) <= MAX_NAME and len(v) <= MAX_VALUE for k, v in metadata.items())
        or not all(_is_text(text) for pair in metadata.items() for text in pair)
    ):
        raise Problem(
            f"metadata has at most {MAX_PAIRS} pairs of texts, names of {MAX_NAME} and values of {MAX_VALUE} "
            "characters.", "metadata",
        )  # fmt: skip
    return metadata
