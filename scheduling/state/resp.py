"""A lean Redis client for the hot path: one connection, everybody's calls pipelined on it.

Why our own: one script call costs 29 us of CPU with redis-py at 32 at once, 2 us this way
(``docs/results/benchmarks.md``), and the failure rules below are then explicit instead of settings:

* commands of one loop turn leave in one write, calls of a script that takes several (``CALLED_TOGETHER``) in one
  command; replies come back in order to a queue of futures;
* a call that is not answered in time closes the connection, so that a late reply can never be taken for another's;
  so does silence, which is shorter: nothing at all has come back while calls wait. Silence is what a server shows that
  is frozen or cut off; one that is only slow goes on answering. A connection nobody calls on is asked by PINGs;
* nothing is ever retried: whether a write took effect is the caller's question (scripts are idempotent);
* while Redis is known to be down a call fails at once; one background task reconnects with backoff, and only a
  connection that answered a PING counts as up;
* one log line when it goes down, one when it comes back, and the same where it begins to refuse writes and takes them
  again (out of memory, a save that failed): it stays connected, for it is read, and what frees memory goes on. One more
  for each reason that it gives while it is down (it loads its data, has too many clients, wants another password);
* a node that has become a replica is left: all connections to that address are closed, and made again (the name is
  resolved anew) until they reach a node that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import hiredis

from scheduling.connecting import connect
from scheduling.lookup import addresses
from scheduling.state.address import Address, parse_url
from scheduling.state.script import Script
from scheduling.state.types import StateError, StateUnavailable
from scheduling.state.wire import Answered, NotLetIn, Wire, Word, pack

log = logging.getLogger("quartermaster.state")

CALL_TIMEOUT_S = 1.0
# On a request's path: longer than a server stalls that is well (a fork, a slow disk), and short enough that of a minute
# without Redis less than one request in a hundred waits for longer than 250 ms (those of the first SILENCE_S - 0.25).
SILENCE_S = 0.5
PROBE_S = 0.25
CONNECT_TIMEOUT_S = 0.5
LOOKUP_TIMEOUT_S = 15.0  # of its name, before it
BACKOFF_S = (0.05, 0.1, 0.25, 0.5, 1.0)

# Error codes that say "not now": the server loads, is full, is read-only, has another script that will not end, or has
# ended a read that waits, because it becomes a replica.
_UNAVAILABLE = frozenset(
    {"LOADING", "READONLY", "MISCONF", "OOM", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN",
     "NOAUTH", "WRONGPASS", "NOPERM", "UNBLOCKED", "UNKILLABLE"}
)  # fmt: skip
_WAITS_FOR_A_PERSON = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
# Of these, those of a server that is there and will not be written for a while, whoever asks.
_REFUSING = frozenset({"OOM", "MISCONF", "READONLY", "NOREPLICAS", "BUSY", "LOADING", "CLUSTERDOWN"})
TELL_AGAIN_S = 60.0  # what a user may not do is told again where it was not heard for so long
_OF_SCRIPT = re.compile(r"-(OOM|MISCONF|READONLY|NOREPLICAS) ")  # before version 7 a script's error begins otherwise
_MASTERS = re.compile(rb"cluster_size:(\d+)")
WRITES_KEY = b"qm:writes"  # written while writes are refused, to see when they are taken again
WRITES_S = 0.5


async def _greet(wire: Wire, address: Address, name: str) -> None:
    """Logs in, chooses the database, and asks for one PING and for the node's role: a replica, or one of several
    masters, is of no use. Raises :class:`StateUnavailable`; :class:`NotLetIn` if a setting has to change first."""
    hello: list[tuple[Word, ...]] = []
    if address.username or address.password:
        entry: tuple[Word, ...] = (address.username, address.password) if address.username else (address.password,)
        hello.append(("AUTH", *entry))
    if address.db:
        hello.append(("SELECT", address.db))
    # all after PING may be forbidden to a user
    hello += [("PING",), ("CLIENT", "SETNAME", name), ("ROLE",), ("CLUSTER", "INFO")]
    *replies, _, role, cluster = await asyncio.gather(
        *(wire.send(pack(words)) for words in hello), return_exceptions=True
    )
    for reply in replies:  # in order: what follows an error may be no answer any more
        if isinstance(reply, hiredis.ReplyError):
            passes = str(reply).partition(" ")[0] in _UNAVAILABLE - _WAITS_FOR_A_PERSON
            raise (Answered if passes else NotLetIn)(f"Redis: {reply}")
        if isinstance(reply, BaseException):
            raise reply
    if isinstance(role, list) and role[0] == b"slave":
        raise StateUnavailable("Redis: this node is a replica and takes no writes")
    if isinstance(cluster, bytes) and int((_MASTERS.search(cluster) or (0, 0))[1]) > 1:
        raise NotLetIn("Redis: this is one of several masters of a cluster; a single one is needed")


async def _open(
    address: Address,
    call_timeout: float,
    on_lost: Callable[[Wire, str], None],
    name: str,
    on_push: Callable[[Any], None] | None = None,
    silence: float | None = None,
    *,
    lookup_s: float,
) -> Wire:
    """Looks the name up, connects and greets. Raises :class:`StateUnavailable`; no half-open connection is left."""
    loop = asyncio.get_running_loop()
    wire: Wire | None = None

    def make() -> Wire:
        nonlocal wire
        wire = Wire(call_timeout, on_lost, silence=silence)
        return wire

    async def reach(hosts: list[str]) -> None:
        try:
            tls = address.tls.context() if address.tls is not None else None
        except OSError as e:
            raise NotLetIn(f"Redis: {e}") from e
        await connect(make, hosts, address.port, tls, None if tls is None else address.host)

    try:
        hosts = [] if address.path else await addresses(address.host, lookup_s)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.path:
                await loop.create_unix_connection(make, address.path)
            else:
                await reach(hosts)
            assert wire is not None
            await _greet(wire, address, name)
        wire._on_push = on_push
        return wire
    except (OSError, TimeoutError) as e:
        why = f"no answer within {CONNECT_TIMEOUT_S:g} s" if isinstance(e, TimeoutError) else str(e)
        if wire is not None:
            wire.close(why)
        raise (NotLetIn if isinstance(e, ssl.SSLError) else StateUnavailable)(f"Redis: {why}") from e
    except BaseException:
        if wire is not None:
            wire.close("given up while connecting")
        raise


class Keeper:
    """Keeps one wire up: connects, reconnects with backoff, tells of changes once."""

    _all: ClassVar[weakref.WeakSet[Keeper]] = weakref.WeakSet()  # those that were started, of whatever loop

    def __init__(
        self, url: str, name: str, timeout: float, silence: float | None = None, probe: float | None = None
    ) -> None:
        self._address = parse_url(url)
        self._name = name
        self._timeout = timeout
        self._silence = silence
        self._probe = probe
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._logged: bool | None = None
        self._told: dict[str, float] = {}  # in this outage, or on this connection: when it was last heard
        self.not_let_in = ""  # why, as the server or a certificate says
        self.answered = ""  # what the server said instead of letting this process use it, where it was reached
        self._home: asyncio.AbstractEventLoop | None = None

    @property
    def available(self) -> bool:
        """Whether the last thing heard of Redis was an answer."""
        return self._wire is not None

    def _push_handler(self) -> Callable[[Any], None] | None:
        return None

    async def _entered(self, wire: Wire) -> None:
        """Called with a fresh wire before it counts as up."""

    def _changed(self, available: bool) -> None:
        """Called once per change of state."""

    def _tell(self, available: bool, why: str = "") -> None:
        if available == self._logged:
            return
        if available and self._logged is not None:
            log.info("redis %s (%s): available again", self._address, self._name)
        elif not available:
            log.warning("redis %s (%s): unavailable, %s", self._address, self._name, why)
        self._logged = available
        self._changed(available)

    def _on_lost(self, wire: Wire, why: str) -> None:
        if wire is not self._wire:
            return
        self._wire = None
        self._lost.set()
        self._tell(False, why)

    async def _try(self, lookup_s: float = LOOKUP_TIMEOUT_S) -> bool:
        self._lost.clear()
        try:
            wire = await _open(
                self._address, self._timeout, self._on_lost, self._name, self._push_handler(), self._silence,
                lookup_s=lookup_s,
            )  # fmt: skip
            await self._entered(wire)
        except StateUnavailable as e:
            self._not_in(e)
            return False
        if wire.closed:
            return False
        self._wire = wire
        if self._probe is not None:
            wire.probe_every(self._probe)
        self.not_let_in = self.answered = ""
        self._told.clear()
        self._tell(True)
        return True

    def _not_in(self, error: StateUnavailable) -> None:
        why, down = str(error), self._logged is False
        if isinstance(error, Answered):
            if down and why not in self._told:
                log.warning("redis %s (%s): still unavailable, %s", self._address, self._name, why)
            self._told[why] = time.monotonic()
        if isinstance(error, NotLetIn):
            self.not_let_in = why.removeprefix("Redis: ")
        elif isinstance(error.__cause__, OSError):  # not reached at all
            self.not_let_in = ""
        self.answered = "" if isinstance(error.__cause__, OSError) else why.removeprefix("Redis: ")
        self._tell(False, why)

    async def start(self) -> bool:
        """Tries once to connect, then keeps at it in the background. True when it is up. Never raises for Redis."""
        assert self._task is None, "started twice"
        self._home = asyncio.get_running_loop()
        self._all.add(self)
        up = await self._try(CONNECT_TIMEOUT_S)  # what starts here need not wait for a slow resolver
        self._task = asyncio.create_task(self._keep(up), name=f"redis-{self._name}")
        return up

    async def _keep(self, up: bool) -> None:
        failures = 0 if up else 1
        while True:
            if self._wire is not None:
                await self._lost.wait()
                failures = 1
            if failures:
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
            failures = 0 if await self._try() else failures + 1

    def _leave(self) -> None:
        """The node has become a replica: every connection of this process to that address begins anew."""
        for keeper in list(self._all):
            if keeper._address == self._address and keeper._home is not None:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    keeper._home.call_soon_threadsafe(keeper._drop, "this node has become a replica")

    def _drop(self, why: str) -> None:
        if self._wire is not None:
            self._wire.close(why)

    async def close(self) -> None:
        """Ends the connection; open calls fail. Says nothing in the log."""
        self._all.discard(self)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close("closed here")


class RespConnection(Keeper):
    """The shared connection of one process for one purpose. Use from one event loop.

    ``call_timeout`` bounds every call; give a connection for blocking reads a longer one, and nothing else to do.
    ``silence`` is for how long nothing may come back while calls wait (none: as long as a call may take); ``probe`` is
    how often a connection is asked on which nobody calls (none: never). All in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "quartermaster",
        call_timeout: float = CALL_TIMEOUT_S,
        silence: float | None = None,
        probe: float | None = None,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(url, name, call_timeout, silence, probe)
        self._on_change = on_change
        self.refusing = ""  # why it takes no writes, in Redis' words; empty: it does, as far as is known
        self._trying: asyncio.Task[None] | None = None

    def _changed(self, available: bool) -> None:
        if self._on_change is not None:
            self._on_change(available)

    def _connected(self) -> Wire:
        if self._wire is None:
            raise StateUnavailable("Redis is not reachable")
        return self._wire

    def _send(self, words: tuple[Word, ...]) -> asyncio.Future[Any]:
        return self._connected().send(pack(words))

    async def call(self, *words: Word) -> Any:
        """One command. Raises StateUnavailable, or StateError for an error that waiting will not heal."""
        reply = await self._send(words)
        if isinstance(reply, hiredis.ReplyError):
            raise self._error(reply)
        return reply

    async def eval(self, script: Script, prefix: bytes, args: Sequence[Word]) -> Any:
        """One script with one key (the pool's prefix). A server that does not know it yet gets its text."""
        if script.many:
            reply = await self._connected().together(script, prefix, args)
            if isinstance(reply, hiredis.ReplyError):
                raise self._error(reply, script.name)
            return reply
        reply = await self._send((b"EVALSHA", script.sha, b"1", prefix, *args))
        if isinstance(reply, hiredis.ReplyError):
            if not str(reply).startswith("NOSCRIPT"):
                raise self._error(reply, script.name)
            # It has not run, so sending it again is not a retry.
            reply = await self._send((b"EVAL", script.source, b"1", prefix, *args))
            if isinstance(reply, hiredis.ReplyError):
                raise self._error(reply, script.name)
        return reply

    def tell(self, script: Script, prefix: bytes, args: Sequence[Word]) -> None:
        """Runs a script without waiting for its answer. For scripts whose failure is harmless: while Redis is away,
        nothing is sent."""
        wire = self._wire
        if wire is not None:
            answer = wire.send(pack((b"EVALSHA", script.sha, b"1", prefix, *args)))
            answer.add_done_callback(partial(self._told_of, script, prefix, args))

    def _told_of(self, script: Script, prefix: bytes, args: Sequence[Word], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        reply, wire = answer.result(), self._wire
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT") and wire is not None:
            wire.send(pack((b"EVAL", script.source, b"1", prefix, *args))).add_done_callback(_forgotten)

    async def time_s(self) -> float:
        """Redis' TIME [epoch s]. Raises as ``call``."""
        seconds, micros = await self.call(b"TIME")
        return int(seconds) + int(micros) / 1e6

    def _error(self, reply: hiredis.ReplyError, script: str = "") -> Exception:
        text = str(reply)
        match = _OF_SCRIPT.search(text)
        code = match[1] if match else text.partition(" ")[0]
        if code in _REFUSING:
            self._refused(code, text)
        elif code in _WAITS_FOR_A_PERSON:
            now_s = time.monotonic()
            if now_s - self._told.get(text, float("-inf")) >= TELL_AGAIN_S:
                log.error("redis %s (%s): refuses %s: %s", self._address, self._name, script or "a command", text)
            self._told[text] = now_s
        kind = StateUnavailable if code in _UNAVAILABLE else StateError
        return kind(f"Redis{f' ({script}.lua)' if script else ''}: {text}")

    def _refused(self, code: str, text: str) -> None:
        if code == "READONLY":
            self._leave()
        elif not self.refusing:
            self.refusing = text
            log.error("redis %s (%s): refuses writes: %s", self._address, self._name, text)
            self._trying = asyncio.create_task(self._until_taken(), name=f"redis-writes-{self._name}")

    async def _until_taken(self) -> None:
        """Writes now and then until that works."""
        while True:
            await asyncio.sleep(WRITES_S)
            try:
                reply = await self._send((b"SET", WRITES_KEY, b"1", b"PX", b"1000"))
            except StateUnavailable:
                continue
            if not isinstance(reply, hiredis.ReplyError):
                self.refusing = ""
                log.info("redis %s (%s): takes writes again", self._address, self._name)
                return

    async def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        await super().close()


def _forgotten(answer: asyncio.Future[Any]) -> None:
    """Takes note of a failure that nobody cares for."""
    if not answer.cancelled():
        answer.exception()
