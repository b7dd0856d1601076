"""The user of the client's application that a request is for, and the limits of its key and of that user.

A client names the user of its application in ``safety_identifier`` (the newer name) or ``user``, in ``/v1/messages`` in
``metadata.user_id``. A request that names nobody is its key's ``user``. The name attributes and limits, and opens
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from scheduling.core.admission.batch_account import is_account
from scheduling.core.admission.key_limits import Limited, Scope, owner_name, write_limits
from scheduling.gateway.bodies.openai_types import NamesUser
from scheduling.gateway.entry.auth import Access

SHOWN_CHARS = 64  # of a name that is kept as it was sent
DIGEST_CHARS = 24  # of a user in shared state
_FIELDS = ("safety_identifier", "user", "metadata")


def take_user(body: Any) -> str:
    """The user that a body names, as the ledger keeps it; empty: none. The fields go no further than here."""
    name = ""
    for field in _FIELDS:
        value = getattr(body, field, None)
        if value is None or value is NamesUser.absent:
            continue
        if isinstance(value, NamesUser) and value is not value.absent:
            name = name or value.name
            setattr(body, field, value.absent)
    return shown(name) if name else ""


def shown(name: str) -> str:
    """A name that can be stored and shown: its digest if it is too long or has unprintable characters."""
    if len(name) <= SHOWN_CHARS and name.isprintable():
        return name
    return "sha256:" + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]


def limits_of(access: Access, user: str, charge: int) -> Limited:
    """What a request of this user takes of the limits of its key, and of its own. ``charge``: tokens, its bound."""
    key, scopes = access.key, list[Scope]()
    at = owner_name(access.entitlement.tenant, is_account(access.entitlement.id))
    if key.limits:
        scopes.append(Scope(f"{at}:k:{key.id}", key.limits))
    if key.user_limits or access.user_limits:
        # who reads shared state learns no names, and cannot try names that it knows
        digest = hmac.digest(access.salt_key, b"user\0" + user.encode(), "sha256").hex()[:DIGEST_CHARS]
        if key.user_limits:
            scopes.append(Scope(f"{at}:uk:{key.id}:{digest}", key.user_limits))
        if access.user_limits:
            scopes.append(Scope(f"{at}:up:{key.project}:{digest}", access.user_limits))
    return Limited(charge, tuple(scopes))


def limits_text(access: Access, user: str, charge: int) -> str:
    """The same as a request's record has it; empty where nothing limits it, which is found at once."""
    key = access.key
    if key.limits is None and key.user_limits is None and access.user_limits is None:
        return ""
    return write_limits(limits_of(access, user, charge))
