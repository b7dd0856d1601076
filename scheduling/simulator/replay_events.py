"""Kinds of events of a replay, in the order in which those of one instant are handled."""

from __future__ import annotations

FIRST, ENDED, TAKEN_BACK, ARRIVED, WAKE, LOOK, SECOND, DECIDE, EXPIRED, HANDED_OVER = range(10)
