"""Identifies a request: its API key, and the entitlement of that key that its model chooses."""

from __future__ import annotations

from collections.abc import Callable

from scheduling.catalog import CatalogCache
from scheduling.core.outcomes import Reason
from scheduling.gateway.bodies.prepare import choose
from scheduling.gateway.entry.auth import Access, Keyring, OpensNothing, split_key
from scheduling.gateway.errors import Refusal

NEW_KEY_WAIT_S = 0.5  # a key made a moment ago elsewhere: one look at the database before it is called unknown


class Authenticator:
    """Of one gateway, by the keys that it knows at a time."""

    def __init__(self, catalog: CatalogCache, keyring: Callable[[], Keyring]) -> None:
        self._catalog = catalog
        self._keyring = keyring

    async def access(self, authorization: bytes | None, now_s: float) -> Access:
        parts = split_key(authorization)
        try:
            if parts is not None:
                access = self._keyring().find(*parts, now_s)
                if access is None:
                    await self._catalog.refreshed(NEW_KEY_WAIT_S)
                    access = self._keyring().find(*parts, now_s)
                if access is not None:
                    return access
        except OpensNothing:
            raise Refusal(Reason.NOT_ENTITLED, state="missing: its project has none") from None
        raise Refusal(Reason.NO_KEY)

    def choose(self, model: str, access: Access) -> Access:
        return choose(model, access)

    def configured(self) -> None:
        """The catalog is another one now."""
