"""How many passwords may be tried: counted before they are checked, in Redis for all web processes together.

Three counts over five minutes, of passwords that were wrong or are being checked:

* a name from an address: ten. From other addresses the name's owner gets in, so nobody can lock it for everybody;
* an address, whatever the names: fifty;
* a name, whatever the addresses: a hundred. From then on one password in five seconds is checked for it, except from
  addresses where its owner has signed in during the last thirty days.

A fourth counts right ones of a name, fifty: each is hashed as slowly as a wrong one, leaves a row in the audit log, and
holds up others who sign in. Only who knows the password uses them up, so nobody is locked out by strangers.

An address is an IPv4 address or an IPv6 network of 64 bits: a stranger has as many addresses in his as he likes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from typing import Protocol

import redis
from django.conf import settings

from scheduling.state.blocking import blocking_client

log = logging.getLogger(__name__)

WINDOW_S = 300
FAILURES = 10  # for one name from one address
PER_ADDRESS = 50
PER_NAME, SLOWLY_S = 100, 5
RIGHT = 50  # passwords of one name
KNOWN_S = 30 * 86_400
REMEMBERED = 10_000  # counts that a process keeps while Redis is away
AT_ONCE, AT_ONCE_PER_ADDRESS = 8, 4
AT_ONCE_KNOWN = 2  # of names from addresses where their owners have signed in, so many more

TOO_MANY = "Too many wrong passwords were tried for this name, or from your address. Wait {wait}, then try again."
SLOWLY = "Too many wrong passwords were tried for this name, so they are checked slowly. Try again in {wait}."
OFTEN = (
    "With this name somebody signed in {right} times in five minutes. Wait {wait}, then try again. A program uses an "
    "access token instead of a password."
)


class Store(Protocol):
    """Counts that end by themselves. Each operation is atomic."""

    def take(self, key: str, limit: int, window_s: int) -> int:
        """Counts one more; 0, or in how many seconds to come again where there were ``limit`` already."""

    def give_back(self, key: str) -> None: ...

    def forget(self, key: str) -> None: ...

    def mark(self, key: str, for_s: int) -> None: ...

    def marked(self, key: str) -> bool: ...

    def full(self, key: str, limit: int) -> int:
        """0, or in how many seconds to come again where ``limit`` are counted. Counts nothing."""


class RedisStore:
    """Raises redis.RedisError where it does not answer."""

    # Counting and the count's end are one step: a count without an end would lock for good.
    _TAKE = """
    local count = redis.call('INCR', KEYS[1])
    local left = redis.call('TTL', KEYS[1])
    if left < 0 then
      redis.call('EXPIRE', KEYS[1], ARGV[2])
      left = tonumber(ARGV[2])
    end
    if count > tonumber(ARGV[1]) then
      redis.call('DECR', KEYS[1])
      return math.max(left, 1)
    end
    return 0
    """
    _GIVE_BACK = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DECR', KEYS[1]) end"

    def __init__(self, url: str) -> None:
        self._redis = blocking_client(url, timeout_s=1.0)
        self._take = self._redis.register_script(self._TAKE)
        self._back = self._redis.register_script(self._GIVE_BACK)

    def take(self, key: str, limit: int, window_s: int) -> int:
        return int(self._take(keys=[key], args=[limit, window_s]))

    def give_back(self, key: str) -> None:
        self._back(keys=[key])

    def forget(self, key: str) -> None:
        self._redis.delete(key)

    def mark(self, key: str, for_s: int) -> None:
        self._redis.set(key, 1, ex=for_s)

    def marked(self, key: str) -> bool:
        return bool(self._redis.exists(key))

    def full(self, key: str, limit: int) -> int:
        if int(self._redis.get(key) or 0) < limit:
            return 0
        return max(1, int(self._redis.ttl(key)))


class LocalStore:
    """One process's own, while Redis is away: guessing must not become free because it is."""

    def __init__(self, most: int = REMEMBERED, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()  # with their ends, the oldest first

    def take(self, key: str, limit: int, window_s: int) -> int:
        with self._lock:
            count, end = self._counted(key, window_s)
            if count >= limit:
                return max(1, round(end - self._clock()))
            self._put(key, count + 1, end)
            return 0

    def give_back(self, key: str) -> None:
        with self._lock:
            if key in self._counts:
                count, end = self._counts[key]
                self._counts[key] = (max(0, count - 1), end)

    def forget(self, key: str) -> None:
        with self._lock:
            self._counts.pop(key, None)

    def mark(self, key: str, for_s: int) -> None:
        with self._lock:
            self._put(key, 1, self._clock() + for_s)

    def marked(self, key: str) -> bool:
        with self._lock:
            return self._counted(key, 0)[0] > 0

    def full(self, key: str, limit: int) -> int:
        with self._lock:
            count, end = self._counted(key, 0)
            return max(1, round(end - self._clock())) if count >= limit else 0

    def __len__(self) -> int:
        return len(self._counts)

    def _counted(self, key: str, window_s: int) -> tuple[int, float]:
        now = self._clock()
        count, end = self._counts.get(key, (0, 0.0))
        return (count, end) if end > now else (0, now + window_s)

    def _put(self, key: str, count: int, end: float) -> None:
        self._counts[key] = (count, end)
        while len(self._counts) > self._most:
            self._counts.popitem(last=False)


_local = LocalStore()
_redis_failed = False


@lru_cache(maxsize=1)
def _shared(url: str) -> RedisStore:
    return RedisStore(url)


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str
    retry_s: int


@dataclass(frozen=True, slots=True)
class _Keys:
    pair: str
    address: str
    name: str
    slowly: str
    known: str
    right: str

    @classmethod
    def of(cls, name: str, address: str) -> _Keys:
        # the login form strips and normalises as well: another spelling of a name is no other name
        name = unicodedata.normalize("NFKC", name).strip().casefold()
        pair, address, name = (_digest(text) for text in (f"{address}\n{name}", address, name))
        return cls(*(f"qm:login:{kind}" for kind in (
            f"pair:{pair}", f"address:{address}", f"name:{name}", f"slowly:{name}", f"known:{pair}",
            f"right:{name}",
        )))  # fmt: skip


class Attempt:
    """A password that may be checked, and is counted as a wrong one unless it is said otherwise."""

    def __init__(self, store: Store, keys: _Keys, taken: list[str]) -> None:
        self._store = store
        self._keys = keys
        self._taken = taken

    def unchecked(self) -> None:
        """No password was checked after all."""
        for key in self._taken:
            _tried(partial(self._store.give_back, key))

    def fitted(self) -> None:
        """The password was right, and nobody is signed in by it alone."""
        self.unchecked()
        _tried(partial(self._store.take, self._keys.right, RIGHT, WINDOW_S))

    def right(self, *, password: bool = True) -> None:
        """It let somebody in: wrong ones of that name from there are forgotten. ``password``: and no code after it."""
        if password:
            self.fitted()
        else:
            self.unchecked()
        _tried(partial(self._store.forget, self._keys.pair))
        _tried(partial(self._store.mark, self._keys.known, KNOWN_S))


def begin(name: str, address: str, *, password: bool = True) -> tuple[Attempt | None, Refusal | None]:
    """Counts a password that is about to be checked, or a code; one of the two answers is None."""
    global _redis_failed
    keys = _Keys.of(name, address)
    url = settings.QUARTERMASTER_REDIS_URL
    if url:
        try:
            result = _begin(_shared(url), keys, password)
        except redis.RedisError as error:
            if not _redis_failed:
                log.warning("Redis is away (%s): passwords are counted in this process only", type(error).__name__)
            _redis_failed = True
        else:
            _redis_failed = False
            return result
    return _begin(_local, keys, password)


def known(name: str, address: str) -> bool:
    """Whether the owner of this name has signed in from this address lately."""
    key, url = _Keys.of(name, address).known, settings.QUARTERMASTER_REDIS_URL
    if url:
        try:
            return _shared(url).marked(key)
        except redis.RedisError:
            pass
    return _local.marked(key)


def take(what: str, limit: int, window_s: int) -> int:
    """Counts one more of something else that strangers may do; 0, or in how many seconds to come again."""
    key, url = f"qm:login:{_digest(what)}", settings.QUARTERMASTER_REDIS_URL
    if url:
        try:
            return _shared(url).take(key, limit, window_s)
        except redis.RedisError:
            pass
    return _local.take(key, limit, window_s)


def forget(what: str) -> None:
    """What :func:`take` counted is over: it was right after all."""
    key, url = f"qm:login:{_digest(what)}", settings.QUARTERMASTER_REDIS_URL
    _local.forget(key)
    if url:
        _tried(partial(_shared(url).forget, key))


def _begin(store: Store, keys: _Keys, password: bool) -> tuple[Attempt | None, Refusal | None]:
    if password and (wait_s := store.full(keys.right, RIGHT)):
        return None, Refusal(OFTEN.format(right=RIGHT, wait=_spoken(wait_s)), wait_s)
    taken: list[str] = []
    # The address comes first: one that has had its share makes no counts for names any more.
    for key, limit in ((keys.address, PER_ADDRESS), (keys.pair, FAILURES), (keys.name, PER_NAME)):
        wait_s, text = store.take(key, limit, WINDOW_S), TOO_MANY
        if wait_s and key == keys.name:
            text = SLOWLY
            wait_s = 0 if store.marked(keys.known) else store.take(keys.slowly, 1, SLOWLY_S)
            if not wait_s:
                continue
        if wait_s:
            for before in taken:
                store.give_back(before)
            return None, Refusal(text.format(wait=_spoken(wait_s)), wait_s)
        taken.append(key)
    return Attempt(store, keys, taken), None


def _spoken(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} second{'s' * (seconds != 1)}"
    minutes = -(-seconds // 60)
    return f"{minutes} minute{'s' * (minutes != 1)}"


def _tried(operation: Callable[[], object]) -> None:
    with contextlib.suppress(redis.RedisError):  # what is not given back ends with its window
        operation()


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def network_of(address: str) -> str:
    """What counts as one address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


class Places:
    """How many requests with a password a process handles at a time, in all and of one address."""

    def __init__(self, most: int = AT_ONCE, per_address: int = AT_ONCE_PER_ADDRESS) -> None:
        self._most = most
        self._per_address = per_address
        self._lock = threading.Lock()
        self._inside: dict[str, int] = {}

    def enter(self, address: str, *, known: bool = False) -> bool:
        """Whether there was a place; :meth:`leave` must follow then. ``known``: it may be one of those that are kept
        from strangers, who take all others from a few addresses."""
        most = self._most + AT_ONCE_KNOWN * known
        with self._lock:
            mine = self._inside.get(address, 0)
            if mine >= self._per_address or sum(self._inside.values()) >= most:
                return False
            self._inside[address] = mine + 1
            return True

    def leave(self, address: str) -> None:
        with self._lock:
            left = self._inside[address] - 1
            if left:
                self._inside[address] = left
            else:
                del self._inside[address]
