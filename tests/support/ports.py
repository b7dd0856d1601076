"""Ports for what tests start."""

from __future__ import annotations

import secrets
import socket

# Below those that the kernel gives to outgoing connections: a port that was free stays free until its server starts,
# and two runs of tests hardly ever draw the same one.
FIRST, COUNT = 10_000, 22_000


def free_port() -> int:
    """A loopback port that nobody listens on."""
    while True:
        port = FIRST + secrets.randbelow(COUNT)  # not `random`: tests seed it alike in every process
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
