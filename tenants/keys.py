"""Keys and tokens: how they look, and what is kept of them.

``qm-<id>.<secret>`` opens ``/v1``; ``qma-<id>.<secret>`` opens the management API in its owner's name. The id (12
characters of base62) is public and is how a key is looked up; the secret (256 bits, base64url) is shown once. Stored is
its SHA-256: the secret has full entropy, so a slow password hash would cost time on every request and add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass

KEY_PREFIX = "qm-"
TOKEN_PREFIX = "qma-"  # noqa: S105  a prefix, not a secret
INVITATION_PREFIX = "qmi-"
ID_LENGTH = 12
SECRET_LENGTH = 43  # 32 bytes in unpadded base64url

_ID_ALPHABET = string.digits + string.ascii_letters
_SHAPE = re.compile(rf"(qm[ai]?-)([0-9A-Za-z]{{{ID_LENGTH}}})\.([0-9A-Za-z_-]{{{SECRET_LENGTH}}})")


@dataclass(frozen=True, slots=True)
class Credential:
    """A key or token in clear text. Lives only between its making and its one display."""

    prefix: str
    public_id: str
    secret: str

    @property
    def text(self) -> str:
        return f"{self.prefix}{self.public_id}.{self.secret}"

    @property
    def digest(self) -> str:
        return digest(self.secret)

    def __repr__(self) -> str:
        return f"Credential({self.prefix}{self.public_id}.***)"


def make(prefix: str = KEY_PREFIX) -> Credential:
    """A fresh credential from the system's random source."""
    public_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(ID_LENGTH))
    return Credential(prefix, public_id, secrets.token_urlsafe(32))


def parse(text: str) -> Credential | None:
    """Reads ``<prefix><id>.<secret>``; None when it has another shape."""
    match = _SHAPE.fullmatch(text)
    return Credential(match[1], match[2], match[3]) if match else None


def digest(secret: str) -> str:
    """SHA-256 of the secret, as 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def matches(credential: Credential, stored_digest: str) -> bool:
    """Whether the secret is the stored one, in constant time."""
    return hmac.compare_digest(credential.digest, stored_digest)
