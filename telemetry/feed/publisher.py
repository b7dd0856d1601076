"""Once a second per pool: the snapshot into Redis, the change to everyone who looks.

Called from the dispatch service's telemetry thread. A dashboard's trouble is never dispatch's: nothing here raises, and
nothing waits longer than Redis' half second.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from scheduling.core.types import EntitlementSpec
from scheduling.dispatch.ports import Sample
from telemetry.feed import history, snapshots
from telemetry.feed.store import LiveStore, LiveUnavailable
from telemetry.feed.window import Window

log = logging.getLogger(__name__)

GROUP = "live"


class Send(Protocol):
    def __call__(self, message: dict[str, Any]) -> None:
        """Hands a message to the group; neither waits nor raises."""


class GroupSender:
    """Sends to the Channels group from any thread, through an event loop of its own.

    Of each pool at most one message is on its way: when the layer hangs, changes are dropped, and readers heal from the
    stored snapshot. ``each``: no message stands for the next one, so each is sent, and may be lost.
    """

    def __init__(self, each: bool = False) -> None:
        self._each = each
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._sending: dict[str, concurrent.futures.Future[None]] = {}  # by pool

    def __call__(self, message: dict[str, Any]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="live-feed", daemon=True)
            self._thread.start()
        for pool in [pool for pool, sending in self._sending.items() if sending.done()]:
            del self._sending[pool]
        pool = message.get("pool", "")
        if self._each or pool not in self._sending:
            self._sending[pool] = asyncio.run_coroutine_threadsafe(_group_send(message), self._loop)

    def close(self) -> None:
        """Ends the loop and its thread; a message on its way gets its second to arrive."""
        if self._loop is None or self._thread is None:
            return
        concurrent.futures.wait(self._sending.values(), timeout=2.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop = self._thread = None
        self._sending.clear()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()  # the channel layer closes its connections with the loop


async def _group_send(message: dict[str, Any]) -> None:
    from channels.layers import get_channel_layer

    layer = get_channel_layer()
    if layer is None:
        return
    try:
        await asyncio.wait_for(layer.group_send(GROUP, message), timeout=1.0)
    except Exception as error:
        log.debug("a live frame was not sent: %s", type(error).__name__)


class Publisher:
    """Numbers, stores and publishes the snapshots of the pools this process leads. One thread."""

    def __init__(self, store: LiveStore, send: Send) -> None:
        self._store = store
        self._send = send
        self._last: dict[str, snapshots.Snapshot] = {}
        self._available = True

    def publish(
        self, sample: Sample, window: Window, entitlements: Mapping[str, EntitlementSpec]
    ) -> snapshots.Snapshot | None:
        """Makes and publishes the next snapshot of a pool; None where another leads, or it failed. Never raises."""
        pool = sample.pool.id
        try:
            last = self._predecessor(pool, sample.epoch)
            snapshot = snapshots.snapshot(sample, window, entitlements, last["seq"] + 1 if last else 1)
            if last is not None:
                snapshots.carry_seen(last, snapshot)
            snapshots.carry_down(last or {}, snapshot, window)
            self._last[pool] = snapshot
            encode = msgspec.json.encode
            if not self._store.store(
                pool, sample.epoch, snapshot["seq"], encode(snapshot), encode(history.point(snapshot))
            ):
                return None  # another leader has taken over
            # After the store, so that a reader that sees a gap finds a snapshot at least this new.
            self._send(
                {
                    "type": "live.frame",
                    "pool": pool,
                    "epoch": sample.epoch,
                    "seq": snapshot["seq"],
                    "patch": encode(snapshots.delta(last or {}, snapshot)),
                }
            )
            self._note(True)
            return snapshot
        except LiveUnavailable as error:
            self._note(False, error.refuses)
        except Exception:
            log.exception("the live feed of pool %s failed; dispatch goes on", pool)
        return None

    def rules_looked_at(self, pool: str, at_s: float) -> None:
        """Tells that the pool's alert rules have been looked at. Never raises."""
        try:
            self._store.rules_looked_at(pool, at_s)
        except LiveUnavailable as error:
            self._note(False, error.refuses)

    def keep_only(self, pools: Collection[str]) -> None:
        """Forgets deleted pools; ``pools`` are those there are. Never raises."""
        for name in self._last.keys() - set(pools):
            del self._last[name]
        try:
            for name in self._store.keep_only(pools):
                log.info("live feed: pool %s is gone", name)
        except LiveUnavailable as error:
            self._note(False, error.refuses)

    def _predecessor(self, pool: str, epoch: int) -> snapshots.Snapshot | None:
        """The snapshot before this one: our own, or after a change of leader the stored one."""
        last = self._last.get(pool)
        if last is not None and last["epoch"] == epoch:
            return last
        stored = self._store.load(pool)
        if stored is not None:
            return stored.snapshot
        return last

    def _note(self, available: bool, refuses: str = "") -> None:
        if available != self._available:
            self._available = available
            said = f"refuses ({refuses})" if refuses else "does not answer"
            log.warning("live feed: Redis %s", "answers again" if available else f"{said}; dashboards go stale")
