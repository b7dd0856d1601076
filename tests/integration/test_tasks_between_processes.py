"""Every task that is sent: who sends it, and that what the web process sends is done by a worker.

A real web process and a real worker on a real Redis, as ``make up`` starts them. A message carries an id; losing it
changes nothing but the wait, so the sweep would hide a message that never arrives: the test watches the messages of
Redis, and the web process' own has to be taken and done by a worker.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any

import httpx
import pytest
import redis
from kombu.exceptions import OperationalError
from redis.connection import Connection

import controlplane.batches.tasks  # registers them
import controlplane.lab.tasks
import controlplane.tuning.tasks  # noqa: F401
import telemetry.tasks  # noqa: F401
from controlplane.celery import Application, app
from controlplane.lab.runs import STILL
from tests.support.instance import ROOT, Up
from tests.support.ports import free_port

SENDING = {"apply_async", "apply", "delay", "send_task", "signature", "si", "s"}
A_SECOND_S = 1.0  # what sending may wait for a broker; without a bound it was 6 to 10 s

# where a task is sent: (file, function) -> (task, the process that sends it)
SENT = {
    ("controlplane/lab/runs.py", "notify"): ("telemetry.run_lab", "web"),
    ("telemetry/recorder.py", "start_roll_up"): ("telemetry.roll_up", "worker"),
    ("telemetry/recorder.py", "start_purge"): ("telemetry.purge_ledger", "worker"),
    ("controlplane/tuning/starter.py", "start_tending"): ("telemetry.tend_pool", "worker"),
    ("controlplane/lab/tasks.py", "resume_runs"): ("telemetry.run_lab", "worker"),
    ("controlplane/lab/tasks.py", "run_lab"): ("telemetry.run_lab", "worker"),
    ("controlplane/batches/services.py", "notify"): ("batches.work", "web"),
    ("controlplane/batches/starter.py", "start_work"): ("batches.work", "worker"),
    ("controlplane/batches/tasks.py", "work"): ("batches.work", "worker"),
}
# what a person does, and what the web process sends for it
ACTIONS = {"a what-if run": "telemetry.run_lab", "a what-if run once more": "telemetry.run_lab"}
ELSEWHERE = {"batches.work": "test_batches.py"}  # tried between processes there


def places() -> set[tuple[str, str]]:
    """Every function of the product that sends a task."""
    found = set()
    for package in ("telemetry", "tenants", "controlplane", "scheduling"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if "celery" not in text and not any(f".{name}(" in text for name in ("apply_async", "delay", "send_task")):
                continue
            for function in ast.walk(ast.parse(text)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = {n.func.attr for n in ast.walk(function) if _is_method(n)}
                    if names & SENDING:
                        found.add((str(file.relative_to(ROOT)), function.name))
    return found


def _is_method(node: ast.AST) -> Any:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def test_every_place_that_sends_a_task_says_from_which_process() -> None:
    assert places() == SENT.keys(), "a new place that sends a task needs a row in SENT"
    ours = {name for name in app.tasks if not name.startswith("celery.")}
    assert ours == {task for task, _ in SENT.values()}, "a task that nobody sends, or a row without its task"


def test_everything_that_the_web_process_sends_is_tried_between_processes() -> None:
    assert {task for task, sender in SENT.values() if sender == "web"} == {*ACTIONS.values(), *ELSEWHERE}


@contextmanager
def nobody_accepts() -> Iterator[str]:
    """A listener whose queue is full: a connection is neither taken nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield "redis://{}:{}/0".format(*listener.getsockname())


@contextmanager
def nobody_answers() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield "redis://{}:{}/0".format(*listener.getsockname())


@contextmanager
def nobody_listens() -> Iterator[str]:
    yield f"redis://127.0.0.1:{free_port()}/0"


