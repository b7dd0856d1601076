"""Tells shared state that prompts have been prefilled, so that their replicas get the next ones.

On the hot path: a call appends two words to a list, and one script call tells of all first tokens of some milliseconds.
Nobody waits for its answer, and nothing is repeated: what is lost is given back when the request ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduling.core.capacity.prefill_pace import TOLD_AFTER_S
from scheduling.state.store import PoolStore


class FirstTokens:
    """First tokens of one gateway that are still to be told."""

    def __init__(self, stores: Callable[[str], PoolStore]) -> None:
        self._stores = stores
        self._pending: dict[str, list[str | int]] = {}  # pool -> request, attempt, request, ...

    def came(self, pool: str, request_id: str, attempt: int) -> None:
        """The first token of a stream that holds prefill credit."""
        pending = self._pending
        if not pending:
            asyncio.get_running_loop().call_later(TOLD_AFTER_S, self._tell)
        words = pending.get(pool)
        if words is None:
            pending[pool] = [request_id, attempt]
        else:
            words += (request_id, attempt)

    def _tell(self) -> None:
        pending, self._pending = self._pending, {}
        for pool, words in pending.items():
            self._stores(pool).tell_first_tokens(words)
