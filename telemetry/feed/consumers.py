"""``/ws/live``: one browser's live feed (``docs/reference/feed.md``). Passes on what the hub sends, and checks
rights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from importlib import import_module
from typing import Any, ClassVar

import msgspec
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.db import Error as DatabaseTrouble

from telemetry.access import Viewer, viewer_for
from telemetry.feed.hub import LiveHub, Subscriber, running_hub
from tenants import second_factors

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
RECHECK_S = 30.0  # login and tenant scope, beside what is told of; a revoked socket is closed within twice that
SEND_TIMEOUT_S = 10.0  # a client that takes nothing for so long is not looking
RESYNC_S = 1.0  # a pool's snapshot is sent again at most once in this time
NOT_LOGGED_IN, NOT_A_MEMBER, TOO_SLOW, TOO_MANY, FAULT, TRY_LATER = 4401, 4403, 4408, 4429, 1011, 1013


def _viewer(user: Any, session: Any) -> Viewer | None:
    """None where this session may not go on: a second factor is required by now, and it began without one."""
    return viewer_for(user) if second_factors.is_enough(user, session.get(second_factors.HOW)) else None


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """One socket. Two tasks of its own: the pump that sends, the guard that looks again whether it may."""

    # The hub listens to the group for all sockets of the process: a channel and a queue for each would cost 200 times.
    channel_layer_alias = "none"

    hub: LiveHub
    viewer: Viewer
    subscriber: Subscriber | None = None
    open_of_user: ClassVar[Counter[Any]] = Counter()  # sockets of this process
    user: Any = None  # its primary key, once this socket counts as one of them

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._answered_s: dict[str, float] = {}
        life = asyncio.ensure_future(super().__call__(scope, receive, send))
        try:
            await asyncio.wait({life, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                # A client that reads nothing would hold the close frame back too: it gets a second, then the socket
                # goes without.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self.close(code=self._over.result()), timeout=1.0)
        finally:
            for task in (life, *self._tasks):
                task.cancel()
            ended = await asyncio.gather(life, *self._tasks, return_exceptions=True)
            self._over.cancel()
            if self.user is not None:
                if self.open_of_user[self.user] > 1:
                    self.open_of_user[self.user] -= 1
                else:
                    del self.open_of_user[self.user]
            if self.subscriber is not None:
                await self.hub.unsubscribe(self.subscriber)
        if isinstance(ended[0], Exception):
            raise ended[0]

    async def connect(self) -> None:
        """Lets in who is logged in and belongs somewhere; anyone else is refused in the handshake (403)."""
        try:
            viewer = await self._look_again()
        except DatabaseTrouble:  # nobody can be identified: closed until it is back
            await self.close(code=TRY_LATER)
            return
        if viewer is None or not viewer.sees_something:
            await self.close(code=NOT_LOGGED_IN if viewer is None else NOT_A_MEMBER)
            return
        user = self.scope["session"].get(SESSION_KEY)
        if self.open_of_user[user] >= settings.QUARTERMASTER_WEBSOCKETS_PER_USER:
            await self.close(code=TOO_MANY)
            return
        self.user = user
        self.open_of_user[user] += 1
        self.viewer = viewer
        self.hub = running_hub()
        await self.accept()
        self.subscriber = await self.hub.subscribe(viewer.tenants, str(user))
        for work in (self._pump(self.subscriber), self._guard(self.subscriber)):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        """``resync`` is all a client can ask for, with a pool's history where it is not sent by itself."""
        subscriber = self.subscriber
        if subscriber is None:
            return
        try:
            message = msgspec.json.decode(text_data or "", type=_Resync)
        except (msgspec.DecodeError, RecursionError):
            if self._due(""):
                await self._push(_error("bad_message", 'Send {"type": "resync", "pool": "<name>"} or nothing.'))
            return
        if message.history and message.pool is not None:
            subscriber.ask_history(message.pool)
            return
        # Who asks for all pools has heard nothing of some for a while. What is still to be sent will tell; whole
        # snapshots instead would keep a slow link from ever catching up.
        asked = [pool for pool in subscriber.sent if not self.hub.is_behind(subscriber, pool)]
        for pool in [message.pool] if message.pool is not None else asked:
            if pool in subscriber.sent and self._due(pool):
                subscriber.resync(pool)

    def _due(self, what: str) -> bool:
        """Whether the client may be answered about this again: asking faster must not cost more."""
        now_s = time.monotonic()
        if now_s - self._answered_s.get(what, float("-inf")) < RESYNC_S:
            return False
        self._answered_s[what] = now_s
        return True

    async def _pump(self, subscriber: Subscriber) -> None:
        """Sends until the client leaves or stops reading. One message is on its way at a time: that is the buffer."""
        sent_available = True
        sent_sources = (self.hub.sources_revision, subscriber.sight)
        await self._push(
            {
                "type": "hello",
                "role": self.viewer.role,
                "heartbeat_s": HEARTBEAT_S,
                "at": round(time.time(), 3),
                "pools": self.hub.pools(subscriber.sight),
                "sources": self.hub.sources(subscriber.sight),
                "histories": subscriber.histories,
            }
        )
        # Spread, so that sockets opened together do not beat together.
        beat_s = time.monotonic() + HEARTBEAT_S * random.uniform(0.2, 1.0)
        while True:
            subscriber.bell.clear()
            if (state := (self.hub.sources_revision, subscriber.sight)) != sent_sources:
                sent_sources = state
                await self._push({"type": "sources"} | self.hub.sources(subscriber.sight))
            while (text := await self.hub.next_message(subscriber)) is not None:
                await self._push(text)
            if self.hub.available != sent_available:
                sent_available = self.hub.available
                await self._push(_AVAILABLE if sent_available else _UNAVAILABLE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(beat_s - time.monotonic()):
                    await subscriber.bell.wait()
            if time.monotonic() >= beat_s:
                beat_s = time.monotonic() + HEARTBEAT_S
                await self._push({"type": "heartbeat", "at": round(time.time(), 3)})

    async def _guard(self, subscriber: Subscriber) -> None:
        """Looks again who this is: a logout, a lost membership or a disabled account ends or narrows the view.

        At once where that is told (``telemetry.feed.rights``), and now and then, for what is told may be lost.
        """
        while True:
            # Spread, so that sockets opened together after a restart do not ask together for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S * random.uniform(0.8, 1.0)):
                    await subscriber.doubted.wait()
            subscriber.doubted.clear()
            try:
                viewer = await self._look_again()
            except DatabaseTrouble as error:
                log.debug("live feed: scope not checked (%s); again in %.0f s", type(error).__name__, RECHECK_S)
                continue
            if viewer is None or not viewer.sees_something:
                self._end(NOT_LOGGED_IN if viewer is None else NOT_A_MEMBER)
                return
            if viewer != self.viewer:
                self.viewer = viewer
                subscriber.look(viewer.tenants)

    async def _look_again(self) -> Viewer | None:
        """The user's sight by the database's present state, or None when nobody is logged in any more."""
        key = getattr(self.scope.get("session"), "session_key", None)
        if key is None:
            return None
        store = import_module(settings.SESSION_ENGINE).SessionStore
        session = store(key)
        user = await get_user({"session": session})
        if not user.is_authenticated or not user.is_active:
            return None
        viewer: Viewer | None = await database_sync_to_async(_viewer)(user, session)
        return viewer

    async def _push(self, message: str | dict[str, Any]) -> None:
        text = message if isinstance(message, str) else await self.encode_json(message)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):  # unlike wait_for, without a task per frame
                await self.send(text_data=text)
        except TimeoutError:
            self._end(TOO_SLOW)
            await asyncio.Event().wait()  # until __call__ ends this task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, OSError):  # that is a client which left while we sent
            log.error("live feed: a socket was closed by a fault of ours", exc_info=error)
        self._end(FAULT)

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    @classmethod
    async def encode_json(cls, content: Any) -> str:
        return msgspec.json.encode(content).decode()


class _Resync(msgspec.Struct, tag_field="type", tag="resync"):
    """The one message a client sends."""

    pool: str | None = None
    history: bool = False  # instead of the snapshot


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "code": code, "message": message}


_UNAVAILABLE = _error("state_unavailable", "Redis does not answer: what you see is getting old.")
_AVAILABLE = _error("state_available", "Redis answers again.")
