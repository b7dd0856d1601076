"""What this process can see of what it shows, and since when it cannot: Redis, the database, each pool's leader, and
the alert rules that the leader looks at.

Times are epoch seconds. Something is *away since* the moment at which it was last seen; where this process has never
seen it, since *at least* the process's own start. Looked at twice a second by one thread of each web process, whether
or not anybody has a page open: a page that is opened during an outage is told when it began.

What of an engine cannot be seen stands in its pool's snapshot (``docs/reference/feed.md``, ``unseen_since``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from telemetry.feed.store import Heads, LiveUnavailable

log = logging.getLogger(__name__)

LOOK_S = 0.5
LEADER_S = 4.0  # they publish each second and change hands within 2.3 s; later than SILENT_S, when figures are hidden
RULES_S = 20.0  # rules are looked at every five seconds
DATABASE_S = 6.0  # the catalog asks every two seconds
REDIS, DATABASE, LEADER, RULES = "redis", "database", "leader", "rules"

Tenants = frozenset[str] | None  # the tenants someone may see; None: all


@dataclass(frozen=True, slots=True)
class Outage:
    """A source that cannot be seen."""

    source: str  # redis | database | leader | rules
    since: float
    at_least: bool = False  # it was away before this process could look
    pool: str = ""
    refuses: str = ""  # Redis is there and refuses what it is asked: the code of its error, such as "OOM"

    @property
    def code(self) -> str:
        return f"{self.source}_away"

    def as_json(self) -> dict[str, Any]:
        """As frames and answers carry it (``docs/reference/feed.md``)."""
        row: dict[str, Any] = {"source": self.source, "since": round(self.since, 3)}
        if self.at_least:
            row["at_least"] = True
        if self.pool:
            row["pool"] = self.pool
        if self.refuses:
            row["refuses"] = self.refuses
        return row

    def since_in_words(self) -> str:
        """ "since 2026-11-22 14:02:10 UTC"."""
        at = datetime.fromtimestamp(self.since, UTC)
        return f"since {'at least ' if self.at_least else ''}{at:%Y-%m-%d %H:%M:%S} UTC"


class HeadStore(Protocol):
    def heads(self) -> Heads:
        """Raises :class:`LiveUnavailable`."""

    def refuses(self) -> str:
        """The code of the error with which Redis refuses a write; empty: it takes it. Raises
        :class:`LiveUnavailable`."""


@dataclass(slots=True)
class _Seen:
    """One source: when it last answered, and whether it answered when it was last asked."""

    at_s: float | None = None
    answers: bool = True


@dataclass(slots=True)
class _Pool:
    known_s: float  # when this process first knew of it
    tenants: frozenset[str] = frozenset()
    published_s: float | None = None
    rules_s: float | None = None


@dataclass(slots=True)
class Sources:
    """What was last seen of every source. Any thread may tell and ask."""

    clock: Callable[[], float] = time.time
    started_s: float = 0.0
    database_refuses: bool = False  # as of the last look: it said no, rather than nothing
    _redis: _Seen = field(default_factory=_Seen)
    _refuses: str = ""
    _database: _Seen = field(default_factory=_Seen)
    _pools: dict[str, _Pool] = field(default_factory=dict)
    _configured: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.started_s = self.started_s or self.clock()

    def tell_redis(self, answers: bool, refuses: str | None = None) -> None:
        """Redis was asked something just now. ``refuses``: the code of the error that it answered with; None where
        nothing was written, which says nothing of that."""
        with self._lock:
            _note(self._redis, answers, self.clock())
            if refuses is not None or not answers:
                self._refuses = refuses or ""

    def tell_database(self, answers: bool, at_s: float | None = None) -> None:
        """The database was asked something; ``at_s``: when it last answered, where that was not now."""
        with self._lock:
            _note(self._database, answers, self.clock() if at_s is None else at_s)
            if not answers and at_s is not None:
                self._database.at_s = max(at_s, self._database.at_s or 0.0)

    def tell_heads(self, heads: Heads) -> None:
        """Redis answered, with what the leaders left there."""
        with self._lock:
            now_s = self.clock()
            _note(self._redis, True, now_s)
            for name, at_s in heads.published.items():
                if name in self._pools or not self._configured:  # one that was deleted may still be there
                    self._pool(name, now_s).published_s = at_s
            for name, at_s in heads.rules.items():
                if name in self._pools:
                    self._pools[name].rules_s = at_s
            for name in [n for n in self._pools if not self._configured and n not in heads.published]:
                del self._pools[name]

    def tell_pools(self, pools: Mapping[str, frozenset[str]]) -> None:
        """The pools that are configured, with the tenants that may use them."""
        with self._lock:
            now_s = self.clock()
            for name in self._pools.keys() - pools.keys():
                del self._pools[name]
            for name, tenants in pools.items():
                self._pool(name, now_s).tenants = tenants
            self._configured = True

    def pools(self, tenants: Tenants) -> list[str] | None:
        """Names of the configured, visible pools; None where they are not known."""
        with self._lock:
            if not self._configured:
                return None
            return [name for name, pool in sorted(self._pools.items()) if is_visible(pool.tenants, tenants)]

    def state(self) -> tuple[list[Outage], dict[str, frozenset[str]] | None]:
        """The whole state, to be compared: what is unavailable, and the configured pools with their tenants."""
        outages = self.outages()
        with self._lock:
            return outages, {name: pool.tenants for name, pool in self._pools.items()} if self._configured else None

    def outages(self, tenants: Tenants = None) -> list[Outage]:
        """All that cannot be seen now, of what ``tenants`` may see. What depends on a source that is away itself is not
        told beside it: without Redis nobody knows of leaders."""
        with self._lock:
            outages = [away for away in (self._of(DATABASE, self._database), self._of(REDIS, self._redis)) if away]
            if not self._redis.answers:
                return outages
            of_pools: list[Outage] = []
            for name, pool in sorted(self._pools.items()):
                if is_visible(pool.tenants, tenants):
                    of_pools += self._of_pool(name, pool, self.clock(), rules=self._database.answers)
            silent = [one for one in of_pools if one.source == LEADER]
            if silent and self._refuses:  # they lead, and cannot say so
                first = min(silent, key=lambda one: one.since)
                return [*outages, replace(first, source=REDIS, pool="", refuses=self._refuses)]
            return outages + of_pools

    def has_silent_leaders(self) -> bool:
        """Whether a pool's leader has published nothing for a while, although Redis answers."""
        with self._lock:
            now_s = self.clock()
            return any(
                one.source == LEADER
                for name, pool in self._pools.items()
                for one in self._of_pool(name, pool, now_s, rules=False)
            )

    def redis_outage(self, refuses: str = "") -> Outage:
        """For an answer that Redis did not give: since when. ``refuses``: the code of its error, if it gave one."""
        self.tell_redis(False, refuses)
        return replace(self._outage(REDIS, self._redis), refuses=refuses)

    def database_outage(self) -> Outage:
        """For an answer that the database did not give: since when."""
        with self._lock:
            return self._outage(DATABASE, self._database)

    def unwatched(self, tenants: Tenants) -> list[Outage]:
        """Each visible pool whose alert rules are not checked now, and since when, whatever the cause."""
        with self._lock:
            now_s, outages = self.clock(), []
            for name, pool in sorted(self._pools.items()):
                if not is_visible(pool.tenants, tenants):
                    continue
                blind = not (self._redis.answers and self._database.answers)
                if blind or self._of_pool(name, pool, now_s, rules=True):
                    outages.append(self._outage(RULES, _Seen(pool.rules_s), name, pool.known_s))
            return outages

    def _of_pool(self, name: str, pool: _Pool, now_s: float, *, rules: bool) -> list[Outage]:
        if now_s - (pool.published_s or pool.known_s) > LEADER_S:
            return [self._outage(LEADER, _Seen(pool.published_s), name, pool.known_s)]
        if rules and pool.published_s is not None and now_s - (pool.rules_s or pool.known_s) > RULES_S:
            return [self._outage(RULES, _Seen(pool.rules_s), name, pool.known_s)]
        return []

    def _of(self, source: str, seen: _Seen) -> Outage | None:
        if seen.answers:
            return None
        return replace(self._outage(source, seen), refuses=self._refuses if source == REDIS else "")

    def _outage(self, source: str, seen: _Seen, pool: str = "", known_s: float | None = None) -> Outage:
        if seen.at_s is not None:
            return Outage(source, seen.at_s, pool=pool)
        return Outage(source, known_s or self.started_s, at_least=True, pool=pool)

    def _pool(self, name: str, now_s: float) -> _Pool:
        return self._pools.setdefault(name, _Pool(now_s))


