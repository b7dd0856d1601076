"""What is read and written of a pool by plain commands: nothing here decides, so nothing has to be one step.

What decides is in the scripts, which :class:`scheduling.state.store.PoolStore` calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from scheduling.core.types import QueuedRequest
from scheduling.state import codec, replies
from scheduling.state.resp import RespConnection
from scheduling.state.types import BATCH, PREVIEW_MS, UNREAD_KEPT, Event, LedgerEntry, LedgerProgress

log = logging.getLogger("quartermaster.state")

_T = TypeVar("_T")


class PoolKeys:
    """The keys of one pool. ``blocking`` is a connection of its own for ``events``: a blocking read holds up everything
    behind it."""

    def __init__(self, resp: RespConnection, pool_id: str, blocking: RespConnection | None = None) -> None:
        self.pool_id = pool_id
        self._resp = resp
        self._blocking = blocking
        self._prefix = f"qm:{{{pool_id}}}:".encode()

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()

    async def places(self, points: Sequence[str]) -> dict[str, str]:
        """Where prompts with these points ran, the last first and a space between replicas, of those that are known.
        A plain read of the index that scripts keep (``scheduling.core.placement.rule``)."""
        replicas: dict[str, str] = {}
        for start in range(0, len(points), 1000):
            names = points[start : start + 1000]
            for key in ("warm:before", "warm"):
                reply = await self._resp.call(b"HMGET", self._key(key), *names)
                replicas |= {
                    name: value.decode() for name, value in zip(names, reply, strict=True) if value is not None
                }
        return replicas

    async def load_queue(self) -> tuple[str, list[QueuedRequest]]:
        """Everything that waits, and the event id from which to go on reading ``events``.

        The id is read first: what happens meanwhile is heard again, and hearing it twice is harmless.
        """
        last = await self._resp.call(b"XREVRANGE", self._key("events"), b"+", b"-", b"COUNT", b"1")
        waiting: dict[str, QueuedRequest] = {}
        cursor = b"0"
        while True:
            cursor, flat = await self._resp.call(b"HSCAN", self._key("queue"), cursor, b"COUNT", b"500")
            for request_id, data in zip(flat[::2], flat[1::2], strict=True):
                try:
                    waiting[request_id.decode()] = codec.decode_entry(data).queued_request()
                except ValueError as e:
                    log.error("pool %s: %s waits and cannot be read: %s", self.pool_id, request_id.decode(), e)
            if cursor == b"0":
                return (last[0][0].decode() if last else "0-0"), sorted(waiting.values(), key=lambda r: r.seq)

    async def time_s(self) -> float:
        """Redis' TIME [epoch s], which is not state time."""
        return await self._resp.time_s()

    async def events(self, last_id: str, block_ms: int) -> list[Event]:
        """The next notifications after ``last_id``, at most 500; waits up to ``block_ms`` for the first.

        Needs the ``blocking`` connection, whose time limit must be longer than ``block_ms``.
        """
        if self._blocking is None:
            raise RuntimeError("PoolStore.events needs a connection of its own: PoolStore(resp, pool, blocking=...)")
        reply = await self._blocking.call(
            b"XREAD", b"COUNT", b"500", b"BLOCK", str(block_ms).encode(), b"STREAMS", self._key("events"), last_id
        )
        return [] if reply is None else [replies.event(raw) for raw in reply[0][1]]

    async def preview_asked(self) -> bool:
        """Whether somebody looks at the queue now."""
        return bool(await self._resp.call(b"EXISTS", self._key("preview:asked")))

    async def show_preview(self, data: bytes) -> None:
        """Shows the order of what waits (JSON) for a while."""
        await self._resp.call(b"SET", self._key("preview"), data, b"PX", str(PREVIEW_MS).encode())

    async def keep_shares(self, epoch: int, data: bytes) -> None:
        """Saves the share counters for the next leader. Each epoch has a field of its own, so a superseded leader
        overwrites nothing that is read."""
        await self._resp.call(b"HSET", self._key("shares"), str(epoch).encode(), data)

    async def former_shares(self, epoch: int) -> bytes | None:
        """What the last leader before ``epoch`` kept; what others left is deleted."""
        key = self._key("shares")
        flat = await self._resp.call(b"HGETALL", key)
        kept = {int(field): data for field, data in zip(flat[::2], flat[1::2], strict=True)}
        last = max((e for e in kept if e < epoch), default=None)
        if outdated := [str(e).encode() for e in kept if last is not None and e < last]:
            await self._resp.call(b"HDEL", key, *outdated)
        return None if last is None else kept[last]

    async def ledger_progress(self) -> LedgerProgress:
        """How far the ledger was written. What was taken before this was asked is not newer than ``newest``, and stored
        as soon as ``oldest`` of a later look is newer than that, of the same data set (which is read last)."""
        key = self._key("ledger")
        newest, oldest, born = await asyncio.gather(
            self._resp.call(b"XREVRANGE", key, b"+", b"-", b"COUNT", b"1"),
            self._resp.call(b"XRANGE", key, b"-", b"+", b"COUNT", b"1"),
            self._resp.call(b"HGET", self._key("meta"), b"born"),
        )
        return LedgerProgress(_entry_id(newest), _entry_id(oldest), born or b"")

    async def ledger_read(self, count: int) -> list[LedgerEntry]:
        """The oldest ``count`` entries of the ledger stream; they stay until ``ledger_delete``."""
        reply = await self._resp.call(b"XRANGE", self._key("ledger"), b"-", b"+", b"COUNT", str(count).encode())
        entries = []
        for raw_id, fields in reply:
            entry_id = raw_id.decode()
            try:
                record = codec.decode_ledger_fields(self.pool_id, fields)
                entries.append(LedgerEntry(entry_id, record, codec.taken(fields, record)))
            except ValueError as e:
                entries.append(LedgerEntry(entry_id, None, 0, tuple(fields), str(e)))
        return entries

    async def ledger_set_aside(self, entries: Sequence[LedgerEntry]) -> None:
        """Keeps what could not be read on ``ledger:unread``, as it was and with the reason, for whoever can."""
        for entry in entries:
            await self._resp.call(
                b"XADD", self._key("ledger:unread"), b"MAXLEN", b"~", str(UNREAD_KEPT).encode(), b"*",
                *entry.fields, b"ledger_id", entry.id, b"why", entry.why,
            )  # fmt: skip

    async def ledger_delete(self, ids: Sequence[str]) -> None:
        """Removes entries that are safely in the database."""
        for batch in batches(ids):
            await self._resp.call(b"XDEL", self._key("ledger"), *batch)


def _entry_id(entries: list[Any]) -> tuple[int, int] | None:
    return replies.entry_id(entries[0][0]) if entries else None


def batches(items: Sequence[_T]) -> Iterable[Sequence[_T]]:
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))
