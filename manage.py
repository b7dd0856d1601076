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

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
