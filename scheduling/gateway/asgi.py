"""The types of ASGI, and the extensions of it that our server has, by the names under which a scope's ``extensions``
hold them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PEER = "quartermaster.peer"  # where the connection comes from, be it a proxy
ABORT = "quartermaster.abort"  # drops the connection without waiting for its reader
# writes a further piece of a streamed body at once. False: its reader is slow, ``send`` is to be asked, which waits
WRITE = "quartermaster.write"
# sends a whole answer (status, headers that need no check, body) at once, with ``headers.NO_SNIFFING``. False: as
# ``WRITE``, and nothing was sent
ANSWER = "quartermaster.answer"
# begins a streamed answer (status, headers that need no check) at once, with ``headers.NO_SNIFFING``. False: likewise
BEGIN = "quartermaster.begin"
