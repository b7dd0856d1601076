"""How often a process of ours looks for cycles among its objects.

Python looks at the young ones after every 700 that were made and not freed. Of ours hardly any lie in cycles, and each
look costs time: a tenth of each request in a gateway, and a third of a millisecond in the step of a leader.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000  # made and not freed between two looks


def look_rarely() -> None:
    """For a process that has started: what was imported stays, so it need not be walked through again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
