"""What one web process knows of the live feed, shared by all its sockets.

One channel of the group per process, not one per socket; each change is decoded once, filtered once per tenant scope
and encoded once per scope. The channel layer is at-most-once and may lose its subscription, so the stored snapshots
have the last word: a gap is filled from there at once, and the numbers are compared every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from channels.layers import get_channel_layer
from django.conf import settings

from telemetry.feed import history, rights, rows, snapshots
from telemetry.feed.publisher import GROUP
from telemetry.feed.sources import Sources, is_visible, sources
from telemetry.feed.store import LiveStore, LiveUnavailable, Stored

log = logging.getLogger(__name__)

COMPARE_S = 1.0  # how often the stored numbers are looked at while no change comes in
QUIET_S = 2.5  # ... of a pool, that is, after this long without one
HISTORY_BYTES = (
    768 * 1024
)  # of one encoded history, beside which a socket's buffers hold 80 KiB of what it does not read
HISTORY_ROWS = (12, 10, 8, 6, 4)  # busiest tenants and entitlements in it: as many as fit
# All sockets are woken within this time. Each costs 0.1 ms, most of it in the kernel: 500 in a row would hold up every
# stream on /v1, and four in a row are what its slowest hundredth waits for. Changes come once a second.
SPREAD_S = 0.8
STEP_S = 0.001  # between two wakings
LATE_S = 0.008  # for which a loop that is busy makes up in one turn
FINE_S, APART_S = 300.0, 2.9  # each second of the charts' first window; before it, close enough to be drawn as one line

# Whoever sees more pools than this is sent the history of those it asks for: one has up to HISTORY_BYTES, made of 900
# points that this process then keeps.
HISTORIES = 12

# Changes of a pool that are kept for sockets that missed some: with thousands of entitlements a whole snapshot has
# megabytes, and while it is on its way over a slow link there are more changes, so that only snapshots would follow.
STEPS_KEPT, STEPS_BYTES = 60, 1024 * 1024

CHOOSE_S = 5.0  # so long the rows of a large pool stay the same: each one that is new is sent whole

Sight = frozenset[str] | None  # the tenants a socket may see; None: all


@dataclass(slots=True)
class _Scoped:
    """A pool as one set of tenants may see it, at one revision. Texts are encoded once for all its sockets."""

    revision: int
    snapshot: snapshots.Snapshot | None
    delta: str | None = None  # from the revision before
    full: str | None = None
    history: str | None = None
    names: rows.Names = field(default_factory=dict)  # of the rows that a large pool's snapshot has
    chosen_s: float = 0.0  # when they were chosen, monotonic


@dataclass(frozen=True, slots=True)
class _Step:
    """A change by one, for those who see all."""

    since: int  # the revision that it changes
    revision: int
    text: str


@dataclass(slots=True)
class _Pool:
    """The latest of one pool. Revisions count this hub's own steps, for the feed's numbers may start again."""

    epoch: int
    snapshot: snapshots.Snapshot
    revision: int
    patch_from: int = 0  # the revision before, where the last step was a change by one
    steps: deque[_Step] = field(default_factory=deque)  # the last changes in a row, oldest first
    full_bytes: int = 0  # of the last whole snapshot that was sent to who sees all
    scoped: dict[Sight, _Scoped] = field(default_factory=dict)
    points: deque[history.Point] | None = None  # loaded when a socket first asks
    heard_s: float = 0.0  # when it took its last step, monotonic

    def keep(self, change: str) -> None:
        """Keeps the change that led here, and of those before it as many as fit."""
        self.steps.append(_Step(self.patch_from, self.revision, change))
        while len(self.steps) > STEPS_KEPT or sum(len(step.text) for step in self.steps) > STEPS_BYTES:
            self.steps.popleft()

    def step_after(self, revision: int) -> _Step | None:
        """The change that comes after a revision. None where a whole snapshot is less than all that follow, or one of
        them is not kept."""
        missed = [step for step in self.steps if step.since >= revision]
        if not missed or missed[0].since != revision:
            return None
        less = sum(len(step.text) for step in missed) <= self.full_bytes // 2
        return missed[0] if less or len(missed) == 1 else None


class Subscriber:
    """One socket's place in the feed: what it was sent, and the bell that wakes it."""

    def __init__(self, sight: Sight, user: str = "") -> None:
        self.sight = sight
        self.user = user  # its primary key
        self.doubted = asyncio.Event()  # whether it may still look is to be asked at once
        self.sent: dict[str, int] = {}  # pool on its screen -> revision; 0 asks for the whole snapshot
        self.histories = True  # sent with each pool, without being asked for
        self.last = ""  # the pool that it was sent last: the others come first
        self.history_due: list[str] = []
        self.history_told: set[str] = set()
        self.bell = asyncio.Event()

    def resync(self, pool: str) -> None:
        """The next message of a pool on its screen is the whole snapshot."""
        self.sent[pool] = 0
        self.bell.set()

    def ask_history(self, pool: str) -> None:
        """The history of a pool on its screen, once."""
        if pool in self.sent and pool not in self.history_told:
            self.history_told.add(pool)
            self.history_due.append(pool)
            self.bell.set()

    def look(self, sight: Sight) -> None:
        """From now on with other rights."""
        self.sight = sight
        for pool in self.sent:
            self.sent[pool] = 0
        self.bell.set()


