"""How much of a pool one key, and one user of it, may take.

A *scope* is one key or one user in one pool, whatever entitlements of that pool it uses; its limits are requests and
tokens a minute (token buckets as deep as a minute's worth) and requests in flight (waiting and running). They stand
beside the rules of :mod:`scheduling.core.admission.rule` and come before them: a scope that is over its limit is
refused whatever room there is.
Tokens are charged input + output bound and settled to the actual use; a request that never ran gives back all it took.

This is the meaning of ``scheduling/state/scripts/shared/limits.lua``. What a request's scopes are travels with it, as
one text (:func:`write_limits`): whoever frees what it holds needs no catalog. Times are milliseconds of state time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduling.core.admission.rule import Over, come_back, refill, stored_level
from scheduling.core.outcomes import Reason
from scheduling.core.types import RateLimits

MINUTE_MS: Final = 60_000
KEPT_AT_MOST_MS: Final = 86_400_000  # a bucket deeper in debt is forgotten after a day
USERS_TRACKED: Final = 10_000  # of one tenant in a pool at a time; further ones count together as one
REST: Final = "-"  # the user that those count as
REQUESTS, TOKENS, CONCURRENCY = "requests", "tokens", "concurrency"
LIMITED: Final = {REQUESTS: "requests a minute", TOKENS: "tokens a minute", CONCURRENCY: "requests in flight"}

_SCOPE = re.compile(r" ([^ =]+)=(\d+),(\d+),(\d+)")


def limit_of(limits: RateLimits, what: str) -> int:
    """One of them by name."""
    if what == REQUESTS:
        return limits.requests_per_minute
    return limits.tokens_per_minute if what == TOKENS else limits.concurrency


@dataclass(frozen=True, slots=True)
class Scope:
    """Who is limited, and whose it is: ``~acme:k:<key>``, ``~acme:uk:<key>:<digest of the user>``, or
    ``~acme:up:<project>:<digest of the user>``. Older trees wrote an entitlement's name in place of the tenant's."""

    name: str
    limits: RateLimits

    @property
    def owner(self) -> str:
        """Among whose users it is tracked."""
        return self.name.partition(":")[0]

    @property
    def of_user(self) -> bool:
        return self.name.partition(":")[2].startswith("u")

    @property
    def rest(self) -> Scope:
        """The scope of the users beyond those that are tracked."""
        return replace(self, name=f"{self.name.rpartition(':')[0]}:{REST}")


@dataclass(frozen=True, slots=True)
class Limited:
    """What a request takes of its scopes."""

    charge: int  # tokens: input and output bound
    scopes: tuple[Scope, ...]


def owner_name(tenant: str, batch: bool) -> str:
    """How the names of a tenant's scopes begin. Lines of batches are counted apart from requests."""
    return f"~{tenant}~batch" if batch else f"~{tenant}"  # no slug has a tilde: no entitlement is called so


def write_limits(limited: Limited) -> str:
    """As a request's record keeps it; empty where it has no scope."""
    if not limited.scopes:
        return ""
    words = (
        f"{s.name}={s.limits.requests_per_minute},{s.limits.tokens_per_minute},{s.limits.concurrency}"
        for s in limited.scopes
    )
    return f"{limited.charge} {' '.join(words)}"


def read_limits(text: str) -> Limited:
    """What :func:`write_limits` wrote."""
    if not text:
        return Limited(0, ())
    scopes = (Scope(m[1], RateLimits(int(m[2]), int(m[3]), int(m[4]))) for m in _SCOPE.finditer(text))
    return Limited(int(text.partition(" ")[0]), tuple(scopes))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a scope has left at a moment: levels of its buckets, what it has in flight, and until when its refused
    clients were told to come back [ms from now]."""

    requests: float
    tokens: float
    inflight: int = 0
    told_ms: int = 0

    @classmethod
    def full(cls, limits: RateLimits, inflight: int = 0) -> Standing:
        return cls(float(limits.requests_per_minute), float(limits.tokens_per_minute), inflight)

    def refilled(self, limits: RateLimits, at_ms: int, now_ms: int) -> Standing:
        """Its buckets now; ``at_ms``: when they were as they are."""

        def level(kept: float, depth: int) -> float:
            return refill(kept, at_ms, depth / 60, depth, now_ms)

        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        return replace(self, requests=level(self.requests, requests), tokens=level(self.tokens, tokens))

    def taken(self, limits: RateLimits, charge: int) -> Standing:
        """After one more request, as shared state keeps it."""
        return self._moved(limits, -1, -charge)

    def settled(self, limits: RateLimits, charge: int, used: int, ran: bool) -> Standing:
        """After a request that was charged ``charge`` ended."""
        return self._moved(limits, 0 if ran else 1, charge - used)

    def _moved(self, limits: RateLimits, requests: int, tokens: int) -> Standing:
        def level(old: float, by: int, depth: int) -> float:
            return stored_level(min(depth, old + by)) if depth else 0.0

        return replace(
            self,
            requests=level(self.requests, requests, limits.requests_per_minute),
            tokens=level(self.tokens, tokens, limits.tokens_per_minute),
        )

    def kept_ms(self, limits: RateLimits) -> int:
        """For how long it differs from one that nobody used, and is remembered."""
        longest = MINUTE_MS
        for level, depth in ((self.requests, limits.requests_per_minute), (self.tokens, limits.tokens_per_minute)):
            if depth:
                longest = max(longest, math.ceil((1 - level / depth) * MINUTE_MS))
        return min(KEPT_AT_MOST_MS, longest)


def first_over(scopes: Sequence[Scope], standings: Iterable[Standing], charge: int, service_ms: float) -> Over | None:
    """The first limit that one more request would exceed. ``service_ms``: for how long one of the entitlement's
    requests occupies a slot. Refused clients are told to come back one after the other, as those of an entitlement
    are (:func:`scheduling.core.admission.rule.come_back`)."""
    for number, (scope, now) in enumerate(zip(scopes, standings, strict=True)):
        limits = scope.limits
        first_ms: float | None
        if limits.requests_per_minute and now.requests < 1:
            every_ms = MINUTE_MS / limits.requests_per_minute
            what, first_ms = REQUESTS, (1 - now.requests) * every_ms
        elif limits.tokens_per_minute and charge > now.tokens:
            every_ms = charge / limits.tokens_per_minute * MINUTE_MS
            missing_ms = (charge - now.tokens) / limits.tokens_per_minute * MINUTE_MS
            what, first_ms = TOKENS, missing_ms if charge <= limits.tokens_per_minute else None
        elif limits.concurrency and now.inflight >= limits.concurrency:
            every_ms = first_ms = service_ms / limits.concurrency
            what = CONCURRENCY
        else:
            continue
        reason = Reason.USER_LIMIT if scope.of_user else Reason.KEY_LIMIT
        if first_ms is None:
            return Over(number, what, reason, None, None)
        return Over(number, what, reason, *come_back(first_ms, every_ms, now.told_ms))
    return None
