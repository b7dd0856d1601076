"""``python -m tests.support.parallel [-j N] [pytest's arguments]``: one run of pytest, shared by N processes.

Every process collects the same tests in the same order and takes the next file that nobody took, so none waits for
another and a file's tests run in one process as ever. Each has its own session: its own Redis, database and temporary
folders. One line a file as it ends, what pytest says of failures at the end, and one closing line for all.

More processes than cores pay off: tests of whole processes spend half of their time waiting.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

CLAIMS = "TESTS_CLAIMS"  # the folder in which a process claims what it runs next
REPORTS = "TESTS_REPORTS"  # the file descriptor that it reports on
WORKERS = 1 + (os.cpu_count() or 1)
FIRST = ("property", "integration")  # folders with the longest files; a long one taken last would be waited for
ENDINGS = ("failed", "passed", "skipped", "xfailed", "xpassed", "error", "warnings")


# ---------------------------------------------------------------------------------------------- inside one process
class Shared:
    """Runs of this process's tests those that no other process took."""

    def __init__(self, claims: Path, reports: int) -> None:
        self.claims = claims
        self.reports = reports
        self.endings: Counter[str] = Counter()

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own says what is wrong with the collection
        self._report(collected=len(session.items))
        names: dict[pytest.Item, str] = {}
        ahead = self._taken(session, names)
        item = next(ahead, None)
        started = time.monotonic()
        while item is not None:
            following = next(ahead, None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if following is None or names[following] != names[item]:
                self._report(file=names[item], endings=dict(self.endings), seconds=time.monotonic() - started)
                self.endings.clear()
                started = time.monotonic()
            if session.shouldfail or session.shouldstop:
                (self.claims / "stop").touch()  # -x holds for all processes
                raise session.Failed(session.shouldfail or session.shouldstop)
            item = following
        return True

    def _taken(self, session: pytest.Session, names: dict[pytest.Item, str]) -> Iterator[pytest.Item]:
        groups: dict[tuple[bool, str], list[pytest.Item]] = {}
        for item in session.items:
            groups.setdefault((_flushes(item), item.nodeid.split("::")[0]), []).append(item)
        # Tests that empty the database come last, as pytest-django has them: others need what migrations wrote.
        for (flushes, file), items in sorted(groups.items(), key=lambda group: (group[0][0], _weight(group[0][1]))):
            if (self.claims / "stop").exists():
                return
            try:
                (self.claims / f"{int(flushes)}-{file.replace('/', '-')}").touch(exist_ok=False)
            except FileExistsError:
                continue
            names.update(dict.fromkeys(items, file))
            yield from items

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            self.endings[outcome] += 1
            if report.failed:
                self._report(failure=f"{outcome.upper()} {report.nodeid[:1000]}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        stats = terminal.stats if terminal is not None else {}
        self._report(stats={ending: len(stats.get(ending, ())) for ending in (*ENDINGS, "deselected")})

    def _report(self, **what: Any) -> None:
        os.write(self.reports, json.dumps(what).encode() + b"\n")  # up to 4096 bytes stay in one piece


def _flushes(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in getattr(item, "fixturenames", ())


def _weight(file: str) -> int:
    return next((n for n, folder in enumerate(FIRST) if f"/{folder}/" in file), len(FIRST))


def pytest_configure(config: pytest.Config) -> None:
    """This module is the plugin of its processes."""
    if CLAIMS in os.environ:
        reports = int(os.environ.pop(REPORTS))
        os.set_inheritable(reports, False)  # what tests start reports nothing
        config.pluginmanager.register(Shared(Path(os.environ.pop(CLAIMS)), reports))


# ------------------------------------------------------------------------------------------------ over all processes
class Run:
    """The processes, and what they said."""

    def __init__(self, arguments: list[str], workers: int, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self.collected: list[int] = []
        self.stats: list[Counter[str]] = []
        self.done = 0
        (folder / "claims").mkdir()
        mine, theirs = os.pipe()
        self.reports = os.fdopen(mine)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.parallel", "-p", "no:cacheprovider"]
        self.processes = []
        for n in range(workers):
            environ = os.environ | {
                CLAIMS: str(folder / "claims"),
                REPORTS: str(theirs),
                "TOX_PARALLEL_ENV": f"w{n}",  # pytest-django gives each a test database of its own
            }
            with self.log(n).open("wb") as log:
                self.processes.append(
                    subprocess.Popen([*command, *arguments], env=environ, stdout=log, stderr=log, pass_fds=[theirs])
                )
        os.close(theirs)
        self.reader = threading.Thread(target=self._follow, daemon=True)
        self.reader.start()

    def log(self, number: int) -> Path:
        return self.folder / f"process-{number}"

    def _follow(self) -> None:
        """Prints what comes in."""
        for line in self.reports:
            report = json.loads(line)
            if "collected" in report:
                self.collected.append(report["collected"])
            elif "failure" in report:
                print(report["failure"], flush=True)
            elif "stats" in report:
                self.stats.append(Counter(report["stats"]))
            else:
                endings = report["endings"]
                self.done += sum(n for ending, n in endings.items() if ending != "error")
                share = 100 * self.done // max(1, *self.collected)
                said = ", ".join(f"{endings[e]} {e}" for e in ENDINGS if endings.get(e))
                print(f"[{share:3d}%] {report['seconds']:6.1f} s {report['file']}: {said}", flush=True)

    def close(self) -> int:
        """Waits; prints what pytest said of failures and the closing line; 0 only if all tests passed."""
        codes = [process.wait() for process in self.processes]
        self.reader.join(10)
        for number, code in enumerate(codes):
            print(_remarks(self.log(number).read_text(errors="replace"), broke=code not in (0, 1, 2, 5)), end="")
        totals = sum(self.stats, Counter())
        ran = sum(totals[ending] for ending in ENDINGS if ending not in ("error", "warnings"))
        totals["deselected"] = max((stats["deselected"] for stats in self.stats), default=0)
        said = ", ".join(f"{totals[e]} {e}" for e in (*ENDINGS, "deselected") if totals[e]) or "no tests ran"
        seconds = time.monotonic() - self.began
        code = _whole(codes)
        if code == 0 and {ran} != set(self.collected):  # a test that nobody ran, or two did
            print(f"the processes collected {self.collected} tests, but {ran} ran")
            code = 1
        minutes = f" ({timedelta(seconds=int(seconds))})" if seconds >= 60 else ""
        print(f"=== {said} in {seconds:.2f}s{minutes} ===", flush=True)
        return code


def _whole(codes: list[int]) -> int:
    """The exit code of all. Where nothing was collected, as pytest has it: 5."""
    bad = [code for code in codes if code not in (0, 5)]
    return abs(bad[0]) if bad else min(codes)


def _remarks(log: str, broke: bool) -> str:
    """A process's output from its first section on, without its own closing line; all of it if the process broke."""
    if broke:
        return log
    found = re.search(r"^=+ .+ =+$", log, re.MULTILINE)
    return "\n".join(log[found.start() :].splitlines()[:-1]) + "\n" if found else ""


def run(arguments: list[str], workers: int = WORKERS) -> int:
    """Runs pytest with ``arguments`` in ``workers`` processes; the exit code."""
    if not any(argument.startswith("--randomly-seed") or argument == "no:randomly" for argument in arguments):
        seed = random.SystemRandom().getrandbits(32)
        print(f"Using --randomly-seed={seed} in {workers} processes", flush=True)
        arguments = [f"--randomly-seed={seed}", *arguments]
    with tempfile.TemporaryDirectory(prefix="qm-tests-") as folder:
        shared = Run(arguments, workers, Path(folder))
        try:
            return shared.close()
        finally:
            for process in shared.processes:
                if process.poll() is None:
                    process.terminate()
                    process.wait()


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    workers = WORKERS
    if arguments[:1] == ["-j"]:
        workers, arguments = int(arguments[1]), arguments[2:]
    return run(arguments, workers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
