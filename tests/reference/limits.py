"""Limits of keys and users in memory: their buckets, who is tracked, and what is in flight (``shared/limits.lua``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduling.core.admission.key_limits import MINUTE_MS, USERS_TRACKED, Limited, Scope, read_limits, write_limits
from scheduling.core.admission.key_limits import Standing as LimitStanding
from scheduling.core.admission.rule import MAX_TOLD_MS
from scheduling.state import codec
from scheduling.state.codec import Entry


@dataclass(slots=True)
class Kept:
    """A scope's buckets as they were at a time; ``at`` None: only its refused clients are known."""

    standing: LimitStanding | None
    at: int | None
    told: int | None
    until: int  # when it is forgotten


class LimitMemory:
    """The keys of a pool that limits are kept in. ``clock_ms`` plays Redis ``TIME``."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._now = clock_ms
        self.users_tracked = USERS_TRACKED
        self.flush()

    def flush(self) -> None:
        self.limits: dict[str, Kept] = {}  # of scopes: keys and users
        self.users: dict[str, dict[str, int]] = {}  # by entitlement: who is tracked, until when
        self.users_until: dict[str, int] = {}  # when these are forgotten as a whole
        self.using: dict[str, int] = {}  # what scopes with a limit of concurrency have in flight

    def _limited(self, e: Entry) -> Limited:
        return read_limits(codec.decode_request(e.record).facts.limits)

    def _kept(self) -> dict[str, Kept]:
        for name in [name for name, kept in self.limits.items() if kept.until <= self._now()]:
            del self.limits[name]
        return self.limits

    def _tracked(self, ent: str) -> dict[str, int]:
        if self.users_until.get(ent, 0) <= self._now():
            return {}
        return self.users[ent]

    def _limit(self, scope: Scope) -> LimitStanding:
        now, using = self._now(), self.using.get(scope.name, 0) if scope.limits.concurrency else 0
        kept = self._kept().get(scope.name)
        standing = LimitStanding.full(scope.limits, using)
        if kept is not None:
            if kept.standing is not None and kept.at is not None:
                standing = replace(kept.standing.refilled(scope.limits, kept.at, now), inflight=using)
            standing = replace(standing, told_ms=min(MAX_TOLD_MS, max(0, (kept.told or 0) - now)))
        return standing

    def _placed(self, limited: Limited) -> Limited:
        """Users beyond those that are tracked count as one."""
        now = self._now()
        more: set[str] = set()  # of this request: the user of its key and that of its project are two

        def place(scope: Scope) -> Scope:
            known = self._tracked(scope.owner)
            if not scope.of_user or known.get(scope.name, 0) > now:
                return scope
            if sum(until > now for until in known.values()) + len(more) >= self.users_tracked:
                return scope.rest
            if scope != scope.rest:
                more.add(scope.name)
            return scope

        return replace(limited, scopes=tuple(map(place, limited.scopes)))

    def _keep_limit(self, scope: Scope, standing: LimitStanding) -> None:
        now, kept = self._now(), self._kept().get(scope.name)
        until = now + standing.kept_ms(scope.limits)
        self.limits[scope.name] = Kept(standing, now, None if kept is None else kept.told, until)
        if scope.of_user and scope != scope.rest:
            known = self._tracked(scope.owner)
            tracked = {name: at for name, at in known.items() if at > now} | {scope.name: until}
            self.users[scope.owner], self.users_until[scope.owner] = tracked, until

    def _take_limits(self, limited: Limited) -> list[LimitStanding]:
        after = []
        for scope in limited.scopes:
            standing = self._limit(scope).taken(scope.limits, limited.charge)
            self._keep_limit(scope, standing)
            after.append(replace(standing, inflight=standing.inflight + 1))
        return after

    def _settle_limits(self, e: Entry, actual: int | None, ran: bool) -> None:
        limited = self._limited(e)
        for scope in limited.scopes:
            kept = self._kept().get(scope.name)
            if kept is None or kept.at is None:
                continue  # full
            used = limited.charge if actual is None else actual
            self._keep_limit(scope, self._limit(scope).settled(scope.limits, limited.charge, used, ran))

    def _tell_limit(self, scope: Scope, told_ms: int) -> None:
        now, kept = self._now(), self._kept().get(scope.name) or Kept(None, None, None, 0)
        until = max(kept.until, now + max(MINUTE_MS, told_ms))
        self.limits[scope.name] = replace(kept, told=now + told_ms, until=until)


def with_limits(record: bytes, limited: Limited) -> bytes:
    """A record with these limits in the place of its own."""
    stored = codec.decode_request(record)
    return codec.encode_request(replace(stored, facts=replace(stored.facts, limits=write_limits(limited))))


def shown(kept: Kept) -> dict[str, float]:
    shown: dict[str, float] = {}
    if kept.standing is not None and kept.at is not None:
        shown |= {"r": kept.standing.requests, "t": kept.standing.tokens, "at": kept.at}
    return shown if kept.told is None else shown | {"told": kept.told}
