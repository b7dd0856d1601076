"""``Idempotency-Key``: one client's retry is never a second execution (``docs/reference/v1.md``).

A request with the header takes its key in shared state before it is admitted, holds it while it waits and runs, and
leaves it *done* when it completed, before its answer is sent; however else it ends, the key is free again. Answers are
kept only where the deployment says so, and then encrypted with what only the one who sends the same request again has:
neither the key nor the body is in Redis, only digests under the deployment's secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections import deque

from scheduling.core.outcomes import Outcome, Reason, outcome_of
from scheduling.gateway.answers.sealing import OVERHEAD, seal, unseal
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import Header
from scheduling.state.idempotency import Claim, ClaimStatus, HoldStatus, IdempotencyStore, KeepLimits, Ticket
from scheduling.state.resp import RespConnection
from scheduling.state.types import BATCH, StateError, StateUnavailable

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 255
REPLAYED: Header = (b"idempotent-replayed", b"true")
MIN_WAIT_S, MAX_WAIT_S = 1.0, 30.0  # after which a client may ask again for a request that still runs
JITTER = 0.75  # the least that Retry-After is shortened to
REMEMBERED = 10_000  # keys that were done here, told again should shared state lose its data


class Pass:
    """One call's key, from its head to its end."""

    __slots__ = ("_owner", "held", "kept", "original", "secret", "settled", "ticket")

    def __init__(self, owner: Idempotency, ticket: Ticket, secret: bytes) -> None:
        self._owner = owner
        self.ticket = ticket
        self.secret = secret  # opens an answer kept for this key and body
        self.held = False  # shared state may have the key for us
        self.settled = False
        self.kept = False  # ... with the answer
        self.original = ""  # the request that has the key, where it is another

    async def settle(self, reason: Reason, answer: bytes = b"") -> None:
        """The answer is complete, and about to be sent (a stream's: sent)."""
        await self._owner.settle(self, reason, answer)

    async def end(self, reason: Reason) -> None:
        """The call ends; does nothing after ``settle`` but for an answer that did not reach its client."""
        if self.held:
            await self._owner.end(self, reason)

    def later(self, reason: Reason) -> None:
        """The call ends, and may not wait."""
        if self.held:
            self._owner.later(self, reason)


