"""The frozen words of shared state: what goes into a script's call and what comes out.

Python reference models (:mod:`tests.reference.pool`) and the real store (:mod:`scheduling.state.store`)
take and return the same types, so that callers and tests cannot tell them apart. Times in ``*_ms`` are milliseconds of
Redis ``TIME``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from scheduling.core.admission.rule import NO_BACKEND_RETRY_MS as NO_BACKEND_RETRY_MS
from scheduling.core.admission.rule import SERVICE_MS as SERVICE_MS
from scheduling.core.capacity.uncounted import Beginnings
from scheduling.core.frozen import quickly_made
from scheduling.core.ledger.record import MAX_TOKENS, LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.outcomes import unmet as is_unmet
from scheduling.core.types import (
    FULL_SPEED,
    MAX_SEQUENCES,
    BackendView,
    Estimate,
    PoolView,
    QueuedRequest,
    Slo,
    Standing,
)

LEASE_MS: Final = 10_000  # what a dead gateway held is free after this plus one sweep
LEADER_MS: Final = 2_000  # a leadership not extended for so long is free, and scripts hand out slots themselves
RESTORE_MS: Final = 60_000  # after a lost state buckets are put right from the ledger for so long
REBUILD_MS: Final = 5_000  # after a lost state nothing new is admitted for so long; longer than one renewal
SWEEP_GAP_MS: Final = 5_000  # sweeps further apart than this: Redis or the leaders were away, renewals may be late
CLOCK_GAP_MS: Final = 5_000  # so long between two calls (a leader makes several a second): Redis' clock was set
ENDED_MS: Final = 120_000  # how long the first terminal state is remembered
MAX_PAUSE_S: Final = 30.0  # of a replica that asks gateways to pause, whatever its Retry-After says
BATCH: Final = 100  # items one script call works on
GRANTS_AT_ONCE: Final = 10  # by one script call while nobody leads
ENTITLEMENTS_AT_ONCE: Final = 50  # that it looks at
TRIED_OF_EACH: Final = 4  # requests of each that cannot be granted, at most
EVENTS_KEPT: Final = 20_000  # notifications kept for a leader that is behind; it reloads the queue if it missed some
MAX_USED: Final = 2 * MAX_TOKENS  # tokens of one request, in and out: a larger figure is taken for this one
ENTRY_FORMAT: Final = 3  # of what ``held`` and ``queue`` keep; older ones are read, newer ones are not
LEDGER_KEPT: Final = 1_000_000  # ended requests kept while the database is away, oldest dropped first

UNREAD_KEPT: Final = 10_000  # ledger entries set aside because they could not be read, oldest dropped first

PREVIEW_MS: Final = 15_000  # a preview that nobody renews is not shown for longer
ASKED_MS: Final = 10_000  # who looks at the queue asks again within this

CATALOG_CHANNEL: Final = "qm:catalog"  # notification: the catalog has a new version
RESIGNED_CHANNEL: Final = "qm:resigned"  # notification: the leadership of a pool (its id) was given back
EJECTED_CHANNEL: Final = "qm:ejected"  # notification: the id of a replica that was ejected


def gateway_channel(gateway: str) -> str:
    """The pub/sub channel on which a gateway hears of its grants."""
    return f"qm:gw:{gateway}"


def leader_channel(holder: str) -> str:
    """On which a process that leads listens, for nobody's words: that it does says that it lives."""
    return f"qm:leader:{holder}"


def preview_key(pool: str) -> str:
    """The key of the leader's preview of the queue (JSON); with ``:asked``, the mark that somebody looks at it."""
    return f"qm:{{{pool}}}:preview"


def work_of(estimate: Estimate) -> int:
    """Outstanding work of a request [tokens]: what the replica with the least of it is chosen by."""
    return math.ceil(estimate.input_tokens + estimate.output_tokens)


def unmet(record: LedgerRecord) -> int:
    """Tokens that a refusal says were wanted and not given [tokens]: only where the pool had no room, not where the
    entitlement was at its own limit."""
    if not is_unmet(record.reason, waited=record.queued_s is not None):
        return 0
    return math.ceil(record.input_tokens_est + record.output_tokens_est)


