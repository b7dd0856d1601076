"""Admission for a gateway that is there already: Envoy asks with ``ext_authz`` (HTTP service) and sends the request
itself.

A check is a request of ours up to the engine: the same key, limits, estimate, queue and grant. What runs in the place
of an engine is a :class:`Hold`: it answers the check, its lease is kept alive like any other, and it ends when the
completion is told, or after ``held_s``. A lease whose end nobody tells is charged to its bound: silence saves nothing.

Who asks shows a token, besides the client's key. The answer says where a replica is, and its lease is ended with any
figures: both are for the data plane alone, and a client that reaches this port has a key that opens ``/v1``.

Envoy runs no filter for a request whose client leaves or whose engine breaks off, only its access log. So such ends
come from there: lines in a batch of OpenTelemetry's protocol, which is the only log it sends over plain HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from scheduling.core.ledger.record import MAX_TOKENS
from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec
from scheduling.gateway.asgi import Message, Receive, Scope, Send
from scheduling.gateway.entry.flow import flow_headers
from scheduling.gateway.entry.guard import ClientGone
from scheduling.gateway.errors import DEFAULT_RETRY_S, error_bytes
from scheduling.gateway.headers import JSON, Header, retry_after
from scheduling.gateway.stages import HOLD, Submitted

log = logging.getLogger(__name__)

CHECK = "/ext-authz"  # Envoy's path_prefix: the path of the request follows
DONE = "/ext-authz-done"
ENDS = "/ext-authz-ends"  # Envoy's access log
LEASE = b"x-quartermaster-lease"
TOKEN = b"x-quartermaster-authz-token"
PARTIAL = b"x-envoy-auth-partial-body"
MAX_DONE_BYTES = 4096
MAX_ENDS_BYTES = 1024 * 1024  # Envoy sends a batch when it has 16 KiB
# One line of the log, anywhere in the batch: strings lie in protobuf as they are, so no decoder is needed to find them.
_END = re.compile(rb"quartermaster lease=([\w-]{1,100}/[\w-]{1,100}/\w{1,100}) flags=([A-Za-z,-]{1,100});")


class Completion(msgspec.Struct, forbid_unknown_fields=True):
    """What the data plane says of a request's end. Figures that are missing count as the request's bound."""

    lease: str = ""  # or in the header
    status: int = 200  # of the engine's answer; 499: the client left
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = "stop"


_completion = msgspec.json.Decoder(Completion)
_encode = msgspec.json.encode


class Hold:
    """A granted request that somebody else sends."""

    def __init__(self, held_s: float) -> None:
        self._held_s = held_s
        loop = asyncio.get_running_loop()
        self.granted: asyncio.Future[tuple[Submitted, BackendSpec]] = loop.create_future()
        self._done: asyncio.Future[Completion] = loop.create_future()
        self.secret = secrets.token_hex(16)

    async def run(self, submitted: Submitted, spec: BackendSpec) -> Reason:
        """In an attempt's place: from the grant to its completion, or the end of patience."""
        call, estimate = submitted.call, submitted.estimated.estimate
        if self.granted.done():  # it was moved: whom it was told of has another replica
            raise ClientGone
        submitted.ran = True
        # Until its completion comes, and for good if none does: what it may use at most.
        submitted.input_tokens = estimate.input_tokens
        submitted.output_tokens = max(0, estimate.cost_tokens - estimate.input_tokens)
        call.responding, call.status = True, 200
        self.granted.set_result((submitted, spec))
        call.limit(Reason.GATEWAY_LOST, min(call.last_deadline, call.loop.time() + self._held_s))
        completion = await self._done
        failed = completion.status >= 400 and completion.status != 499
        read, generated = completion.prompt_tokens, completion.completion_tokens
        if failed and (read is None or generated is None):
            submitted.ran = False  # an error answers nothing, unless it says what it used
            submitted.input_tokens = submitted.output_tokens = 0
        elif read is not None and generated is not None:
            prepared, context = submitted.estimated.prepared, submitted.access.pool.max_model_len
            most = submitted.output_tokens
            if not prepared.bound_given:  # nor does the engine know the pool's: it writes to the end of the context
                most = max(most, (context - read) * prepared.choices)
            if read <= context and generated <= most:
                submitted.input_tokens, submitted.output_tokens = read, generated
            else:
                log.warning("request %s: a completion told more tokens than can be true", submitted.id)
        if completion.status == 499:
            raise ClientGone
        if failed:
            return Reason.BACKEND_ERROR
        return Reason.LENGTH if completion.finish_reason == "length" else Reason.STOP

    def complete(self, secret: str, completion: Completion) -> bool:
        """Whether it is this one's, and the first."""
        if not secrets.compare_digest(secret, self.secret) or self._done.done():
            return False
        self._done.set_result(completion)
        return True

    def complete_encoded(self, secret: str, completion: bytes) -> None:
        """As another gateway received it."""
        self.complete(secret, _completion.decode(completion))


