"""A store of kept responses without a database."""

from __future__ import annotations

from scheduling.gateway.answers.stored import Kept, Owner, StoreAway


class Memory:
    """A store that a test looks into."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Owner, str], Kept] = {}
        self.away = False

    async def load(self, owner: Owner, response_id: str) -> Kept | None:
        if self.away:
            raise StoreAway("test")
        return self.kept.get((owner, response_id))

    async def keep(self, owner: Owner, response_id: str, kept: Kept) -> bool:
        if self.away:
            return False
        self.kept[owner, response_id] = kept
        return True
