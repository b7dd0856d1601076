"""How the web process writes: a response's head and the first bytes of its body leave together."""

from __future__ import annotations

import asyncio

from controlplane.web.serve import HeadWithBody


class Wire:
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def writer() -> tuple[Wire, HeadWithBody]:
    wire = Wire()
    return wire, HeadWithBody(wire, asyncio.get_running_loop())


async def test_a_head_leaves_in_one_write_with_the_first_bytes_of_its_body():
    wire, response = await writer()
    response.write(b"head ")
    response.write(b"body")
    response.write(b"more")
    assert wire.done == [b"head body", b"more"]
    await asyncio.sleep(0)
    assert wire.done == [b"head body", b"more"]


async def test_a_head_whose_body_is_late_leaves_alone():
    wire, response = await writer()
    response.write(b"head")
    assert wire.done == []
    await asyncio.sleep(0)
    assert wire.done == [b"head"]
    response.write(b"body")
    assert wire.done == [b"head", b"body"]


async def test_a_head_without_a_body_leaves_before_the_connection_closes():
    wire, response = await writer()
    response.write(b"head")
    response.close()
    assert wire.done == [b"head", "closed"]
    assert response.is_closing()
