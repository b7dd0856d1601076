"""A connection to the first address of a server's name that answers (RFC 8305, "Happy Eyeballs").

One after the other, an address that is gone without a word would take all the time that connecting may take, and the
server could not be reached although another one answers. What decides whether a replica is well connects like this, too
(:mod:`scheduling.engines.reach`): otherwise it would be ready for the leader and fail each request of a gateway.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

NEXT_S = 0.25  # until the next address is tried beside those that have not answered yet
MOST = 8  # addresses that are tried

P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")


async def connect(
    make: Callable[[], P], hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None, named: str | None = None
) -> P:
    """The protocol that ``make`` made, connected to one of ``hosts``, addresses in the order in which they are
    preferred. ``named``: whose certificate it has to be. Raises OSError, that of the first one where none answers."""
    loop = asyncio.get_running_loop()
    if len(hosts) == 1:
        return (await loop.create_connection(make, hosts[0], port, ssl=tls, server_hostname=named))[1]
    sock = await _first(hosts, port)
    try:
        return (await loop.create_connection(make, sock=sock, ssl=tls, server_hostname=named))[1]
    except BaseException:
        sock.close()
        raise


async def race(hosts: Sequence[str], attempt: Callable[[str], Awaitable[T]], let_go: Callable[[T], object]) -> T:
    """What ``attempt`` made of the first of ``hosts`` where it raised nothing. ``let_go``: of what came of another one
    meanwhile. Raises what the first that failed raised where none did otherwise, OSError where there is no host."""
    left, failed = _by_turns(hosts)[:MOST], list[BaseException]()
    trying: set[asyncio.Future[T]] = set()

    def let_it_go(one: asyncio.Future[T]) -> None:
        if not one.cancelled() and one.exception() is None:
            let_go(one.result())

    try:
        while left or trying:
            if left:
                trying.add(asyncio.ensure_future(attempt(left.pop(0))))
            done, trying = await asyncio.wait(
                trying, timeout=NEXT_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (error := task.exception()) is None:
                    trying |= done - {task}
                    return task.result()
                failed.append(error)
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(let_it_go)
    raise failed[0] if failed else OSError("the name has no address")


async def _first(hosts: Sequence[str], port: int) -> socket.socket:
    return await race(hosts, lambda host: _try(host, port), socket.socket.close)


def _by_turns(hosts: Sequence[str]) -> list[str]:
    """Each once, those of IPv4 and of IPv6 by turns: all of one of them may lead nowhere."""
    each = list(dict.fromkeys(hosts))
    alike = [host for host in each if (":" in host) == (":" in each[0])]
    others = [host for host in each if host not in alike]
    return [host for pair in zip_longest(alike, others) for host in pair if host is not None]


async def _try(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock
