"""What only this machine reaches."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``, or whether a peer of that address is this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_address(host: str) -> bool:
    """Whether it is an IP address, which no name server can change."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
