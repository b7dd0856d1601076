"""The configuration as a running process knows it: a cached catalog that follows the database.

A cheap version query runs every 2 s in a bounded thread; a notification (``qm:catalog``) or an unknown key asks at
once, at most five times a second. When the database is away the last catalog stays in force
(``docs/reference/promises.md``, 23).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from scheduling.core.types import Catalog

log = logging.getLogger(__name__)

POLL_S = 2.0
MIN_GAP_S = 0.2


class CatalogCache:
    """Holds the newest :class:`Catalog` that could be read.

    ``load`` and ``version`` block (they ask a database) and run in ``executor``; everything else belongs to one event
    loop. ``load`` is called only when ``version`` answers something else than the catalog that is held.
    """

    def __init__(
        self,
        load: Callable[[], Catalog],
        version: Callable[[], int],
        executor: Executor | None = None,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._load = load
        self._version = version
        self._own = executor is None
        self._executor = executor or ThreadPoolExecutor(2, thread_name_prefix="catalog")
        self._poll_s = poll_s
        self._current: Catalog | None = None
        self._listeners: list[Callable[[Catalog], None]] = []
        self._wake = asyncio.Event()
        self._rounds = 0
        self._looking = False
        self._turn = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._answered_s: float | None = None

    @property
    def answered_s(self) -> float | None:
        """When the database last answered [epoch s]; None: never."""
        return self._answered_s

    @property
    def failing(self) -> bool:
        """Whether it did not answer when it was last asked."""
        return self._failing

    @property
    def current(self) -> Catalog:
        """The catalog in force; LookupError before the first one was read."""
        if self._current is None:
            raise LookupError("no catalog yet")
        return self._current

    @property
    def loaded(self) -> bool:
        return self._current is not None

    def on_change(self, listener: Callable[[Catalog], None]) -> None:
        """``listener`` is called on the loop with each new catalog, and at once with the one that is held."""
        self._listeners.append(listener)
        if self._current is not None:
            listener(self._current)

    async def start(self) -> None:
        """Reads the catalog once (a failure is logged and tried again by the poll), then follows it."""
        await self._look()
        self._task = asyncio.create_task(self._follow(), name="catalog")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._own:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def notify(self) -> None:
        """Something may have changed: look soon. Cheap; any number of calls make one query."""
        self._wake.set()

    async def refreshed(self, timeout_s: float) -> None:
        """Waits until a look that began after this call has ended, or ``timeout_s`` is over."""
        async with self._turn:
            # a look that runs now may have read before the caller's change: only the next one counts
            goal = self._rounds + (2 if self._looking else 1)
            self._wake.set()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._turn.wait_for(lambda: self._rounds >= goal)
            except TimeoutError:
                return

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._look()
            await asyncio.sleep(MIN_GAP_S)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = True
        try:
            version = await loop.run_in_executor(self._executor, self._version)
            if self._current is None or version != self._current.version:
                catalog = await loop.run_in_executor(self._executor, self._load)
                self._current = catalog
                for listener in self._listeners:
                    listener(catalog)
            self._answered_s = time.time()
            if self._failing:
                self._failing = False
                log.warning("catalog: the database answers again")
        except Exception as exc:
            if not self._failing:
                self._failing = True
                log.warning("catalog: cannot be read (%s); the last one stays in force", type(exc).__name__)
        async with self._turn:
            self._looking = False
            self._rounds += 1
            self._turn.notify_all()
