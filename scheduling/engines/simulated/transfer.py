"""KV cache that one replica computes and another one uses: what NixlConnector says about it, and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from scheduling.core.capacity.kv import blocks
from scheduling.core.placement.legs import transfer_s
from scheduling.engines.simulated import engine
from scheduling.engines.simulated.http import Connection
from scheduling.engines.simulated.requests import ApiError, Transfer

PORT = 5600  # vLLM's side channel
_WHERE = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


class Handed(Protocol):
    """An answer that may be written from what another replica computed."""

    connection: Connection
    prompt_tokens: int
    transfer: dict[str, Any] | None  # where its KV cache is, for whom it was computed
    gone: bool  # its client

    @property
    def sequences(self) -> Sequence[engine.Sequence]: ...

    def lost(self) -> None: ...


A = TypeVar("A", bound=Handed)
Start = Callable[[Connection, A], None]


def begin(asked: Transfer | None, answer: A, number: int, bytes_per_token: float, start: Start[A]) -> None:
    """Starts an answer whose prompt is computed for another replica, or was by another one: then when its KV cache has
    arrived. At once where nothing is ``asked``. Raises :class:`ApiError` where nothing says where that is."""
    connection = answer.connection
    if asked is None:
        start(connection, answer)
        return
    if asked.do_remote_decode:
        answer.transfer = _handed_over(number, answer.prompt_tokens)
    if not asked.do_remote_prefill:
        start(connection, answer)
        return
    if missing := [name for name in _WHERE if getattr(asked, name) is None]:
        raise ApiError(400, f"kv_transfer_params of a remote prefill need {', '.join(missing)}")
    for sequence in answer.sequences:
        sequence.cached = sequence.prompt_tokens - 1  # the last one is computed where the answer is written
    connection.exchange = answer
    seconds = transfer_s(answer.prompt_tokens, bytes_per_token)
    asyncio.get_running_loop().call_later(seconds, _arrived, connection, answer, start)


def _arrived(connection: Connection, answer: A, start: Start[A]) -> None:
    if answer.gone:
        return
    connection.exchange = None
    try:
        start(connection, answer)
    except ApiError as error:
        connection.respond(error.status, error.body)


def _handed_over(number: int, tokens: int) -> dict[str, Any]:
    """What the answer says of a prompt that was computed for another replica."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"simulated-{number}",
        "remote_block_ids": list(range(blocks(tokens))),
        "remote_host": "127.0.0.1",
        "remote_port": PORT,
        "tp_size": 1,
    }