def _note(seen: _Seen, answers: bool, at_s: float) -> None:
    seen.answers = answers
    if answers:
        seen.at_s = at_s


def is_visible(of_pool: frozenset[str], tenants: Tenants) -> bool:
    """Whether a pool, used by some tenants, is in the sight of others."""
    return tenants is None or bool(of_pool & tenants)


class DatabaseStatus(Protocol):
    """What the watcher asks of the cached catalog (:class:`scheduling.catalog.CatalogCache`)."""

    @property
    def answered_s(self) -> float | None:
        """When the database last answered it [epoch s]; None: never."""

    @property
    def failing(self) -> bool:
        """Whether it did not answer when it was last asked."""


class SourceWatch:
    """The thread that looks twice a second."""

    def __init__(
        self,
        sources: Sources,
        store: HeadStore,
        database: DatabaseStatus,
        pools: Callable[[], Mapping[str, frozenset[str]] | None],
        look_s: float = LOOK_S,
        on_look: Callable[[list[Outage], float], None] | None = None,
    ) -> None:
        """``pools``: the configured pools with the tenants that may use them; None while they are not known.
        ``on_look``: called after each look with what cannot be seen; it never raises."""
        self._on_look = on_look
        self._sources, self._store, self._database, self._pools, self._look_s = sources, store, database, pools, look_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def look(self) -> None:
        """One look at everything. Never raises."""
        try:
            answered_s = self._database.answered_s
            self._sources.database_refuses = self._database.failing
            late = self._sources.clock() - (answered_s or self._sources.started_s) > DATABASE_S
            self._sources.tell_database(not (self._database.failing or late), answered_s)
            pools = self._pools()
            if pools is not None:
                self._sources.tell_pools(pools)
            self._sources.tell_heads(self._store.heads())
            self._sources.tell_redis(True, self._store.refuses() if self._sources.has_silent_leaders() else "")
        except LiveUnavailable as error:
            self._sources.tell_redis(False, error.refuses)
        except Exception:
            log.exception("what can be seen could not be looked at")

    def _run(self) -> None:
        while not self._over.is_set():
            self.look()
            if self._on_look is not None:
                self._on_look(self._sources.outages(), self._sources.clock())
            self._over.wait(self._look_s)


sources = Sources()  # of this process
