"""``manage.py replay`` is a client: no database and no settings of its own, and a report whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.support.instance import ROOT, Up
from tests.support.ports import free_port

SHORT = [(n * 0.1, 30, 5) for n in range(20)]  # seconds, input and output tokens
LONG = [(n * 0.25, 30, 20) for n in range(480)]  # two minutes


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    instance = Up(tmp_path_factory.mktemp("replay") / "home").start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


def written(folder: Path, book: dict[str, Any], trace: list[Any]) -> tuple[str, str]:
    """Files for a replay: the trace, Azure's or (of dicts) Mooncake's, and who sends it."""
    if isinstance(trace[0], dict):
        lines = [json.dumps(row) for row in trace]
    else:
        lines = [f"2023-11-16 18:{15 + at // 60:02.0f}:{at % 60:07.4f},{i},{o}" for at, i, o in trace]
        lines.insert(0, "TIMESTAMP,ContextTokens,GeneratedTokens")
    (folder / "trace.csv").write_text("\n".join([*lines, ""]))
    (folder / "book.json").write_text(json.dumps(book))
    return str(folder / "trace.csv"), str(folder / "book.json")


class Run:
    """A replay in a process whose environment knows nothing of the instance: its database cannot even be reached."""

    def __init__(self, folder: Path, book: dict[str, Any], trace: list[Any], *options: str) -> None:
        self.report_file = folder / "out.json"
        written(folder, book, trace)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
            "QUARTERMASTER_HOME": str(folder / "nothing"),
            "QUARTERMASTER_DATABASE_URL": f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere",
            "QUARTERMASTER_SECRET_KEY": "x" * 40,
        }
        command = [sys.executable, str(ROOT / "manage.py"), "replay", "trace.csv", "--tenants-from", "book.json"]
        self.process = subprocess.Popen(
            [*command, "--report", "out.json", *options], cwd=folder, env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        return dict(json.loads(self.report_file.read_text()))

    def until(self, done: Callable[[dict[str, Any]], bool]) -> None:
        end = time.monotonic() + 90
        while not (self.report_file.exists() and done(self.report())):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, self.report_file.exists() and self.report()
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=100)
        return self.process.returncode, said


def test_prompts_of_a_trace_that_names_their_blocks_are_as_long_as_it_says(up: Up, tmp_path: Path) -> None:
    rows = [{"timestamp": 100 * n, "input_length": 900, "output_length": 5, "hash_ids": [1, 2 + n]} for n in range(10)]
    code, said = Run(tmp_path, up.demo(), rows, "--rows").end()
    assert code == 0, said
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["total"]["completed"] == len(report["requests"]) == 10
    assert report["ledger"]["equal"], report["ledger"]
    assert all(abs(row["input_tokens"] - 900) <= 10 for row in report["requests"]), report["requests"]


def test_a_replay_needs_no_database_of_its_own_and_equals_the_ledger(up: Up, tmp_path: Path) -> None:
    code, said = Run(tmp_path, up.demo(), SHORT, "--rows").end()
    assert code == 0, said
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["complete"], report["missing"], report["unsent"]) == (True, {}, 0)
    assert report["ledger"]["equal"], report["ledger"]
    assert report["ledger"]["found"] == report["total"]["sent"] == len(report["requests"]) == 20
    assert report["total"]["slo_judged"] == 20, "the tiers' promises are asked of the instance"
    served = report["served_by"]
    assert served["pool"]["policy"]
    assert all(backend["slots"] > 0 and backend["step_tokens"] > 0 for backend in served["backends"])
    assert {told["tier"] for told in served["entitlements"].values()} >= set(report["tiers"])
    call_command("lab", "parity", "--report", str(tmp_path / "out.json"))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_leaves_a_report_that_says_what_is_missing(
    up: Up, tmp_path: Path, number: signal.Signals
) -> None:
    run = Run(tmp_path, up.demo(), LONG)
    run.until(lambda report: report["total"]["completed"] > 0)
    run.process.send_signal(number)
    code, said = run.end()
    report = run.report()
    assert code == 130, said
    assert report["complete"] is False
    assert "were not sent" in report["missing"]["requests"]
    assert 0 < report["unsent"] < len(LONG)
    assert report["ledger"]["found"] == report["ledger"]["sent"] > 0, "what was sent is compared"


def test_a_killed_replay_leaves_what_it_had(up: Up, tmp_path: Path) -> None:
    run = Run(tmp_path, up.demo(), LONG, "--rows")
    run.until(lambda report: report["total"]["completed"] > 0)
    run.process.kill()
    run.end()
    report = run.report()
    assert report["complete"] is False
    assert set(report["missing"]) == {"requests"}
    assert len(report["requests"]) == report["total"]["sent"] > 0


class Line:
    """A connection to the instance that a test can cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def line_to(up: Up) -> Iterator[Line]:
    line = Line(up.port)
    try:
        yield line
    finally:
        line.cut()


def test_an_instance_that_is_gone_before_the_end_costs_the_ledger_and_not_the_report(up: Up, tmp_path: Path) -> None:
    with line_to(up) as line:
        run = Run(tmp_path, up.demo() | {"base_url": line.url}, LONG[:120])
        run.until(lambda report: report["total"]["completed"] > 0)
        line.cut()
        code, said = run.end()
    report = run.report()
    assert (code, report["complete"]) == (1, False)
    assert "does not answer" in report["missing"]["ledger"]
    assert "does not answer" in said
    assert report["total"]["completed"] > 0
    assert report["total"]["failed"]
    assert (report["unsent"], "ledger" in report) == (0, False)


@pytest.fixture(scope="module")
def members_token(up: Up) -> str:
    command = [sys.executable, "manage.py", "token", "member"]
    return subprocess.run(command, cwd=ROOT, env=up.environ, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"base_url": "http://127.0.0.1:9"}, "does not answer"),
        ({"keys": {"batch": f"qm-{'a' * 12}.{'a' * 43}"}}, "the key of batch is not valid"),
        ({"model": "gpt-9"}, "may not use model 'gpt-9'"),
        ({"token": ""}, "without an access token"),
        ({"token": "qma-nobody"}, "token is not valid"),
        ({"token": "member"}, "does not see the key of"),
    ],
)
def test_what_the_end_would_lack_is_said_before_anything_is_sent(
    up: Up, tmp_path: Path, members_token: str, changes: dict[str, Any], told: str
) -> None:
    """In this process, where pytest-django lets nothing open a database."""
    book = up.demo() | changes
    book["token"] = members_token if book["token"] == "member" else book["token"]
    files = written(tmp_path, book, SHORT)
    with pytest.raises(CommandError, match=told) as refused:
        call_command("replay", files[0], "--tenants-from", files[1], "--report", str(tmp_path / "out.json"))
    assert "Nothing was sent" in str(refused.value)
    assert not (tmp_path / "out.json").exists()


def test_without_a_token_and_a_ledger_the_report_says_that_slos_were_not_judged(up: Up, tmp_path: Path) -> None:
    run = Run(tmp_path, up.demo() | {"token": ""}, SHORT, "--no-ledger")
    code, said = run.end()
    assert code == 0, said
    assert (run.report()["complete"], set(run.report()["missing"])) == (True, {"slo"})
    assert run.report()["total"]["slo_judged"] == 0