@pytest.mark.parametrize("broker", [nobody_accepts, nobody_answers, nobody_listens])
def test_sending_to_a_broker_that_is_away_is_tried_once_and_is_told(
    broker: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience_s: list[float] = []
    connect = Connection._connect

    def counted(connection: Connection) -> Any:
        patience_s.extend((connection.socket_connect_timeout, connection.socket_timeout))
        return connect(connection)

    monkeypatch.setattr(Connection, "_connect", counted)
    with broker() as url, Application("probe", changes=dict(app.conf.changes), set_as_current=False) as sender:
        sender.conf.broker_url = sender.conf.broker_write_url = url
        with pytest.raises(OperationalError):
            sender.send_task("telemetry.run_lab", (1,), retry=False)
    assert sum(patience_s) <= A_SECOND_S, "all that it may wait, over all its attempts"
    assert patience_s, "it was not tried"


def test_who_sends_does_not_import_what_the_task_needs() -> None:
    """scikit-optimize and SciPy: 4 to 6 s in the web process, while every stream waited for the interpreter."""
    code = (
        "import sys, controlplane.asgi\nfrom controlplane.lab.runs import notify\nnotify(1)\n"
        "print('scipy' in sys.modules)"
    )
    environ = os.environ | {"QUARTERMASTER_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert told.stdout.strip() == "False", told.stderr


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    instance = Up(tmp_path_factory.mktemp("tasks") / "home", QUARTERMASTER_SIM_REPLICAS="1").start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


@pytest.fixture(scope="module")
def api(up: Up) -> Iterator[httpx.Client]:
    made = subprocess.run(
        [sys.executable, "manage.py", "token", "admin"], cwd=ROOT, env=up.environ, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    headers = {"authorization": f"Bearer {made.stdout.strip()}"}
    with httpx.Client(base_url=f"{up.url}/api/v1", headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def recording(api: httpx.Client) -> str:
    rows = "\n".join(f"2023-11-16 18:15:{n:02d}.0,100,20" for n in range(60))
    file = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode()
    answer = api.post("/lab/recordings", data={"name": "a minute"}, files={"file": ("x", file)})
    assert answer.status_code == 201, answer.text
    return "a minute"


def asked(api: httpx.Client, up: Up, recording: str) -> dict[str, Any]:
    body = {"name": "x", "recording": recording, "pool": up.demo()["pool"], "policies": ["fifo"], "variants": 1}
    answer = api.post("/lab/runs", json=body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def ended(api: httpx.Client, number: int) -> dict[str, Any]:
    until = time.monotonic() + 4 * STILL.total_seconds()
    while (run := api.get(f"/lab/runs/{number}").json())["state"] in ("queued", "running"):
        assert time.monotonic() < until, run
        time.sleep(0.1)
    return dict(run)


class Messages:
    """What is sent to workers, and what they have done, as Redis hears it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def done_of(self, task: str, argument: int, sender: int) -> bool:
        """Whether a worker took and ended a task that ``sender`` has sent with ``argument``."""
        for line in self.heard:
            sent = line.replace("\\", "")
            if f'"task": "{task}"' in sent and f'"argsrepr": "({argument},)"' in sent and f'"gen{sender}@' in sent:
                tag = re.search(r'"delivery_tag": "([^"]+)"', sent)
                assert tag is not None, sent
                if any("HDEL" in other and tag[1] in other for other in self.heard):
                    return True
        return False


@contextmanager
def messages(up: Up) -> Iterator[Messages]:
    told, url = Messages(), (up.home / "run" / "redis-url").read_text().strip()
    with redis.Redis.from_url(url, socket_timeout=0.5) as client, client.monitor() as monitor:
        stopped = threading.Event()

        def hear() -> None:
            while not stopped.is_set():
                with suppress(redis.TimeoutError):
                    told.heard.append(monitor.next_command()["command"])

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            stopped.set()
            thread.join()


def took_s(run: dict[str, Any]) -> float:
    return (datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["at"])).total_seconds()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("action", ACTIONS)
def test_what_the_web_process_sends_is_taken_and_done_by_a_worker(
    up: Up, api: httpx.Client, recording: str, action: str
) -> None:
    with messages(up) as told:
        made = asked(api, up, recording)
        if action == "a what-if run once more":
            ended(api, made["id"])
            made = dict(api.post(f"/lab/runs/{made['id']}/again").json())
        run = ended(api, made["id"])
        print(f"{action}: done after {took_s(run):.1f} s")
        assert run["state"] == "done"
        assert made["notice"] == ""
        up.wait(lambda: told.done_of("telemetry.run_lab", made["id"], up.pid("web")))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(400)
def test_a_broker_that_does_not_answer_delays_the_run_and_neither_the_answer_nor_other_pages(
    up: Up, api: httpx.Client, recording: str
) -> None:
    asked(api, up, recording)  # what is imported and connected once is
    with frozen(up.pid("redis")):  # both are answered while it is
        made = asked(api, up, recording)
        assert up.get("/healthz")[0] == 200
    assert "could not be told" in made["notice"]