class Gateway(Protocol):
    """The part of the gateway that is used here."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request as ``/v1`` does."""

    def hold_of(self, request_id: str) -> Hold | None: ...

    async def tell(self, gateway_id: str, request_id: str, secret: str, completion: bytes) -> None:
        """Hands a completion to the gateway that holds it."""

    @property
    def gateway_id(self) -> str: ...


class Beside:
    """The ASGI handler of both paths."""

    def __init__(self, gateway: Gateway, held_s: float, token: str) -> None:
        self._gateway = gateway
        self._held_s = held_s
        self._token = token.encode()
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def serves(path: str) -> bool:
        return path in (DONE, ENDS) or path.startswith(f"{CHECK}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == DONE:
            await self._completed(scope, receive, send)
        elif scope["path"] == ENDS:
            await self._ended(scope, receive, send)
        else:
            await self._check(scope, receive, send)

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown = next((value for name, value in scope["headers"] if name == TOKEN), b"")
        if not self._token or not secrets.compare_digest(shown, self._token):
            detail = f"{CHECK} is for the gateway in front, which sends {TOKEN.decode()}. Clients use /v1."
            await _say(send, 403, detail)
            return
        if any(name == PARTIAL and value == b"true" for name, value in scope["headers"]):
            detail = "Only a part of the body was sent: raise max_request_bytes of with_request_body, and set "
            await _say(send, 413, detail + "allow_partial_message: false.")
            return
        hold = Hold(self._held_s)
        inner = dict(scope, path=scope["path"][len(CHECK) :], extensions={HOLD: hold})
        read = asyncio.get_running_loop().create_future()
        left = asyncio.get_running_loop().create_future()
        answer: list[Message] = []

        async def take() -> Message:
            """The body; then, until the request is granted, the disconnect of the gateway that asks."""
            if read.done():
                await left
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                read.set_result(None)
            return message

        async def keep(message: Message) -> None:
            answer.append(message)

        task = asyncio.create_task(self._gateway.serve(inner, take, keep))
        self._tasks.add(task)  # it goes on after the check is answered
        task.add_done_callback(self._tasks.discard)
        watching = asyncio.create_task(_gone(receive, read))
        try:
            waited: set[asyncio.Future[Any]] = {task, hold.granted, watching}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
        if hold.granted.done():
            submitted, spec = hold.granted.result()
            await _answer(send, 200, [JSON, *self._granted(hold, submitted, spec)], b"{}")
        elif task.done():
            await self._pass_on(answer, send)
        else:
            left.set_result(None)

    def _granted(self, hold: Hold, submitted: Submitted, spec: BackendSpec) -> list[Header]:
        access = submitted.access
        lease = f"{self._gateway.gateway_id}/{submitted.id}/{hold.secret}"
        return [
            (LEASE, lease.encode("ascii")),
            (b"x-request-id", submitted.id.encode("ascii")),
            (b"x-quartermaster-backend", spec.id.encode("ascii")),
            # where Envoy's original_dst cluster sends it, if it is to go where its slot is
            (b"x-gateway-destination-endpoint", urlsplit(spec.url).netloc.encode("ascii")),
            *flow_headers(access.entitlement.tenant, access.entitlement.tier.name),
        ]

    async def _pass_on(self, answer: list[Message], send: Send) -> None:
        """What the gateway said. A small path that it serves itself is allowed, and asks nothing more."""
        if not answer:
            await _answer(send, 503, [JSON, *retry_after(DEFAULT_RETRY_S)], error_bytes(Reason.SHUTTING_DOWN))
        elif answer[0]["status"] < 300:
            await _answer(send, 200, [JSON], b"{}")
        else:
            for message in answer:
                await send(message)

    async def _completed(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _posted(scope, receive, send, MAX_DONE_BYTES, "A completion")
        if body is None:
            return
        try:
            completion = _completion.decode(body or b"{}")
        except msgspec.DecodeError as error:
            await _say(send, 400, f"This is no completion: {error}.")
            return
        if any(not 0 <= n <= MAX_TOKENS for n in (completion.prompt_tokens or 0, completion.completion_tokens or 0)):
            await _say(send, 400, f"Tokens are 0 to {MAX_TOKENS}.")
            return
        header = next((value for name, value in scope["headers"] if name == LEASE), b"")
        parts = (header.decode("ascii", "replace") or completion.lease).split("/")
        if len(parts) != 3 or not all(
            part.isascii() and part.replace("_", "").replace("-", "").isalnum() for part in parts
        ):
            await _say(send, 400, "Name the lease: the header x-quartermaster-lease, or lease in the body.")
            return
        told = await self._tell(parts, completion)
        if told is None:
            await _answer(send, 202, [JSON], b"{}")
        elif told:
            await _answer(send, 200, [JSON], b"{}")
        else:
            await _say(send, 410, "There is no such lease: it has ended, or never was.")

    async def _ended(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends of which no completion tells: the client left, or the engine broke off."""
        body = await _posted(scope, receive, send, MAX_ENDS_BYTES, "A batch of the access log")
        if body is None:
            return
        for lease, flags in _END.findall(body):
            # Flags of the engine's side begin with U. Whatever a client can bring about is charged as leaving is.
            broke_off = all(flag.startswith(b"U") for flag in flags.split(b","))
            await self._tell(lease.decode("ascii").split("/"), Completion(status=502 if broke_off else 499))
        await _answer(send, 200, [(b"content-type", b"application/x-protobuf")], b"")

    async def _tell(self, lease: list[str], completion: Completion) -> bool | None:
        """Whether a lease of this gateway ended by it; ``None`` if another gateway was told."""
        gateway_id, request_id, secret = lease
        if gateway_id != self._gateway.gateway_id:
            await self._gateway.tell(gateway_id, request_id, secret, _encode(completion))
            return None
        hold = self._gateway.hold_of(request_id)
        return hold is not None and hold.complete(secret, completion)


async def _posted(scope: Scope, receive: Receive, send: Send, limit: int, what: str) -> bytes | None:
    """The body of a POST; ``None`` if it was refused or its sender disconnected."""
    if scope["method"] != "POST":
        await _say(send, 405, f"{scope['path']} takes POST.")
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            await _say(send, 413, f"{what} has {limit} bytes at most.")
            return None
        if not message.get("more_body"):
            return bytes(body)


async def _gone(receive: Callable[[], Awaitable[Message]], read: asyncio.Future[None]) -> None:
    """Returns when the gateway that asks disconnects, after the body was read."""
    await read
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Send, status: int, message: str) -> None:
    await _answer(send, status, [JSON], error_bytes(Reason.INVALID_REQUEST, detail=message))


async def _answer(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    sized: list[Any] = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})
