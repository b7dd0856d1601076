"""Django's cache in Redis, as JSON: nothing read from it can be more than data."""

from __future__ import annotations

import json
from typing import Any


class JsonSerializer:
    """For ``RedisCache``. Whole numbers stay as they are, so that Redis can count with them."""

    def dumps(self, value: Any) -> bytes | int:
        return value if type(value) is int else json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        """None for what this did not write: it is as if nothing were there."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None