def ran_for(record: LedgerRecord) -> int:
    """Tokens that a request used [tokens]; 0 for one that was never granted a slot."""
    return 0 if record.granted_s is None else record.input_tokens + record.output_tokens


class StateError(Exception):
    """Redis answered with an error that is a fault of ours (wrong type, broken script). Not transient."""


class StateUnavailable(Exception):
    """Redis does not answer, or cannot serve now. Raised at once while it is known to be down.

    Whether the call took effect is not known: repeat it only with the same (request, attempt).
    """


@quickly_made
@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the ledger needs of a request beyond what ordering may know, kept in case its gateway dies."""

    model: str
    key_id: str
    streamed: bool
    slo: Slo
    trace: str = ""  # as in the ledger
    user: str = ""  # as in the ledger
    limits: str = ""  # of its key and user (``scheduling.core.admission.key_limits``), which scripts read; empty: none
    project: str = ""  # as in the ledger
    held: bool = False  # somebody else sends it to its engine, and nobody here sees the answer


@quickly_made
@dataclass(frozen=True, slots=True)
class StoredRequest:
    """The record kept for a lease or a waiting entry. Lengths, times and names only, no prompt.

    ``request``'s times are those of its gateway's clock, which read ``sent_s`` when it sent the record (0: not known,
    as of older versions). Scripts note when they took it, so nobody has to know how far that clock is off
    (:meth:`scheduling.state.codec.Entry.queued_request`).
    """

    request: QueuedRequest
    facts: RequestFacts
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """What is left of one scope's limits; None: it has no such limit, or it is shared with users unknown."""

    requests: float | None = None
    tokens: float | None = None
    inflight: int | None = None  # not left, but taken


class AdmissionStatus(StrEnum):
    GRANTED = "granted"
    QUEUED = "queued"
    REFUSED = "refused"
    ENDED = "ended"  # it has already ended, with ``reason``
    STALE = "stale"  # only from ``requeue``: that attempt no longer holds a lease


@quickly_made
@dataclass(frozen=True, slots=True)
class Admission:
    """Answer of ``admit`` and ``requeue``."""

    status: AdmissionStatus
    backend: str = ""  # where it was granted
    position: int = 0  # requests waiting in the pool, this one included, where it was queued
    reason: Reason | None = None  # why it was refused, or how it ended
    retry_s: float | None = None  # when refused: expected time until it could pass; None: waiting will not help
    wakes_s: float | None = None  # when queued: in how long a sleeping pool is expected to serve; None: it is awake
    inflight: int = 0  # running and waiting requests of the entitlement, after this call
    level_tokens: float | None = None  # its bucket after this call; None: no token budget is enforced
    attempt: int = 1  # the attempt that now holds or waits
    seq: int = 0  # arrival number in the pool; a request is announced and requeued under it
    prefill: int = 0  # what it holds of its replica's prefill credit until its first token [prompt tokens]
    limits: tuple[LimitLeft, ...] = ()  # of its key and user, after this call, in the order of its scopes
    over: tuple[int, str] | None = None  # the scope that refused it, and which of its limits


@dataclass(frozen=True, slots=True)
class BucketDebit:
    """Tokens to take from a bucket whose state Redis lost."""

    entitlement: str
    tokens: float
    rate: float  # tokens/s
    depth: float  # tokens


class FinishStatus(StrEnum):
    OK = "ok"
    ENDED = "ended"  # someone else ended it first, with ``reason``: nothing changed
    STALE = "stale"  # it lives at another attempt: nothing changed


@dataclass(frozen=True, slots=True)
class FinishResult:
    status: FinishStatus
    reason: Reason | None = None


class RenewStatus(StrEnum):
    HOLDS = "h"
    WAITS = "w"
    ENDED = "e"
    STALE = "s"  # it lives at another attempt, or at another gateway
    UNKNOWN = "u"  # state was lost: announce it


