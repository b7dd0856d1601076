"""Files are read from disk while they are sent, few at once for one user, and gone when they are sent or left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from rest_framework.exceptions import Throttled, ValidationError

from telemetry.api import sent_files
from telemetry.api.sent_files import AT_ONCE, SentFile, send

PIECE = b"x" * 100_000


@pytest.fixture(autouse=True)
def nothing_is_sent() -> Iterator[None]:
    gc.collect()
    sent_files._places.clear()
    yield
    sent_files._places.clear()


def made(user: object, pieces: int = 10) -> SentFile:
    return send(user, (PIECE for _ in range(pieces)), "text/csv", "a.csv")


async def taken(answer: SentFile, most: int = 10**6) -> int:
    """How many bytes, after at most so many pieces."""
    size, pieces = 0, aiter(answer)
    async for piece in pieces:
        size, most = size + len(piece), most - 1
        if not most:
            await pieces.aclose()  # type: ignore[attr-defined]
            break
    return size


def test_a_file_is_read_piece_by_piece_as_its_client_takes_it() -> None:
    answer = made("anna", 30)
    assert answer._file._rolled, "it is on disk"  # type: ignore[attr-defined]
    assert asyncio.run(taken(answer, 2)) <= 2 * 65_536
    answer = made("anna", 30)
    assert asyncio.run(taken(answer)) == 30 * len(PIECE)
    assert answer["Content-Disposition"] == 'attachment; filename="a.csv"'


@pytest.mark.parametrize("pieces", [1, 10**6])
def test_a_file_is_gone_when_it_was_sent_or_its_client_has_left(pieces: int) -> None:
    answer = made("anna")
    asyncio.run(taken(answer, pieces))
    assert answer._file.closed


@pytest.mark.django_db
def test_one_user_is_sent_few_files_at_once_and_others_are_not_concerned() -> None:
    held = [made("anna") for _ in range(AT_ONCE)]
    with pytest.raises(Throttled, match="Wait until one of them"):
        made("anna")
    assert asyncio.run(taken(made("boris"))) > 0
    asyncio.run(taken(held[0]))
    held[0] = made("anna")
    held[1].close()
    held[1] = made("anna")
    with pytest.raises(Throttled):
        made("anna")
    del held
    gc.collect()
    assert made("anna"), "what nobody holds is not sent"


def test_files_that_are_made_side_by_side_take_their_places_before_they_are_there() -> None:
    def piece_after(others: int) -> Iterator[bytes]:
        if others:
            made_beside.append(send("anna", piece_after(others - 1), "text/csv", "a.csv"))
        yield PIECE

    made_beside: list[SentFile] = []
    with pytest.raises(Throttled):
        send("anna", piece_after(AT_ONCE), "text/csv", "a.csv")
    assert made_beside == []
    assert made("anna"), "those that failed have given their places back"


def test_a_file_that_grows_too_large_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_files, "MAX_BYTES", 950_000)
    with pytest.raises(ValidationError, match="Shorten the range"):
        made("anna")
    assert made("anna", 9)
    assert len(sent_files._places["anna"]) <= 1


def test_what_goes_wrong_while_a_file_is_made_is_raised_before_anything_is_sent() -> None:
    def pieces() -> Iterator[bytes]:
        yield PIECE
        raise RuntimeError("the database is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        send("anna", pieces(), "text/csv", "a.csv")
    assert "anna" not in sent_files._places
