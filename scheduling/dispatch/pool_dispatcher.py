"""One pool's dispatcher in one process: stands for election, and while it leads runs a :class:`Term`.

A follower asks Redis four times a second who leads, and nothing else. A term ends when the leadership cannot be
extended, when a write was fenced, or when anything in it fails unexpectedly; then this process stands for election
again, with nothing kept from the term before: the view is rebuilt from Redis.
"""

from __future__ import annotations

import asyncio
import logging

import httpx

from scheduling.core.types import BackendSpec, Catalog, PoolSpec
from scheduling.dispatch.leader import Leadership
from scheduling.dispatch.replicas.watched import EngineControl, EngineFactory
from scheduling.dispatch.resources import Resources
from scheduling.dispatch.term import BLOCK_MS, Term
from scheduling.engines.client import control_http
from scheduling.engines.kinds import make_client
from scheduling.state.resp import CALL_TIMEOUT_S, RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import Fenced, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

AGAIN_S = 1.0  # pause after a term that ended by an error of ours
RESIGN_S = 2.0


class _TermOver(Exception):
    """The leadership ended; nothing is wrong."""


class PoolDispatcher:
    """Serves one pool until cancelled."""

    def __init__(self, resources: Resources, pool_id: str, catalog: Catalog) -> None:
        self.pool_id = pool_id
        self._resources = resources
        self._catalog = catalog
        self._blocking = RespConnection(
            resources.redis_url, name=f"dispatch-events-{pool_id}", call_timeout=CALL_TIMEOUT_S + BLOCK_MS / 1000
        )
        self._store = PoolStore(resources.resp, pool_id, self._blocking)
        self._leadership = Leadership(
            self._store, resources.holder, resources.epochs, resources.database, resources.may_lead
        )
        self._term: Term | None = None

    @property
    def epoch(self) -> int:
        """The epoch this process leads under now; 0 for a follower."""
        return self._leadership.epoch if self._leadership.leads else 0

    @property
    def term(self) -> Term | None:
        """The term that runs, if any."""
        return self._term

    def update(self, catalog: Catalog) -> None:
        """Takes a new catalog in which this pool still is."""
        self._catalog = catalog
        if self._term is not None:
            self._term.update(catalog.pools[self.pool_id], catalog)

    async def resign(self) -> None:
        """Gives the leadership back now, if it is held here; the term ends when this dispatcher is cancelled."""
        await self._leadership.resign()

    def given_back(self) -> None:
        """Somebody resigned: stand at once."""
        self._leadership.given_back()

    async def run(self) -> None:
        """Leads whenever it can. Gives the leadership back when cancelled."""
        try:
            while True:
                try:
                    epoch = await self._leadership.win()
                    log.info("pool %s: %s leads, epoch %d", self.pool_id, self._resources.holder, epoch)
                    await self._lead(epoch)
                    log.info("pool %s: %s leads no longer (epoch %d)", self.pool_id, self._resources.holder, epoch)
                except Exception:
                    log.exception("pool %s: a term ended by an error, standing for election again", self.pool_id)
                    await asyncio.sleep(AGAIN_S)
        finally:
            try:
                async with asyncio.timeout(RESIGN_S):
                    await asyncio.shield(self._leadership.resign())
            except TimeoutError:
                pass

    async def _lead(self, epoch: int) -> None:
        """A term, in a task of its own: a group whose task failed cancels the one it runs in, and up to Python 3.11.4
        leaves that counted. Of this task's cancellations none is the group's, so none is lost: whoever stops a
        dispatcher resigns first, and its cancellation comes while the term ends by itself."""
        this = asyncio.current_task()
        assert this is not None
        asked_to_end = this.cancelling()
        try:
            await asyncio.create_task(self._serve(epoch), name=f"term-{self.pool_id}")
        except asyncio.CancelledError:
            if this.cancelling() > asked_to_end:
                raise
        if this.cancelling() > asked_to_end:
            raise asyncio.CancelledError

    async def _serve(self, epoch: int) -> None:
        http = control_http()
        await self._blocking.start()
        try:
            async with asyncio.TaskGroup() as group:
                engine = self._resources.engine or _clients
                pool = self._catalog.pools[self.pool_id]
                term = Term(self._store, epoch, pool, self._catalog, self._resources, engine(http), group)
                group.create_task(self._until_lost(), name=f"leader-{self.pool_id}")
                await term.open()
                self._term = term
                for name, work in term.loops().items():
                    group.create_task(work, name=f"{name}-{self.pool_id}")
        except* (_TermOver, Fenced, StateUnavailable):
            pass
        finally:
            self._term = None
            self._leadership.lost()
            await self._blocking.close()
            await http.aclose()

    async def _until_lost(self) -> None:
        await self._leadership.keep()
        raise _TermOver


def _clients(http: httpx.AsyncClient) -> EngineFactory:
    def make(spec: BackendSpec, pool: PoolSpec) -> EngineControl:
        return make_client(
            spec.url,
            http=http,
            model=pool.upstream_model,
            api_key=spec.api_key,
            dcgm_url=spec.dcgm_url,
            kind=pool.engine,
        )

    return make
