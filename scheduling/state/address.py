"""Where a Redis is: its URL, and how its certificate is judged."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

_CHOICES = {"ssl_cert_reqs": ("required", "none"), "ssl_check_hostname": ("true", "false")}
_OF_TLS = frozenset({*_CHOICES, "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_OF_SOCKETS = frozenset({"db", "password"})


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server's certificate is judged, and ours if it wants one. Paths are PEM files; empty: none of one's own."""

    ca_certs: str = ""  # empty: the system's
    certfile: str = ""
    keyfile: str = ""
    verify: bool = True
    check_hostname: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.ca_certs, self.certfile, self.keyfile)))

    def context(self) -> ssl.SSLContext:
        """The same as long as no file of it changes: the system's authorities take 20 ms of CPU to read, and during an
        outage connecting is tried again and again.

        Raises OSError that names the file which cannot be read or used.
        """
        stats = [os.stat(path) for path in self.files]
        return _context(self, tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=8)
def _context(tls: Tls, of_files: tuple[tuple[int, int, int], ...]) -> ssl.SSLContext:
    for path in tls.files:
        with open(path, "rb"):  # what ssl raises does not name it
            pass
    try:
        context = ssl.create_default_context(cafile=tls.ca_certs or None)
    except ssl.SSLError as error:
        raise OSError(f"{tls.ca_certs} has no certificates: {error}") from error
    context.check_hostname = tls.verify and tls.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.certfile:
        try:
            context.load_cert_chain(tls.certfile, tls.keyfile or None)
        except ssl.SSLError as error:
            files = " and ".join(filter(None, (tls.certfile, tls.keyfile)))
            raise OSError(f"{files} are no certificate with its key: {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Redis is and how to enter it. ``str()`` never shows the password."""

    host: str = ""
    port: int = 0
    path: str = ""  # unix socket; host and port are then empty
    username: str = ""
    password: str = ""
    db: int = 0
    tls: Tls | None = None

    def __str__(self) -> str:
        return f"{self.path or f'{self.host}:{self.port}'} db {self.db}"

    __repr__ = __str__


def split_address(url: str, otherwise: str) -> tuple[SplitResult, int | None]:
    """An address with a password in its parts, and its port. Raises ValueError that says what to do ``otherwise``: what
    Python says repeats what stands there, which may be a piece of the password."""
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:
        raise ValueError(f"{otherwise}; write @ : / ? # % of a password as %40 %3A %2F %3F %23 %25") from None


def parse_url(url: str) -> Address:
    """``redis://[user:password@]host[:port][/db]`` or ``unix://[user:password@]/path[?db=N]``; ``rediss://`` is
    TLS, with redis-py's options ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs=required|none``
    and ``ssl_check_hostname=true|false``.

    Raises ValueError that says what is wrong without repeating the password.
    """
    parts, port = split_address(url, "Redis URL: use one host and a number as its port")
    query = parse_qs(parts.query)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    password = password or query.get("password", [""])[0]
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("Redis URL: unix:// needs the path of a socket, as in unix:///run/redis.sock")
        db = query.get("db", ["0"])[0]
        place = Address(path=unquote(parts.path), username=username, password=password)
    elif parts.scheme in ("redis", "rediss"):
        db = parts.path.strip("/") or query.get("db", ["0"])[0]
        place = Address(host=parts.hostname or "127.0.0.1", port=port or 6379, username=username, password=password)
    else:
        raise ValueError(
            f"Redis URL: the scheme must be redis:// or unix://, or rediss:// for TLS, not {parts.scheme or 'nothing'}://"
        )
    known = {"unix": _OF_SOCKETS, "rediss": _OF_TLS}.get(parts.scheme, frozenset())
    if others := sorted(query.keys() - known):  # the other clients (Celery, Channels) take each for one of theirs
        says = (
            f"known are {', '.join(sorted(known))}" if known else "the database is the path, as in redis://host:6379/1"
        )
        raise ValueError(f"Redis URL: there is no option {', '.join(others)}; {says}")
    if not db.isdigit():
        raise ValueError(f"Redis URL: the database must be a number, not {db!r}")
    tls = _tls({name: values[0] for name, values in query.items()}) if parts.scheme == "rediss" else None
    return Address(place.host, place.port, place.path, username, password, int(db), tls)


def _tls(query: Mapping[str, str]) -> Tls:
    for name, choices in _CHOICES.items():
        if name in query and query[name].lower() not in choices:
            raise ValueError(f"Redis URL: {name} must be {' or '.join(choices)}, not {query[name]!r}")
    return Tls(
        query.get("ssl_ca_certs", ""), query.get("ssl_certfile", ""), query.get("ssl_keyfile", ""),
        verify=query.get("ssl_cert_reqs", "required").lower() == "required",
        check_hostname=query.get("ssl_check_hostname", "true").lower() == "true",
    )  # fmt: skip
