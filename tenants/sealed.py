"""Secrets that have to be used again and so cannot be digests: encrypted in the database with the instance's key.

What was sealed with one of ``SECRET_KEY_FALLBACKS`` opens as well, so that the key can be changed.
"""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.crypto import salted_hmac


def _box(purpose: str) -> MultiFernet:
    salt = f"quartermaster.sealed.{purpose}"
    keys = (
        salted_hmac(salt, "", secret=secret, algorithm="sha256").digest()
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in keys])


def seal(text: str, purpose: str) -> str:
    """Can be opened by who knows ``SECRET_KEY`` and means it for the same purpose."""
    return _box(purpose).encrypt(text.encode()).decode("ascii")


def unseal(sealed: str, purpose: str) -> str | None:
    """The sealed value; None if it was sealed with another key, or is not sealed at all."""
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except (InvalidToken, ValueError):
        return None


def resealed(sealed: str, purpose: str) -> str | None:
    """The same, sealed with ``SECRET_KEY``; None as of :func:`unseal`."""
    try:
        return _box(purpose).rotate(sealed.encode()).decode("ascii")
    except (InvalidToken, ValueError):
        return None
