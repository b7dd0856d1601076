"""Encrypts stored texts of clients with AES-GCM, under a secret that the caller derives for each owner."""

from __future__ import annotations

import os

_NONCE = 12
OVERHEAD = 28  # bytes that a sealed text is longer


def seal(secret: bytes, text: bytes) -> bytes:
    """``secret``: 32 bytes, of this text alone or of all that may stand in its place."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only where something is kept

    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(secret).encrypt(nonce, text, None)


def unseal(secret: bytes, sealed: bytes) -> bytes | None:
    """None for what was not sealed with this secret."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(secret).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
    except InvalidTag:
        return None
