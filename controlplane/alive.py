"""``python -m controlplane.alive``: whether this container's worker or standby still runs, for a health check.

The dispatch service touches a file in HOME as long as its loop runs, whether or not Redis and the database answer: a
process is not restarted for what others lack.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

NAME = "dispatch-alive"
LATE_S = 20.0


def main(home: Path | None = None, now_s: float | None = None) -> int:
    """The exit code: 0 while it runs."""
    folder = home or Path(os.environ.get("QUARTERMASTER_HOME") or ".quartermaster")
    try:
        age_s = (time.time() if now_s is None else now_s) - (folder / NAME).stat().st_mtime
    except OSError as error:
        print(f"the dispatch service has not begun: {error}", file=sys.stderr)
        return 1
    if age_s > LATE_S:
        print(f"the dispatch service was last seen {age_s:.0f} s ago", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
