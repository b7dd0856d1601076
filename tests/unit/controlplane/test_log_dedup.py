"""No flood in the log, whoever causes it, and log files that have an end."""

from __future__ import annotations

import logging
import os
import sys
import time

import pytest

from controlplane.embedded import child as children
from controlplane.embedded.child import Child
from controlplane.log_dedup import ALL_BURST, ALL_PER_S, KIND_BURST, KIND_PER_S, MAX_LINE_CHARS, Flood, Line, Routine


def record(message: str, *args: object, line: int = 1, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("library", level, "library.py", line, message, args, None)


def test_lines_of_one_kind_are_bounded_and_the_next_one_says_how_many_are_missing() -> None:
    times = [0.0]
    flood = Flood(clock=lambda: times[-1])
    passed = sum(flood.filter(record(f"words of a stranger {n}")) for n in range(10_000))
    assert passed == KIND_BURST
    assert flood.filter(record("another place in the code", line=2))
    times.append(1 / KIND_PER_S)
    later = record("once more")
    assert flood.filter(later)
    assert Line("%(message)s").format(later) == f"once more ({10_000 - passed} lines like this one were left out)"
    assert not flood.filter(record("and again"))


def test_lines_of_all_kinds_together_are_bounded() -> None:
    times = [0.0]
    flood = Flood(clock=lambda: times[-1])
    assert sum(flood.filter(record("x", line=n)) for n in range(5000)) == ALL_BURST
    times.append(10.0)
    assert sum(flood.filter(record("x", line=10_000 + n)) for n in range(5000)) == 10 * ALL_PER_S


def test_a_line_that_was_asked_for_passes() -> None:
    flood = Flood(clock=lambda: 0.0)
    assert all(flood.filter(record("detail", level=logging.DEBUG)) for _ in range(1000))


def test_a_task_that_succeeds_soon_is_no_news_and_one_that_took_long_is() -> None:
    def passes(level: int, **context: object) -> bool:
        line = logging.LogRecord(
            "celery.app.trace", level, "trace.py", 1, "Task %(name)s", ({"name": "t"} | context,), None
        )
        return Routine().filter(line)

    assert not passes(logging.INFO, runtime=0.02)
    assert passes(logging.INFO, runtime=21.0)
    assert passes(logging.ERROR, runtime=0.02)
    assert passes(logging.INFO), "such as one that is tried again"


def test_a_line_has_a_length() -> None:
    text = Line("%(message)s").format(record("%s", "x" * 10 * MAX_LINE_CHARS))
    assert len(text) < MAX_LINE_CHARS + 100
    assert text.endswith("characters more)")


def test_what_others_said_begins_no_line_of_its_own_and_commands_no_terminal() -> None:
    said = "no model\n2026-11-28 CRITICAL all is lost\r\x1b[2J\x1b]0;title\x07 \u202egnp.exe\x9b1m \u2028 \ud800"
    text = Line("%(levelname)s %(message)s").format(record("backend b1: %s", said))
    assert text.isprintable()
    assert text.startswith("WARNING backend b1: no model\\n2026-11-28 CRITICAL all is lost\\r\\x1b[2J")
    assert Line("%(message)s").format(record("größer als 漢字 🙂")) == "größer als 漢字 🙂"


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError("of ours")
    except ValueError as error:
        failed = logging.LogRecord("library", logging.ERROR, "library.py", 1, "failed", (), (ValueError, error, None))
    assert Line("%(message)s").format(failed).splitlines() == ["failed", "ValueError: of ours"]


@pytest.mark.parametrize("name", ["django.security.csrf", "uvicorn.error", "asyncio", "anything"])
def test_every_line_passes_the_filter(name: str) -> None:
    from django.conf import settings

    assert settings.LOGGING["root"]["handlers"] == ["stderr"]
    assert "flood" in settings.LOGGING["handlers"]["stderr"]["filters"]
    own = settings.LOGGING["loggers"].get(name, {})
    assert not own.get("handlers")
    assert own.get("propagate", True)


def test_a_childs_log_is_put_aside_while_it_writes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 100_000)
    child = Child(
        "noisy",
        [sys.executable, "-c", "import itertools\nfor n in itertools.count(): print(n, 'x' * 200, flush=True)"],
        logs=tmp_path, run=tmp_path, environ=dict(os.environ), cwd=tmp_path, stop_s=5,
    )  # fmt: skip
    old = tmp_path / "noisy.log.old"
    child.start()
    try:
        rotations, inode, end = 0, child.log.stat().st_ino, time.monotonic() + 60
        while rotations < 5:
            assert time.monotonic() < end
            before = child.log.stat().st_size
            child.rotate()
            rotations += child.log.stat().st_size < before
            time.sleep(0.005)
        assert old.stat().st_size <= 100_000
        assert child.log.stat().st_ino == inode  # it writes on into the same file
        while not child.log.stat().st_size:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert b"\0" not in child.log.read_bytes()  # ... from its beginning
        assert child.tail()
    finally:
        child.ask_to_stop()
        child.wait_stopped(time.monotonic() + 10)
