"""The addresses of a server's name, asked for anew at each connect, for it may have moved.

A resolver whose first server is dead takes 5 s or more for each name: longer than connecting may take. So it has a time
of its own, and what several connections want to know, or want to know again, is asked once: few threads wait for the
answers, and a question cannot be taken back.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from weakref import WeakKeyDictionary

Found = asyncio.Future[list[Any]]

_asked: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Found]] = WeakKeyDictionary()


async def addresses(host: str, wait_s: float) -> list[str]:
    """Raises OSError where the name has none, or they are not known in ``wait_s``; then the answer is of use to who
    asks next."""
    with suppress(ValueError):
        return [str(ip_address(host))]
    loop = asyncio.get_running_loop()
    asked = _asked.setdefault(loop, {})
    found = asked.get(host)
    if found is None:
        found = asked[host] = asyncio.ensure_future(loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        found.add_done_callback(lambda found: _answered(asked, host, found))
    try:
        async with asyncio.timeout(wait_s):
            return [str(place[4][0]) for place in await asyncio.shield(found)]
    except TimeoutError:
        raise OSError(f"the name {host} was not looked up within {wait_s:g} s") from None
    except UnicodeError:  # a part of it is empty or longer than 63 characters
        raise OSError(f"{host} is no name that can be looked up") from None


def _answered(asked: dict[str, Found], host: str, found: Found) -> None:
    asked.pop(host)
    if not found.cancelled():
        found.exception()  # retrieved: whoever asked may have gone
