"""Where PostgreSQL is: its URL, read without a driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote

from scheduling.state.address import split_address

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """What Django is told of a database. ``options`` are libpq's, from the URL's query."""

    name: str
    user: str
    password: str = field(repr=False)
    host: str
    port: str
    options: dict[str, str]


def parse_database_url(url: str) -> DatabaseAddress:
    """``postgresql://user:password@host:port/name?sslmode=verify-full&...``; a folder as ``host`` of the query is
    where a socket is.

    Raises ValueError that says what is wrong without repeating the password.
    """
    parts, port = split_address(url, "use one host and a number as its port (several: ?host=a,b&port=5432,5432)")
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("must begin with postgresql://; leave it empty for SQLite")
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ValueError("names no database, as in postgresql://user:password@host:5432/quartermaster")
    options = {option: values[-1] for option, values in parse_qs(parts.query).items()}
    mode = options.get("sslmode", SSL_MODES[0])
    if mode not in SSL_MODES:
        raise ValueError(f"sslmode must be one of {', '.join(SSL_MODES)}, not {mode!r}")
    for option in FILES:
        path = options.get(option, "")
        if path not in ("", "system") and not Path(path).is_file():
            raise ValueError(f"{option}: there is no file {path}")
    host = options.pop("host", "") or unquote(parts.hostname or "")
    return DatabaseAddress(
        name, unquote(parts.username or ""), unquote(parts.password or ""), host, str(port or ""), options
    )
