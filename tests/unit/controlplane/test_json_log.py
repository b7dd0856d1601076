"""Log lines as JSON: one object a line, with the fields that messages name."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from controlplane.json_log import JsonLine
from controlplane.log_dedup import MAX_LINE_CHARS


def line(msg: str, *args: Any, **extra: Any) -> dict[str, Any]:
    record = logging.LogRecord("scheduling.dispatch", logging.WARNING, __file__, 1, msg, args, extra.pop("exc", None))
    record.__dict__.update(extra)
    text = JsonLine().format(record)
    assert text.isascii()
    assert text.isprintable(), "one line, and no command to a terminal"
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_line_says_when_what_and_who() -> None:
    found = line("pool %s: %s leads, epoch %d", "llama", "worker-1", 7)
    assert found.pop("time")[-5] == "."
    assert found.pop("process") > 0
    assert found == {
        "level": "WARNING",
        "logger": "scheduling.dispatch",
        "message": "pool llama: worker-1 leads, epoch 7",
        "pool": "llama",
    }


@pytest.mark.parametrize(
    ("msg", "args", "fields"),
    [
        ("100%% of pool %s, backend %r", ("llama", "gpu-1"), {"pool": "llama", "backend": "gpu-1"}),
        ("%5.1f s: request %s failed", (1.5, "req_1"), {"request": "req_1"}),
        ("the thread pool: %s", ("x",), {}),
        ("pool %(name)s", ({"name": "llama"},), {}),
        ("a message of pool %s without its argument", (), {}),
    ],
)
def test_fields_are_what_messages_name(msg: str, args: tuple[Any, ...], fields: dict[str, str]) -> None:
    found = line(msg, *args)
    assert {name: found[name] for name in found.keys() & {"pool", "backend", "request", "tenant"}} == fields


def test_a_caller_can_say_more_and_an_error_has_its_traceback() -> None:
    try:
        raise ValueError("of\x9b2J ours\u2028")
    except ValueError:
        found = line("request %s failed", "req_1", exc=sys.exc_info(), tenant="acme", pool="llama", left_out=3)
    assert (found["request"], found["tenant"], found["pool"], found["left_out"]) == ("req_1", "acme", "llama", 3)
    assert found["exception"].startswith("Traceback")
    assert "ValueError: of" in found["exception"]


@pytest.mark.parametrize("letter", ["x", "é", "\x1b", "\U0001f600", "xxxxxé"])
def test_a_line_has_a_length_whatever_is_in_it(letter: str) -> None:
    """Where logs of containers are cut (16 KiB), half of an object is none."""
    text = letter * (10 * MAX_LINE_CHARS // len(letter))
    try:
        raise ValueError(text)
    except ValueError:
        written = json.dumps(line("pool %s", text, exc=sys.exc_info()))
    assert MAX_LINE_CHARS // 2 < len(written) <= MAX_LINE_CHARS


def test_warnings_and_errors_that_end_a_process_are_lines_too() -> None:
    program = (
        "import os, threading, warnings, django; django.setup(); warnings.warn('old'); "
        "t = threading.Thread(target=lambda: 1 / 0, name='worker-7'); t.start(); t.join(); raise ValueError('ours')"
    )
    environ = {**os.environ, "QUARTERMASTER_LOG_FORMAT": "json", "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    found = [json.loads(text) for text in ended.stderr.splitlines()]
    assert [line["level"] for line in found] == ["WARNING", "ERROR", "CRITICAL"]
    assert "old" in found[0]["message"]
    assert "worker-7" in found[1]["message"]
    assert "ZeroDivisionError" in found[1]["exception"]
    assert "ValueError: ours" in found[2]["exception"]