@dataclass(frozen=True, slots=True)
class Renewal:
    """Answer of ``renew`` for one request. A lease names its grant, in case the notification was lost."""

    request_id: str
    attempt: int
    status: RenewStatus
    backend: str = ""
    policy: str = ""
    why: str = ""
    reason: Reason | None = None
    prefill: int = 0  # as in an admission


class AnnounceStatus(StrEnum):
    OK = "ok"
    KNOWN = "known"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class AnnounceResult:
    status: AnnounceStatus
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class GrantItem:
    """One decision of the leader, as it is written."""

    request_id: str
    attempt: int
    backend: str
    cap: int  # how many of its entitlement may run
    policy: str = ""  # "priority@1"
    why: str = ""  # one line
    point: str = ""  # up to which its prompt is believed to be cached there
    cached_tokens: int = 0  # of it that are


class GrantStatus(StrEnum):
    OK = "ok"
    GONE = "gone"  # it does not wait at that attempt any more
    FULL = "full"  # the replica is not ready or has no room
    ENT = "ent"  # its entitlement runs as many as it may
    AWAY = "away"  # nobody listens for its gateway: nothing was changed


@dataclass(frozen=True, slots=True)
class EvictItem:
    """A waiting request that preemptible ones are to make room for, as it is written."""

    request_id: str
    attempt: int
    cap: int  # how many of its entitlement may run
    exclude_backend: str = ""
    policy: str = ""
    why: str = ""


class Fenced(Exception):
    """The pool's epoch is not the caller's: nothing was changed. Stop leading and stand for election again."""


@dataclass(frozen=True, slots=True)
class Election:
    """Answer of ``elect``. ``ttl_s`` counts from the moment Redis answered: measure it from before the call."""

    leader: bool
    epoch: int  # ours when leader, else 0
    holder: str
    ttl_s: float


@dataclass(frozen=True, slots=True)
class SweptRequest:
    """A request whose gateway stopped renewing it. Its ledger entry is already on the stream."""

    request_id: str
    attempt: int
    entitlement: str
    backend: str  # "" when it was waiting
    gateway: str


@dataclass(frozen=True, slots=True)
class Attempts:
    """What one gateway's attempts at one replica came to within about a second."""

    succeeded: int = 0  # streams that began, whole answers
    failed: int = 0  # whatever the status
    refused: int = 0  # answered "not admitted": 429, 503
    moved: int = 0  # pieces of answers that arrived
    why: str = ""  # of the last failure or refusal
    cut: int = 0  # of those that failed: streams that had begun
    by_tenant: dict[str, tuple[int, int]] = field(default_factory=dict)  # tried and failed, of those that had failures
    empty_by_tenant: dict[str, tuple[int, int]] = field(default_factory=dict)  # tried, and ended without content: of
    # all tenants, since an answer of the pool had none

    @property
    def tried(self) -> int:
        """How many there were: a stream that began and failed is one."""
        return self.succeeded + self.failed - self.cut


class EventKind(StrEnum):
    QUEUED = "q"
    LEFT = "x"
    FREED = "f"
    SUSPECT = "s"
    PAUSED = "p"
    REPORT = "a"


