"""The address at which people reach the console."""

from __future__ import annotations

from django.conf import settings


def public_url(path: str) -> str:
    """``path`` there; "" where that address is not known (``QUARTERMASTER_PUBLIC_URL``)."""
    base = str(settings.QUARTERMASTER_PUBLIC_URL).rstrip("/")
    return f"{base}{path}" if base else ""
