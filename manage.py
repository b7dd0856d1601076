#!/usr/bin/env python
"""Django's command line, with the settings of this project."""

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    # An embedded instance that runs on this HOME has a Redis of its own: commands send its notifications too.
    home = Path(os.environ.get("QUARTERMASTER_HOME") or ".quartermaster")
    running = home / "run" / "redis-url"
    if running.is_file():
        os.environ.setdefault("QUARTERMASTER_REDIS_URL", running.read_text().strip())
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if "--traceback" in sys.argv or not (reason := away(error)):
            raise
        sys.exit(reason)


def away(error: Exception) -> str:
    """In a line, that the database cannot be asked at all; nothing where the fault is another."""
    from django.db import DatabaseError, InterfaceError, OperationalError

    if not isinstance(error, OperationalError | InterfaceError) and type(error) is not DatabaseError:
        return ""
    said = " ".join(str(error).split())
    missing = " (`manage.py migrate` makes the tables)" if "no such table" in said else ""
    return f"The database cannot be used: {said}{missing}. --traceback shows where."


if __name__ == "__main__":
    main()
