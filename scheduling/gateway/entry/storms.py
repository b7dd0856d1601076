"""A cheap door for keys that storm: their requests are refused before they cost what a refusal costs.

A client that comes back at once, again and again, whatever ``Retry-After`` says, makes the gateway parse, estimate, ask
shared state and write a ledger row each time, and what that costs all other clients pay. So a key that is refused far
more often than it is admitted **storms**, and while it does, one refusal speaks for what comes in the ``MEMO_S`` after
it: the same reason, from memory, after the key was checked and its body read. Such an answer is held back for
``HOLD_S``, so that who sends again as soon as it has its answer sends less.

* No request is refused this way for longer than ``MEMO_S`` after shared state was last asked for its key: the next one
  asks, and one that is admitted opens the door.
* Clients that wait as they are told come back at a third of the rate at which they are served
  (:func:`scheduling.core.admission.rule.come_back`), and an admission takes a refusal back: a key of such clients does
  not storm, unless more than ``STORM_AFTER`` of them come for the first time within a moment. Those are told times that
  are spread over as much again, since shared state does not count them.
* All keys of an entitlement together storm at :data:`OF_A_TENANT` times the rate of one, and what refuses the
  entitlement then speaks for each of them: who takes hundreds of keys by turns storms with none of them.
* It is counted (``quartermaster_storm_refusals_total``) and logged when it begins and ends, but has no ledger row.

What is refused for what it is (a body that is wrong, a model that the key has not got) says nothing of the next
request, so each is looked at and told what is wrong with it. A key that sends such requests as often as one that storms
is held back as long, and from then on they leave no ledger row either: there would be thousands a second. So are the
keys of a tenant which together send :data:`OF_A_TENANT` times as many.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from scheduling.core.outcomes import Reason
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.errors import Refusal

log = logging.getLogger(__name__)

STORM_PER_S = 20.0  # refusals of one key that cost what they cost
STORM_AFTER = 200  # as many beyond that, and beyond its admissions, and the key storms
OF_A_TENANT = 10.0  # times what is one key's, for all keys of a tenant: it may have thousands, and take them by turns
STORM_MOST = 240  # so that it is over two seconds after the refusals are
MEMO_S = 0.05
HOLD_S = 0.5
MAX_HELD = 2_000  # answers held back in this process; what comes then is answered at once
MAX_DRAINED = 256 * 1024  # bytes of a body that are read for the connection's sake; with a longer one it is closed

# What is refused whatever the request looks like, or until others are served. A body that is wrong is not among them.
# All but the last refuse the entitlement, whatever its keys are.
STANDING = frozenset({
    Reason.CONCURRENCY, Reason.TOKEN_BUDGET, Reason.KV_BUDGET, Reason.LOW_PRIORITY, Reason.QUEUE_FULL,
    Reason.NO_BACKEND, Reason.NO_ADAPTER, Reason.REBUILDING, Reason.QUOTA_EXCEEDED, Reason.TENANT_PAUSED,
    Reason.NOT_ENTITLED,
    Reason.KEY_LIMIT,  # not USER_LIMIT: other users of the key are not at theirs
})  # fmt: skip
# What is refused for what it is, before shared state took it. Users are names that clients make up: all count as one.
OF_THEIR_OWN = frozenset({
    Reason.INVALID_REQUEST, Reason.UNKNOWN_MODEL, Reason.TOO_LARGE, Reason.TOO_LONG, Reason.KEY_REUSED,
    Reason.DUPLICATE, Reason.ALREADY_DONE, Reason.BUDGET_EXCEEDED, Reason.TENANT_CONNECTIONS,
    Reason.TOKEN_BUDGET, Reason.KV_BUDGET, Reason.KEY_LIMIT, Reason.USER_LIMIT,
})  # fmt: skip
# where waiting does not help, a smaller one passes
_OF_ITS_SIZE = frozenset({Reason.TOKEN_BUDGET, Reason.KV_BUDGET, Reason.KEY_LIMIT})


@dataclass(slots=True)
class _Key:
    """What is known of a key that was refused lately. Times are loop times."""

    name: str  # for the log
    score: float  # refusals less admissions less ``STORM_PER_S``
    at: float  # when that was so
    until: float = 0.0  # the last refusal speaks for what comes before this
    refusal: Refusal | None = None  # the last one, while it storms
    back_at: float = 0.0  # when its client was told to come back
    since: float = 0.0  # when the storm began
    refused: int = 0  # without asking, in this storm
    times: float = 1.0  # as often as one key may


class Storms:
    """The keys of one gateway that were refused lately."""

    def __init__(self) -> None:
        # by `Access.door`: a key at each entitlement it opens; forgotten when their score is 0
        self._keys: dict[str, _Key] = {}
        self._entitlements: dict[str, _Key] = {}  # by entitlement, all keys of which are refused alike
        # by key, and by tenant: those whose requests are refused for what they are
        self._mistaken: dict[str, _Key] = {}
        self.held_back = 0

    def __bool__(self) -> bool:
        return bool(self._keys or self._entitlements)

    def refused(self, access: Access, refusal: Refusal, now: float) -> None:
        """A request of this key was refused in full."""
        if not _stands(refusal):
            return
        tenant, entitlement = access.entitlement.tenant, access.entitlement.id
        key = self._keys.get(access.door)
        if key is None:
            key = self._keys[access.door] = _Key(f"key {access.key.id} of {tenant}", 0.0, now)
        self._remember(key, refusal, now)
        if refusal.reason is Reason.KEY_LIMIT:
            return
        all_of_them = self._entitlements.get(entitlement)
        if all_of_them is None:
            name = f"all keys of entitlement {entitlement} of {tenant}"
            all_of_them = self._entitlements[entitlement] = _Key(name, 0.0, now, times=OF_A_TENANT)
        self._remember(all_of_them, refusal, now)

    def _remember(self, key: _Key, refusal: Refusal, now: float) -> None:
        self._add(key, 1.0, now)
        if key.score < STORM_AFTER * key.times and key.refusal is None:
            return
        if key.refusal is None:
            key.since, key.refused = now, 0
            log.warning(
                "%s storms: it is refused (%s) and comes back at once; for as long it is answered without asking",
                key.name,
                refusal.reason.value,
            )
        key.refusal = refusal
        key.until = now + MEMO_S
        key.back_at = now + (refusal.retry_s or 0.0)

    def mistaken(self, access: Access, refusal: Refusal, now: float) -> bool:
        """Counts a refused request of this key. True where so many of it, or of all keys of its tenant, are invalid in
        themselves that it is held back and leaves no ledger row."""
        if _stands(refusal) or refusal.reason not in OF_THEIR_OWN:
            return False
        tenant = access.entitlement.tenant
        one, all_of_them = access.key.id, f"all keys of {tenant}"
        return self._too_many(one, f"key {one} of {tenant}", 1.0, refusal, now) or self._too_many(
            all_of_them, all_of_them, OF_A_TENANT, refusal, now
        )

    def _too_many(self, who: str, name: str, times: float, refusal: Refusal, now: float) -> bool:
        key = self._mistaken.get(who)
        if key is None:
            key = self._mistaken[who] = _Key(name, 0.0, now, times=times)
        self._add(key, 1.0, now)
        if key.score < STORM_AFTER * times and key.refusal is None:
            return False
        if key.refusal is None:
            key.refusal, key.since, key.refused = Refusal(refusal.reason), now, 0
            log.warning(
                "%s: what is refused (%s) comes again and again; for as long it is held back and leaves no ledger rows",
                key.name,
                refusal.reason.value,
            )
        key.refused += 1
        return True

    def admitted(self, access: Access) -> None:
        """A request of this key was granted or queued: the next one may be."""
        for key in (self._keys.get(access.door), self._entitlements.get(access.entitlement.id)):
            if key is not None:
                key.score = max(0.0, key.score - 1.0)
                key.until = 0.0

    def answer(self, access: Access, now: float) -> Refusal | None:
        """How a request of this key is refused without asking; None: it is to be asked for. Its entitlement's question
        is taken only by a key that does ask, so that one in a storm does not take it from the others."""
        return self._answer(self._keys.get(access.door), now) or self._answer(
            self._entitlements.get(access.entitlement.id), now
        )

    def _answer(self, key: _Key | None, now: float) -> Refusal | None:
        if key is None or key.refusal is None:
            return None
        if now >= key.until:
            key.until = now + MEMO_S  # this one asks; those beside it wait for what it hears
            return None
        self._add(key, 1.0, now)
        key.refused += 1
        last = key.refusal
        retry_s = last.retry_s
        if retry_s:
            left_s = max(1.0, key.back_at - now)
            retry_s = left_s if last.reason is Reason.QUOTA_EXCEEDED else left_s * (1 + random.random())
        return Refusal(last.reason, param=last.param, status=last.status, retry_s=retry_s, **last.fields)

    def forget(self, now: float) -> None:
        """Once a second: storms that are over end, and keys that were not refused lately are forgotten."""
        for keys in (self._keys, self._entitlements):
            self._calm(keys, "%s storms no more: %d requests were refused without asking in %.0f s", now)
        self._calm(self._mistaken, "%s does so no more: %d requests left no ledger rows in %.0f s", now)

    def _calm(self, keys: dict[str, _Key], over: str, now: float) -> None:
        """``over`` is what is said of a storm that ends: the key, how many requests, and in how many seconds."""
        for key_id, key in list(keys.items()):
            self._add(key, 0.0, now)
            if key.refusal is not None and key.score < STORM_AFTER * key.times:
                key.refusal = None
                log.warning(over, key.name, key.refused, now - key.since)
            if key.score <= 0.0:
                del keys[key_id]

    def _add(self, key: _Key, by: float, now: float) -> None:
        key.score = min(STORM_MOST * key.times, max(0.0, key.score - STORM_PER_S * key.times * (now - key.at)) + by)
        key.at = now


def _stands(refusal: Refusal) -> bool:
    """Whether it speaks for the next request of its key as well."""
    return refusal.reason in STANDING and not (refusal.retry_s is None and refusal.reason in _OF_ITS_SIZE)