class Idempotency:
    """The keys that this gateway holds. ``limits`` and ``secret`` are the deployment's."""

    def __init__(self, config: GatewayConfig, resp: RespConnection) -> None:
        limits = KeepLimits(
            int(config.idempotency_keep_s * 1000),
            config.idempotency_keys,
            config.idempotency_bytes if config.idempotency_answers else 0,
        )
        self._store = IdempotencyStore(resp, config.gateway_id, limits)
        self._answers = config.idempotency_answers
        self._largest = min(config.idempotency_largest, limits.bytes)
        self._secret = config.idempotency_secret
        self._renew_every_s = config.renew_every_s
        self._backlog_limit = config.backlog_limit
        self._held: dict[str, Pass] = {}  # by request
        self._backlog: deque[tuple[Pass, Reason]] = deque()  # endings that Redis has not taken yet
        self._keep_s = config.idempotency_keep_s
        self._done: deque[tuple[Ticket, Reason, float]] = deque(maxlen=REMEMBERED)  # and when [monotonic s]
        self._lost: deque[tuple[Ticket, Reason]] = deque()  # of these: to be told again
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-idempotency")

    async def stop(self) -> None:
        """Tells what can be told now, then stops; what else is held runs out by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            await self._tell()
        except StateUnavailable:
            log.warning("gateway stops with %d Idempotency-Keys that Redis was not told of", len(self._backlog))

    def available(self) -> None:
        """Redis is back: it may have lost what is held."""
        self._wake.set()

    def lost(self) -> None:
        """Redis lost its data: what was done here stays done (its answers are gone)."""
        since_s = time.monotonic() - self._keep_s
        self._lost = deque((ticket, reason) for ticket, reason, done_s in self._done if done_s >= since_s)
        self._wake.set()

    def pass_for(self, request_id: str, tenant: str, path: str, key: bytes, body: bytes, project: str = "") -> Pass:
        """The pass of a call with a valid key.

        Raises:
            Refusal: the header is not 1 to 255 visible ASCII characters.
        """
        if not 1 <= len(key) <= MAX_KEY_CHARS or not all(32 < c < 127 for c in key):
            raise Refusal(
                Reason.INVALID_REQUEST,
                param=HEADER,
                detail=f"{HEADER} must be sent once, with 1 to {MAX_KEY_CHARS} visible ASCII characters.",
            )
        # a slug has no newline, so no tenant is taken for a project of another
        owner = f"{tenant}\n{project}" if project else tenant
        name = b"%b\0%b" % (owner.encode(), key)
        digest = hmac.digest(self._secret, b"key\0" + name, "sha256").hex()[:32]
        whole = hmac.digest(self._secret, b"\0".join((name, path.encode(), hashlib.sha256(body).digest())), "sha256")
        fingerprint = hmac.digest(whole, b"fingerprint", "sha256").hex()[:32]
        return Pass(self, Ticket(tenant, digest, fingerprint, request_id), hmac.digest(whole, b"answer", "sha256"))

    async def begin(self, mine: Pass) -> bytes | None:
        """Takes the key: None where the call may run, or the answer to give again.

        Raises:
            Refusal: the key is another request's.
        """
        mine.held = True  # also if the answer is lost
        self._held[mine.ticket.request_id] = mine
        try:
            claim = await self._store.claim(mine.ticket)
        except StateUnavailable:
            raise Refusal(Reason.STATE_UNAVAILABLE) from None
        if claim.status is ClaimStatus.MINE:
            return None
        mine.held = False
        del self._held[mine.ticket.request_id]
        mine.original = claim.request_id
        return self._answer(mine, claim)

    def _answer(self, mine: Pass, claim: Claim) -> bytes:
        if claim.status is ClaimStatus.OTHER:
            raise Refusal(Reason.KEY_REUSED, param=HEADER, original=claim.request_id)
        if claim.status is ClaimStatus.RUNNING:
            # nothing is known of it but for how long it has run; of a dead gateway's, when its hold runs out
            wait_s = min(max(claim.age_s, MIN_WAIT_S), MAX_WAIT_S) if claim.heard else claim.ends_s / JITTER
            raise Refusal(Reason.DUPLICATE, param=HEADER, original=claim.request_id, retry_s=wait_s)
        answer = unseal(mine.secret, claim.answer) if claim.answer else None
        if answer is None:
            how = claim.reason.value if claim.reason is not None else ""
            raise Refusal(Reason.ALREADY_DONE, param=HEADER, original=claim.request_id, how=how)
        return answer

    async def settle(self, mine: Pass, reason: Reason, answer: bytes) -> None:
        """Before the client can see that it is complete. Where Redis does not answer, the answer is not kept."""
        sealed = b""
        if self._answers and answer and len(answer) + OVERHEAD <= self._largest:
            sealed = seal(mine.secret, answer)
        try:
            done = await self._store.settle(mine.ticket, reason, sealed)
        except StateUnavailable:
            return
        if done:
            self._done.append((mine.ticket, reason, time.monotonic()))
        mine.settled = done
        mine.kept = done and bool(sealed)

    async def end(self, mine: Pass, reason: Reason) -> None:
        self._forget(mine)  # first: what is renewed from now on does not include it
        try:
            await self._say(mine, reason)
        except StateUnavailable:
            self.later(mine, reason)
        except asyncio.CancelledError:
            self.later(mine, reason)
            raise

    def later(self, mine: Pass, reason: Reason) -> None:
        self._forget(mine)
        if len(self._backlog) >= self._backlog_limit:
            self._backlog.popleft()  # its hold runs out by itself
        self._backlog.append((mine, reason))
        self._wake.set()

    async def _say(self, mine: Pass, reason: Reason) -> None:
        if outcome_of(reason) is Outcome.COMPLETED:
            if not mine.settled and await self._store.settle(mine.ticket, reason):
                self._done.append((mine.ticket, reason, time.monotonic()))
        elif not mine.kept:  # a kept answer waits for its client, who left
            await self._store.release(mine.ticket)

    def _forget(self, mine: Pass) -> None:
        mine.held = False
        self._held.pop(mine.ticket.request_id, None)

    async def _tell(self) -> None:
        while self._backlog:
            mine, reason = self._backlog[0]
            try:
                await self._say(mine, reason)
            except StateError:
                log.exception("shared state rejected the end of an Idempotency-Key")
            if self._backlog and self._backlog[0][0] is mine:
                self._backlog.popleft()

    async def _tell_again(self) -> None:
        while self._lost:
            await self._store.settle(*self._lost[0])  # nothing happens to a key that another request has now
            self._lost.popleft()

    async def _hold(self) -> None:
        tenants: dict[str, list[Pass]] = {}
        for mine in self._held.values():
            if not mine.settled:
                tenants.setdefault(mine.ticket.tenant, []).append(mine)
        for tenant, passes in tenants.items():
            for start in range(0, len(passes), BATCH):
                asked = [p for p in passes[start : start + BATCH] if p.held and not p.settled]
                statuses = await self._store.hold(tenant, [p.ticket for p in asked])
                for mine, status in zip(asked, statuses, strict=True):
                    if status is HoldStatus.LOST:
                        # this process hung for longer than a hold: the slot is lost as well, and ends the call
                        self._forget(mine)
                    elif status is HoldStatus.HELD and not mine.held:
                        self.later(mine, Reason.INTERNAL)  # it ended meanwhile, and this may have made it again

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._renew_every_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._tell()
                await self._tell_again()
                await self._hold()
            except StateUnavailable:
                continue
            except Exception:
                log.exception("Idempotency-Keys could not be renewed")  # and the next round must still be tried
