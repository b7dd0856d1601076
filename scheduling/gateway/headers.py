"""The headers that every answer carries, as the tuples ASGI wants."""

from __future__ import annotations

import random
from collections.abc import Sequence

from scheduling.core.admission.key_limits import Scope
from scheduling.core.types import EntitlementSpec
from scheduling.state.types import LimitLeft

Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")
SSE: Header = (b"content-type", b"text/event-stream; charset=utf-8")
NO_CACHE: Header = (b"cache-control", b"no-cache")
NO_BUFFERING: Header = (b"x-accel-buffering", b"no")  # nginx would hold tokens back
NO_SNIFFING: Header = (b"x-content-type-options", b"nosniff")  # an engine's words are no page, whatever they look like
CLOSE: Header = (b"connection", b"close")
NO_RETRY: Header = (b"x-should-retry", b"false")
SPREAD = 0.25  # of a wait that a client is told, either way
MAX_RETRY_S = 120.0  # above two minutes the SDK does not retry at all
_NOW = b"0s"
_SOON = b"1s"


def duration(seconds: float) -> bytes:
    """``1s``, ``6m0s``, ``2h0m5s``: the way OpenAI writes resets. Rounded up, never negative."""
    whole = int(seconds)
    whole += whole < seconds
    if whole <= 0:
        return _NOW
    minutes, s = divmod(whole, 60)
    if not minutes:
        return b"%ds" % s
    hours, m = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, m, s) if hours else b"%dm%ds" % (m, s)


def retry_after(seconds: float, spread: float | None = None) -> list[Header]:
    """``retry-after-ms`` and ``retry-after`` for a wait of ``seconds``, jittered by +-25 % so that refused clients do
    not come back together. ``spread`` on [0, 1) is drawn unless given. For a longer wait than ``MAX_RETRY_S`` a
    client that sends again by itself is told not to: it would be refused again."""
    if spread is None:
        spread = random.random()
    wait = min(max(seconds, 0.05) * (1 - SPREAD + 2 * SPREAD * spread), MAX_RETRY_S)
    sent = [
        (b"retry-after-ms", b"%d" % max(1, int(wait * 1000))),
        (b"retry-after", b"%d" % max(1, int(wait + 0.999))),
    ]
    return sent if seconds < MAX_RETRY_S else [*sent, NO_RETRY]


def after_period(seconds: float, spread: float | None = None) -> list[Header]:
    """Headers of a refusal until a day or month ends: the true time, however long, and nothing to retry before.
    ``spread`` on [0, 1) puts the first attempts of the new period somewhere into its first minute."""
    if spread is None:
        spread = random.random()
    return [(b"retry-after", b"%d" % (seconds + 1 + 60 * spread)), NO_RETRY]


def _level_headers(what: bytes, limit: int, left: float) -> list[Header]:
    """Of a bucket that refills in a minute."""
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % max(0.0, left)),
        (b"x-ratelimit-reset-" + what, duration((limit - left) / limit * 60)),
    ]


class Limits:
    """``x-ratelimit-*`` of one entitlement: the fixed parts are made once per catalog.

    ``longest``: tokens of the model's context. Without a token budget what bounds tokens is that every request in
    flight may have so many; 0 says nothing of them then.
    """

    __slots__ = ("_burst", "_limit_inflight", "_limit_requests", "_limit_tokens", "_longest", "_rate", "_requests")

    def __init__(self, entitlement: EntitlementSpec, longest: int = 0) -> None:
        self._requests = entitlement.concurrency
        self._longest = longest
        self._limit_inflight = (b"x-ratelimit-limit-tokens", b"%d" % (entitlement.concurrency * longest))
        self._limit_requests = (b"x-ratelimit-limit-requests", b"%d" % entitlement.concurrency)
        self._rate = entitlement.tokens_per_s
        self._burst = entitlement.burst_tokens
        self._limit_tokens = (b"x-ratelimit-limit-tokens", b"%d" % entitlement.burst_tokens)

    def narrower(
        self, inflight: int, level_tokens: float | None, limited: Sequence[tuple[Scope, LimitLeft]]
    ) -> list[Header]:
        """As ``render``, with what a key or user has of its own in the place of the entitlement's: of several the last,
        which is the narrowest. A user with limits is told of these alone, and so learns nothing of what others use."""
        requests: list[Header] = []
        tokens: list[Header] = []
        users = [(scope, left) for scope, left in limited if scope.of_user]
        for scope, left in users or limited:
            limits = scope.limits
            if left.requests is not None:
                requests = _level_headers(b"requests", limits.requests_per_minute, left.requests)
            elif left.inflight is not None:
                free = max(0, limits.concurrency - left.inflight)
                requests = [
                    (b"x-ratelimit-limit-requests", b"%d" % limits.concurrency),
                    (b"x-ratelimit-remaining-requests", b"%d" % free),
                    (b"x-ratelimit-reset-requests", _NOW if free else _SOON),
                ]
            if left.tokens is not None:
                tokens = _level_headers(b"tokens", limits.tokens_per_minute, left.tokens)
        wide = [] if users else self.render(inflight, level_tokens)
        return (requests or wide[:3]) + (tokens or wide[3:])

    def render(self, inflight: int, level_tokens: float | None) -> list[Header]:
        """Requests are counted in flight (an entitlement's limit is its concurrency); tokens are the bucket's level,
        or where there is no bucket what the requests that may still come could have."""
        left = self._requests - inflight
        out = [
            self._limit_requests,
            (b"x-ratelimit-remaining-requests", b"%d" % left if left > 0 else b"0"),
            (b"x-ratelimit-reset-requests", _NOW if left > 0 else _SOON),
        ]
        if level_tokens is not None and self._rate > 0:
            out.append(self._limit_tokens)
            out.append((b"x-ratelimit-remaining-tokens", b"%d" % level_tokens if level_tokens > 0 else b"0"))
            missing = self._burst - level_tokens
            out.append((b"x-ratelimit-reset-tokens", duration(missing / self._rate)))
        elif self._longest and self._rate <= 0:
            out.append(self._limit_inflight)
            out.append((b"x-ratelimit-remaining-tokens", b"%d" % (left * self._longest) if left > 0 else b"0"))
            out.append((b"x-ratelimit-reset-tokens", _NOW if left > 0 else _SOON))
        return out