@dataclass(frozen=True, slots=True)
class Event:
    """A notification for the leader. Losing or doubling one changes nothing but latency."""

    id: str
    kind: EventKind
    request: QueuedRequest | None = None  # QUEUED
    request_id: str = ""  # QUEUED, LEFT
    backend: str = ""  # FREED, SUSPECT, PAUSED
    why: str = ""  # SUSPECT, PAUSED
    pause_ms: int = 0  # PAUSED, MAX_PAUSE_S at most; 0: it was the last that offered slots, and goes on
    refused: bool = False  # PAUSED: it admitted nothing, and failed nothing
    attempts: Mapping[str, Attempts] = field(default_factory=dict)  # REPORT: by replica


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry of the ledger stream. ``record`` is None when it could not be read: set it aside, then delete it."""

    id: str
    record: LedgerRecord | None
    took: int = 0  # tokens that its request took from its bucket, if it was charged at all
    fields: tuple[bytes, ...] = ()  # what could not be read
    why: str = ""


@dataclass(frozen=True, slots=True)
class BucketLevel:
    """A bucket that is whole: tokens it holds, tokens/s and tokens of its last charge."""

    level: float
    rate: float
    depth: float


@dataclass(frozen=True, slots=True)
class PoolAudit:
    """Buckets, leases and ledger at one instant."""

    now_ms: int
    born: str  # names the data set
    ledger_id: tuple[int, int]  # of the last entry that the ledger stream ever had
    reserved: dict[str, int]  # entitlement -> tokens that what is in flight was charged
    buckets: dict[str, BucketLevel]


@dataclass(frozen=True, slots=True)
class LedgerProgress:
    """How far the ledger stream was moved to the database. Ids are (ms, number); None: the stream is empty."""

    newest: tuple[int, int] | None
    oldest: tuple[int, int] | None
    born: bytes  # names the data set: another one after Redis lost its data; empty until a leader was elected


class Offer(NamedTuple):
    """What a ready replica offers, as scripts say it."""

    slots: int = 0
    kv_tokens: int = 0
    prefill_credit: int = 0  # prompt tokens that may be granted and not prefilled; 0: no bound
    longest: int = 0  # KV tokens of one request; 0: no bound
    speed: int = FULL_SPEED  # per mille of the fastest of its pool
    cache_trust: int = -1  # per mille of what is expected to be cached there of a prompt; -1: nothing is expected
    uncounted_most: int = 0  # tokens of it that may be in flight and not count against the credit
    token_us: int = 0  # between two tokens of one that is slower than others


@dataclass(frozen=True, slots=True)
class BackendTotals:
    """A replica in shared state: what it offers (0 when not ready) and the sums over its leases."""

    ready: bool
    slots: int
    kv_tokens: int
    running: int  # sequences
    kv_used: int
    work_tokens: int
    prefill_credit: int = 0  # prompt tokens that may be granted and not prefilled; 0: no bound
    prefill_used: int = 0  # in a look: those that count (core/capacity/prefill_pace.py), else those that are held
    falls_ms: int = 0  # in how many ms fewer count if no first token comes; 0: not before
    prefill_owned: int = 0  # of ``prefill_used``: by owners of reserved capacity
    longest: int = 0  # KV tokens of one request; 0: no bound
    speed: int = FULL_SPEED  # per mille of the fastest of its pool
    cache_trust: int = -1  # as :class:`Offer` has it
    uncounted_most: int = 0
    beginnings: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of prompts in flight, in a look: by point
    expected_tokens: int = 0  # to be cached of the prompts granted there so far, as far as the index knew them
    prompt_tokens: int = 0  # of those prompts
    token_us: int = 0  # as :class:`Offer` has it


def _views(backends: Mapping[str, BackendTotals], observed_s: float) -> dict[str, BackendView]:
    return {
        name: BackendView(
            id=name,
            slots=b.slots,
            kv_tokens=b.kv_tokens,
            running=b.running,
            kv_used=b.kv_used,
            work_tokens=float(b.work_tokens),
            ready=b.ready and b.slots > 0,  # one that is paused gets nothing, and holds up nobody
            observed_s=observed_s,
            prefill_credit=b.prefill_credit,
            prefill_used=b.prefill_used,
            prefill_owned=b.prefill_owned,
            falls_s=b.falls_ms / 1000.0,
            longest=b.longest,
            speed=b.speed,
            token_us=b.token_us,
            cache_trust=max(0, b.cache_trust),
            uncounted_most=b.uncounted_most,
            uncounted=Beginnings(b.beginnings),
        )
        for name, b in backends.items()
    }


@dataclass(frozen=True, slots=True)
class Look:
    """What one decision needs to know, at one instant of Redis time."""

    now_ms: int
    rebuilding_ms: int  # 0 when grants are allowed
    backends: dict[str, BackendTotals]  # the ready ones
    running: dict[str, int]  # of the entitlements that were asked for
    preemptible: int = 0  # how many preemptible requests run
    requests: int = 0  # how many run in all

    def pool_view(self, observed_s: float) -> PoolView:
        """A fresh view each time, for ``step`` writes into it."""
        return PoolView(_views(self.backends, observed_s), dict(self.running))


@dataclass(frozen=True, slots=True)
class EntitlementTotals:
    """An entitlement in shared state: sums over its leases and waiting entries, and its bucket now."""

    running: int
    waiting: int
    kv_tokens: int
    level_tokens: float | None
    service_ms: float | None
    served_tokens: int = 0  # input and output since the state began: what was metered of running and ended requests
    refused_tokens: int = 0  # what contention refused, likewise
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """How many entries there are: what the totals are sums over. Counted by Redis itself, in O(1)."""

    leases: int = 0  # expiries of what runs
    held: int = 0  # entries of what runs
    waiting: int = 0
    queue: int = 0
    leaving: int = 0
    evicted: int = 0
    unread: int = 0  # entries of the ledger stream that could not be read, set aside


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool's totals at one instant of Redis time."""

    now_ms: int
    epoch: int
    leader: str
    rebuilding_ms: int  # 0 when new work is admitted
    service_ms: float | None  # moving average of a slot's occupation
    running: int
    waiting: int
    waiting_bytes: int
    ledger_waiting: int  # ended requests that are not in the database yet
    backends: dict[str, BackendTotals] = field(default_factory=dict)
    entitlements: dict[str, EntitlementTotals] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    counts: Counts = Counts()
    rebuilt: int = 0  # how often totals differed from the entries and were written anew
    rebuilt_ms: int = 0  # when last; 0: never
    kept: int | None = None  # free slots that are kept for baselines; None: as many as are configured
    waking_ms: int = 0  # in how long a pool without ready replicas is expected to serve; 0: nobody wakes one
    lost_ms: int = 0  # when the first leader found the data of before lost; 0: there was none before

    def kv_running(self, waiting: Iterable[QueuedRequest]) -> dict[str, int]:
        """KV tokens that each entitlement's running requests reserve. What waits has a reservation as well, which
        counts in the entitlement's sum, and no cache yet."""
        running = {name: e.kv_tokens for name, e in self.entitlements.items()}
        for request in waiting:
            if request.entitlement in running:
                running[request.entitlement] -= request.kv_tokens
        return {name: tokens for name, tokens in running.items() if tokens > 0}

    def differences(self) -> list[str]:
        """What cannot be true at one instant: "run is 99, leases are 0". Empty in a sound state."""
        n, differences = self.counts, []
        ents, backends = self.entitlements.values(), self.backends.values()
        for name, total, what, count in (
            ("run", self.running, "leases", n.leases),
            ("run", self.running, "their entries", n.held),
            ("wait", self.waiting, "waiting requests", n.waiting),
            ("wait", self.waiting, "their entries", n.queue),
            ("wait", self.waiting, "the sum over entitlements", sum(e.waiting for e in ents)),
            ("leaving", n.leaving, "evicted requests", n.evicted),
        ):
            if total != count:
                differences.append(f"{name} is {total}, {what} {count}")
        sequences = sum(b.running for b in backends)
        if not self.running <= sequences <= self.running * MAX_SEQUENCES:
            differences.append(f"run is {self.running}, sequences on replicas {sequences}")
        if (of_entitlements := sum(e.running for e in ents)) != sequences:
            differences.append(f"sequences on replicas are {sequences}, the sum over entitlements {of_entitlements}")
        for name, b in self.backends.items():
            if b.prefill_used < 0 or (b.running == 0 and b.prefill_used):
                differences.append(f"prefill of {name} is {b.prefill_used}, it runs {b.running}")
            if not 0 <= b.prefill_owned <= max(0, b.prefill_used):
                differences.append(f"owners' prefill of {name} is {b.prefill_owned}, of {b.prefill_used}")
        return differences

    def pool_view(self, observed_s: float) -> PoolView:
        """The same facts as one scheduling decision sees them; a fresh view each time, for ``step`` writes into it."""
        running = {name: e.running for name, e in self.entitlements.items()}
        return PoolView(_views(self.backends, observed_s), running, dict(self.standings))
