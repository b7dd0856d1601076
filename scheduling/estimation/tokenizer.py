"""A model's own tokenizer, from its ``tokenizer.json``: input tokens counted instead of estimated."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 2_000  # longer texts are counted in a thread: the library does not hold the interpreter's lock


class TokenizerError(Exception):
    """The file cannot be used; the text says why."""


class Tokenizer:
    """Counts tokens. Safe to use from several threads."""

    def __init__(self, path: str | Path) -> None:
        """Raises :class:`TokenizerError` for a file that is not there or is no tokenizer."""
        from tokenizers import Tokenizer as Library  # takes 50 ms, and only pools that name a file need it

        if not Path(path).is_file():
            raise TokenizerError(f"there is no tokenizer file {path}")
        try:
            self._library: Any = Library.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{path} is not a tokenizer.json: {error}") from error

    def count(self, text: str) -> int:
        """Tokens of a text, without those that a model adds around it."""
        return len(self._library.encode(text, add_special_tokens=False))


@lru_cache(maxsize=32)
def load(path: str) -> Tokenizer | None:
    """The tokenizer of a file, loaded once; None, with a line in the log, where it cannot be used."""
    try:
        return Tokenizer(path)
    except TokenizerError as error:
        log.error("input tokens are estimated from words and bytes: %s", error)
        return None
