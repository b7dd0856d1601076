"""Numbers of rows, as those are told who see only some of the rows.

The database counts the rows of all tenants together: who makes one now and one later could count what the others made
in between. So members get another number for each row, which only this instance can turn back.
"""

from __future__ import annotations

import hashlib
import hmac

from django.db.models import Model
from django.utils.crypto import salted_hmac

HALF_BITS = 26  # two of them are a number that JavaScript has exactly
ROUNDS = 4
_MASK = (1 << HALF_BITS) - 1


def _key(model: type[Model]) -> bytes:
    return salted_hmac(f"quartermaster.veiled.{model._meta.label_lower}", "", algorithm="sha256").digest()


def _mixed(key: bytes, turn: int, half: int) -> int:
    digest = hmac.digest(key, b"%d %d" % (turn, half), hashlib.sha256)
    return int.from_bytes(digest[:4], "big") & _MASK


def veil(model: type[Model], number: int) -> int:
    """Another number for this row of a model, always the same one (a Feistel network under the instance's secret)."""
    key, left, right = _key(model), number >> HALF_BITS, number & _MASK
    for turn in range(ROUNDS):
        left, right = right, left ^ _mixed(key, turn, right)
    return left << HALF_BITS | right


def unveil(model: type[Model], veiled: int) -> int:
    """The row's number. Of a number that was never given, one that no row has, as good as always."""
    key, left, right = _key(model), veiled >> HALF_BITS, veiled & _MASK
    if left > _MASK:
        return 0
    for turn in reversed(range(ROUNDS)):
        left, right = right ^ _mixed(key, turn, left), left
    return left << HALF_BITS | right