class LiveHub:
    """The feed of one event loop. Works while it has subscribers."""

    def __init__(self, store: LiveStore, seen: Sources = sources) -> None:
        self._store = store
        self._seen = seen
        self._seen_state = seen.state()
        self.sources_revision = 1  # changes with what anybody can be told of sources
        self._pools: dict[str, _Pool] = {}
        self._subscribers: set[Subscriber] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._loading = asyncio.Lock()
        self._encoding = asyncio.Lock()
        self._revision = 0
        self._due: dict[Subscriber, None] = {}  # those still to be woken, in order
        self._waking: asyncio.Task[None] | None = None
        self._fresh_s = float("-inf")  # when a change came in or the store was read
        self.available = True  # whether the store answered last time

    async def subscribe(self, sight: Sight, user: str = "") -> Subscriber:
        """A new socket. The latest snapshots are known when this returns, unless Redis is away."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._compare())]
        subscriber = Subscriber(sight, user)
        self._subscribers.add(subscriber)
        if time.monotonic() - self._fresh_s > QUIET_S:
            await self.reload()
        self._look_at_sources()
        subscriber.histories = len(self.pools(sight)) <= HISTORIES
        return subscriber

    async def unsubscribe(self, subscriber: Subscriber) -> None:
        """A socket is gone; with the last one the hub rests."""
        self._subscribers.discard(subscriber)
        self._due.pop(subscriber, None)
        sights = {s.sight for s in self._subscribers}
        for pool in self._pools.values():
            for sight in pool.scoped.keys() - sights:
                del pool.scoped[sight]
        if not self._subscribers:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self._subscribers:
                self._pools.clear()
                self._fresh_s = float("-inf")

    def sources(self, sight: Sight) -> dict[str, Any]:
        """What cannot be seen now of what ``sight`` may see, and which pools there are, as far as that is known."""
        # As of this hub's own last look, which has a revision: what was told between two looks would not be taken back.
        outages, pools = self._seen_state
        tenants_of = pools or {}
        away = [one for one in outages if not one.pool or is_visible(tenants_of.get(one.pool, frozenset()), sight)]
        message: dict[str, Any] = {"away": [one.as_json() for one in away]}
        if pools is None:
            return message
        return message | {"pools": [name for name, tenants in sorted(pools.items()) if is_visible(tenants, sight)]}

    def pools(self, sight: Sight) -> list[str]:
        """Names of the visible pools."""
        return [name for name in sorted(self._pools) if self._scoped(self._pools[name], sight).snapshot is not None]

    def is_behind(self, subscriber: Subscriber, pool: str) -> bool:
        """Whether there is more of a pool to send to a socket."""
        return pool in self._pools and subscriber.sent.get(pool) != self._pools[pool].revision

    async def next_message(self, subscriber: Subscriber) -> str | None:
        """The next text this socket has to get, or None when it is up to date.

        Made when the socket is ready for it: a slow one gets fewer, whole snapshots instead of a growing buffer.
        """
        if subscriber.history_due:
            name = subscriber.history_due.pop(0)
            if name in self._pools:
                return await self._history(name, subscriber.sight)
        names = sorted(self._pools)
        after = bisect_right(names, subscriber.last)
        for name in names[after:] + names[:after]:
            pool, had = self._pools[name], subscriber.sent.get(name)
            if had == pool.revision:
                continue
            if had and subscriber.sight is None and (step := pool.step_after(had)) is not None:
                subscriber.last, subscriber.sent[name] = name, step.revision
                return step.text
            scoped = self._scoped(pool, subscriber.sight)
            if scoped.snapshot is None:
                if had is None:
                    continue
                return self._removed(subscriber, name)
            subscriber.last, subscriber.sent[name] = name, pool.revision
            if had and had == pool.patch_from and scoped.delta is not None:
                return scoped.delta
            if had is None and subscriber.histories:
                subscriber.ask_history(name)
            if scoped.full is None:
                seq = scoped.snapshot["seq"]
                scoped.full = _text({"type": "snapshot", "pool": name, "seq": seq, "data": scoped.snapshot})
            if subscriber.sight is None:
                pool.full_bytes = len(scoped.full)
            return scoped.full
        for name in subscriber.sent.keys() - self._pools.keys():
            return self._removed(subscriber, name)
        return None

    @staticmethod
    def _removed(subscriber: Subscriber, name: str) -> str:
        del subscriber.sent[name]
        subscriber.history_told.discard(name)
        return _text({"type": "removed", "pool": name})

    async def reload(self) -> None:
        """Takes over stored snapshots that are newer than the known ones. Never raises."""
        async with self._loading:
            versions = {name: (pool.epoch, pool.snapshot["seq"]) for name, pool in self._pools.items()}
            try:
                stored = await asyncio.to_thread(self._store.load_all, versions)
            except LiveUnavailable:
                self._note(False)
                return
            self._fresh_s = time.monotonic()
            for name in versions.keys() - stored.keys():
                self._pools.pop(name, None)
                self._notify()
            for name, stored_pool in stored.items():
                if stored_pool is not None:
                    self._replace(name, stored_pool)
            self._note(True)

    def _replace(self, name: str, stored: Stored) -> None:
        pool = self._pools.get(name)
        # A change may have come in while the store was read. The store is fenced, so a later epoch or time is truth.
        if pool is not None and stored.epoch <= pool.epoch and stored.snapshot["at"] <= pool.snapshot["at"]:
            return
        self._step(name, _Pool(stored.epoch, stored.snapshot, 0, points=pool.points if pool else None))

    def _step(self, name: str, pool: _Pool) -> None:
        self._revision += 1
        pool.revision, pool.heard_s = self._revision, time.monotonic()
        self._pools[name] = pool
        if pool.points is not None and not (pool.points and pool.points[-1]["at"] >= pool.snapshot["at"]):
            pool.points.append(history.point(pool.snapshot))
        self._notify()

    async def _frame(self, message: dict[str, Any]) -> None:
        """One change from the group, or that what a user may see has changed."""
        if message["type"] == rights.CHANGED:
            for subscriber in self._subscribers:
                if subscriber.user == message["user"]:
                    subscriber.doubted.set()
            return
        self._fresh_s = time.monotonic()
        pool = self._pools.get(message["pool"])
        if pool is not None:
            epoch, seq, ours = message["epoch"], message["seq"], pool.snapshot["seq"]
            if epoch < pool.epoch or (epoch == pool.epoch and seq <= ours):
                return  # of a leader that was replaced, or known already
            if epoch == pool.epoch and seq == ours + 1:
                snapshot = snapshots.apply(pool.snapshot, msgspec.json.decode(message["patch"]))
                after = _Pool(epoch, snapshot, 0, pool.revision, pool.steps, pool.full_bytes, pool.scoped, pool.points)
                self._step(message["pool"], after)
                self._keep_change(after, message["patch"])
                return
        await self.reload()

    def _keep_change(self, pool: _Pool, patch: bytes) -> None:
        """Keeps the change that led to a pool's latest, for those who see all."""
        shown = pool.scoped.get(None)
        if rows.is_large(pool.snapshot):
            if shown is not None and (change := self._scoped(pool, None).delta) is not None:
                pool.keep(change)
        elif shown is None or not shown.names:  # a socket that lacks rows has to get the whole snapshot
            pool.keep(_delta(pool, msgspec.Raw(patch)))

    async def _listen(self) -> None:
        while True:
            layer = get_channel_layer()
            channel = ""
            try:
                channel = await layer.new_channel()
                await layer.group_add(GROUP, channel)
                while True:
                    await self._frame(await layer.receive(channel))
            except Exception as error:  # the layer's own errors are many; comparing goes on meanwhile
                log.debug("live feed: the channel layer failed (%s); joining again", type(error).__name__)
                await asyncio.sleep(1.0)
            finally:
                if channel:
                    with contextlib.suppress(Exception):
                        await asyncio.wait_for(layer.group_discard(GROUP, channel), timeout=1.0)

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_S)
            try:
                self._look_at_sources()
                # Of the pool that was silent longest: one that was deleted tells nothing while others go on.
                heard_s = min((pool.heard_s for pool in self._pools.values()), default=self._fresh_s)
                # A read may fail between two changes that follow on each other: then no gap and no silence asks again.
                if not self.available or time.monotonic() - min(heard_s, self._fresh_s) >= QUIET_S:
                    await self.reload()
            except Exception:  # screens would stay as they are, for good
                log.exception("live feed: what is stored could not be compared; again in %.0f s", COMPARE_S)

    def _scoped(self, pool: _Pool, sight: Sight) -> _Scoped:
        before = pool.scoped.get(sight)
        if before is not None and before.revision == pool.revision:
            return before
        scoped = _Scoped(pool.revision, snapshots.visible(pool.snapshot, sight))
        large = scoped.snapshot is not None and rows.is_large(scoped.snapshot)
        if large and scoped.snapshot is not None:
            now_s = time.monotonic()
            if before is not None and before.names and now_s - before.chosen_s < CHOOSE_S:
                scoped.names, scoped.chosen_s = before.names, before.chosen_s
            else:
                scoped.names, scoped.chosen_s = rows.chosen(scoped.snapshot), now_s
            scoped.snapshot = rows.narrowed(scoped.snapshot, scoped.names)
        former = before.snapshot if before is not None and pool.patch_from == before.revision else None
        if (large or sight is not None) and former is not None and scoped.snapshot is not None:
            scoped.delta = _delta(pool, snapshots.delta(former, scoped.snapshot))
        pool.scoped[sight] = scoped
        return scoped

    async def _history(self, name: str, sight: Sight) -> str | None:
        pool = self._pools[name]
        if pool.points is None:
            try:
                points = await asyncio.to_thread(self._store.history, name)
            except LiveUnavailable:
                points = []
            pool = self._pools.get(name, pool)  # it may have moved on meanwhile
            if pool.points is None:
                pool.points = deque(points, maxlen=history.POINTS)
        async with self._encoding:  # those who open the page together share one
            pool = self._pools.get(name, pool)
            scoped = self._scoped(pool, sight)
            if scoped.history is None:
                # Tens of milliseconds, which nobody's stream should wait for.
                scoped.history = await asyncio.to_thread(encode_history, name, list(pool.points or ()), sight)
            return scoped.history

    def _look_at_sources(self) -> None:
        state = self._seen.state()
        if state != self._seen_state:
            self._seen_state = state
            self.sources_revision += 1
            self._notify()

    def _note(self, available: bool) -> None:
        self._seen.tell_redis(available)
        self._look_at_sources()
        if available != self.available:
            self.available = available
            self._notify()

    def _notify(self) -> None:
        """Wakes all sockets, a few at a time; who still waits for an earlier turn gets both at once."""
        self._due |= dict.fromkeys(self._subscribers)
        if self._waking is None:
            self._wake(1)
            if self._due:
                self._waking = asyncio.create_task(self._wake_all())

    async def _wake_all(self) -> None:
        loop = asyncio.get_running_loop()
        before_s, owed = loop.time(), 0.0
        try:
            while self._due:
                await asyncio.sleep(STEP_S)
                now_s = loop.time()
                # A loop that is busy takes a few more in each of its turns, lest the last one waits for seconds.
                owed += min(now_s - before_s, LATE_S) / SPREAD_S * len(self._subscribers)
                self._wake(int(owed))
                owed -= int(owed)
                before_s = now_s
        finally:
            self._waking = None

    def _wake(self, number: int) -> None:
        for subscriber in list(islice(self._due, number)):
            del self._due[subscriber]
            subscriber.bell.set()


def encode_history(pool: str, points: list[history.Point], sight: Sight) -> str:
    """The history message: each second of the last minutes, older ones further apart, within :data:`HISTORY_BYTES`."""
    seen = [history.slim(history.visible(p, sight)) for p in history.spaced(points, FINE_S, APART_S)]
    rows = iter(HISTORY_ROWS)
    most = next(rows)
    while True:
        text = _text({"type": "history", "pool": pool, "frames": history.narrowed(seen, most)})
        if len(text) <= HISTORY_BYTES or len(seen) < 2:
            return text
        fewer = next(rows, None)
        if fewer is None:
            seen = seen[-1::-2][::-1]
        else:
            most = fewer


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LiveHub] = weakref.WeakKeyDictionary()


def running_hub() -> LiveHub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = LiveHub(LiveStore(settings.QUARTERMASTER_REDIS_URL))
    return _hubs[loop]


def _delta(pool: _Pool, patch: Any) -> str:
    return _text({"type": "delta", "pool": pool.snapshot["pool"], "seq": pool.snapshot["seq"], "patch": patch})


def _text(message: dict[str, Any]) -> str:
    return msgspec.json.encode(message).decode()
