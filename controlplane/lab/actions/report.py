"""`lab report`: Scenarios, written as the page of the papers' tables."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from controlplane.lab import unified
from controlplane.lab.actions.papers import PaperAction
from controlplane.lab.tables import Lab, page, report, sections
from scheduling.simulator.duel import SEEDS
from scheduling.simulator.lab import load_scenario, scenario_names

PAGE = Path("docs/results/papers.md")


class Report(PaperAction):
    name = "report"
    help = "scenarios, written as a page; without names all of them"

    def add_arguments(self, parser: ArgumentParser) -> None:
        some = "scenarios by name or id, and 'unified'; the page's other sections stay as they are"
        parser.add_argument("names", nargs="*", metavar="NAME", help=some)
        parser.add_argument("--output", type=Path, default=PAGE, help=f"default {PAGE}")

    def run(self, options: dict[str, Any]) -> None:
        output: Path = options["output"]
        if not output.resolve().parent.is_dir():
            raise CommandError(f"--output: there is no folder {output.resolve().parent}")
        asked = [name for name in options["names"] if name != "unified"] if options["names"] else scenario_names()
        folder = output.parent / "images" / "papers"
        folder.mkdir(parents=True, exist_ok=True)
        today = timezone.localdate()
        for scenario in sorted((load_scenario(name) for name in asked), key=lambda s: s.id):
            results = self.tables([scenario], options["processes"])
            for name, text in Lab(self.folder(), options["processes"]).images([scenario]).items():
                (folder / f"{name}.svg").write_text(text, encoding="utf-8")
            self._write_page(output, report(results, today, self._page(output)))
        if not options["names"] or "unified" in options["names"]:
            duels = unified.section(self.duels(SEEDS, options["processes"]), SEEDS, today)
            self._write_page(output, page(sections(self._page(output)) | {unified.HEADING: duels}))

    @staticmethod
    def _page(output: Path) -> str:
        return output.read_text(encoding="utf-8") if output.exists() else ""

    def _write_page(self, output: Path, text: str) -> None:
        """Written whenever a table is done, so that an interrupted report has what was finished."""
        output.write_text(text, encoding="utf-8")
        self.stdout.write(f"wrote {output}")
