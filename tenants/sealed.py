"""Secrets that have to be used again and so cannot be digests: encrypted in the database with the instance's key."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken
from django.utils.crypto import salted_hmac


def _box(purpose: str) -> Fernet:
    key = salted_hmac(f"quartermaster.sealed.{purpose}", "", algorithm="sha256").digest()
    return Fernet(base64.urlsafe_b64encode(key))


def seal(text: str, purpose: str) -> str:
    """Can be opened by who knows ``SECRET_KEY`` and means it for the same purpose."""
    return _box(purpose).encrypt(text.encode()).decode("ascii")


def unseal(sealed: str, purpose: str) -> str | None:
    """The sealed value; None if it was sealed with another key, or is not sealed at all."""
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except (InvalidToken, ValueError):
        return None
