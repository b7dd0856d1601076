"""What a request is called."""

from __future__ import annotations

import random


def new_request_id(now_s: float) -> str:
    """``req_`` and 24 hex digits: milliseconds first, so that ids sort by time."""
    return f"req_{int(now_s * 1000):012x}{random.getrandbits(48):012x}"
