#!/usr/bin/env python
"""Django's command line, with the settings of this project."""

import errno
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
        sys.stdout.flush()  # here, where what it meets is told
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read it, such as `head`, has enough
        drop_output()
        sys.exit(141)
    except Exception as error:
        if "--traceback" in sys.argv or not (reason := away(error)):
            raise
        if isinstance(error, OSError):
            drop_output()
        sys.exit(reason)


def drop_output() -> None:
    """Else Python writes at its end what could not be written, and says so once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def away(error: Exception) -> str:
    """In a line, that the database cannot be asked or nothing be written; nothing where the fault is another."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"There is no room on the disk: {error}. What was written is not whole."
    from django.db import DatabaseError

    from tenants.connections import is_outage

    if not is_outage(error) and type(error) is not DatabaseError:
        return ""
    said = " ".join(str(error).split())
    missing = " (`manage.py migrate` makes the tables)" if "no such table" in said else ""
    return f"The database cannot be used: {said}{missing}. --traceback shows where."


if __name__ == "__main__":
    main()
