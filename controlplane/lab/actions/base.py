"""What every action of `manage.py lab` has: where it writes, its progress bar, where results are kept."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from django.conf import settings
from django.core.management.base import CommandError, OutputWrapper
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Action:
    """One action: a module of this package, named in ``ACTIONS``."""

    name: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self.stdout = stdout
        self.stderr = stderr

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Its options, beside those of all actions."""

    def run(self, options: dict[str, Any]) -> None:
        """Does it. Raises CommandError for options that cannot be."""
        raise NotImplementedError

    @staticmethod
    def folder() -> Path:
        return Path(settings.HOME) / "lab"

    @staticmethod
    @contextmanager
    def progress(total: int) -> Iterator[tuple[Progress, TaskID]]:
        bar = Progress(
            TextColumn("{task.description:32}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        with bar:
            yield bar, bar.add_task("runs", total=total)

    def console(self) -> Console:
        return Console(file=cast(IO[str], self.stdout._out), width=None if self.stdout.isatty() else 170)


def numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 <= number < math.inf for number in numbers):
        raise CommandError(f"{option}: {text!r} is not a list of numbers from 0, as 0,2048")
    return numbers
