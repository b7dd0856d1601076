"""Hearing notifications: pub/sub on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from scheduling.state.resp import CALL_TIMEOUT_S, Keeper
from scheduling.state.wire import Wire, pack

log = logging.getLogger("quartermaster.state")


class Subscriber(Keeper):
    """Pub/sub on a connection of its own; subscribes again after every reconnect.

    Messages published while it was away are lost, as always with pub/sub: ``on_ready`` is called after each
    (re)subscription so that the owner can look for what it missed.
    """

    PING_S = 1.0

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        on_message: Callable[[str, bytes], None],
        *,
        name: str = "subscriber",
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(url, name, CALL_TIMEOUT_S)
        self._channels = tuple(channels)
        self._on_message = on_message
        self._on_ready = on_ready
        self._heard = 0.0
        self._pinger: asyncio.TimerHandle | None = None

    def _push_handler(self) -> Callable[[Any], None]:
        return self._pushed

    def _pushed(self, reply: Any) -> None:
        self._heard = asyncio.get_running_loop().time()
        if isinstance(reply, list) and reply[0] == b"message":
            try:
                self._on_message(reply[1].decode(), reply[2])
            except Exception:
                log.exception("a message on %s could not be handled", reply[1])

    async def _entered(self, wire: Wire) -> None:
        wire.write(pack(("SUBSCRIBE", *self._channels)))
        self._heard = asyncio.get_running_loop().time()

    def _changed(self, available: bool) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        if available:
            self._pinger = asyncio.get_running_loop().call_later(self.PING_S, self._ping)
            if self._on_ready is not None:
                self._on_ready()

    def _ping(self) -> None:
        """A subscribed connection has no calls to time out, so silence is measured against PINGs."""
        self._pinger = None
        wire, loop = self._wire, asyncio.get_running_loop()
        if wire is None:
            return
        if loop.time() - self._heard > self.PING_S + self._timeout:
            wire.close(f"silent for {loop.time() - self._heard:.1f} s")
            return
        wire.write(pack(("PING",)))
        self._pinger = loop.call_later(self.PING_S, self._ping)

    async def close(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        await super().close()
