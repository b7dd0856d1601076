"""Files that are made for one answer: kept on disk while they are sent, however slowly they are read.

Django would collect all pieces of such an answer in memory before it sends the first one, and keep them until the
client has taken the last. So they are written to a temporary file first, which also means that what goes wrong while
they are made is told in the answer instead of a file that ends in the middle.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any
from weakref import WeakSet

from django.http import StreamingHttpResponse
from rest_framework import serializers
from rest_framework.exceptions import Throttled

IN_MEMORY = 256 * 1024  # bytes: longer files are on disk
MAX_BYTES = 256 * 1024 * 1024
AT_ONCE = 4  # files of one user that are being made or sent by one process
_PIECE = 64 * 1024


class _Place:
    """What one file takes of those, from before it is made until it was sent or nobody holds it any more."""

    __slots__ = ("__weakref__",)


_places: dict[object, WeakSet[_Place]] = {}  # by user
_lock = threading.Lock()  # pages are made in several threads


class SentFile(StreamingHttpResponse):
    """An answer that is read from a temporary file piece by piece."""

    def __init__(self, file: Any, content_type: str, name: str, user: object, place: _Place) -> None:
        self._file, self._user, self._place = file, user, place
        super().__init__(self._pieces(), content_type=content_type)
        self["Content-Disposition"] = f'attachment; filename="{name}"'

    def _pieces(self) -> Iterator[bytes]:
        while piece := self._file.read(_PIECE):
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await asyncio.to_thread(self._file.read, _PIECE):
                yield piece
        finally:
            self._done()  # also where the client leaves

    def close(self) -> None:
        super().close()
        self._done()

    def _done(self) -> None:
        self._file.close()
        _give_back(self._user, self._place)


def send(user: object, pieces: Iterable[bytes], content_type: str, name: str) -> SentFile:
    """A file of this name for a user.

    Raises:
        Throttled: the user is being sent so many already.
        ValidationError: it would be too large.
    """
    place = _take(user)
    file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  the answer closes it
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > MAX_BYTES:
                raise serializers.ValidationError(
                    {"detail": f"The file would exceed {MAX_BYTES >> 20} MiB. Shorten the range, or group by less."}
                )
            file.write(piece)
    except BaseException:
        file.close()
        _give_back(user, place)
        raise
    file.seek(0)
    return SentFile(file, content_type, name, user, place)


def _take(user: object) -> _Place:
    """Before the file is made: made side by side, any number would be as many as are left."""
    with _lock:
        for other in [one for one, places in _places.items() if not places]:
            del _places[other]
        mine = _places.setdefault(user, WeakSet())
        if len(mine) >= AT_ONCE:
            raise Throttled(detail=f"You are being sent {AT_ONCE} files already. Wait until one of them is there.")
        place = _Place()
        mine.add(place)
        return place


def _give_back(user: object, place: _Place) -> None:
    with _lock:
        mine = _places.get(user)
        if mine is not None:
            mine.discard(place)
            if not mine:
                del _places[user]
