"""``helm test``: the pod's own command, run as a process against what runs. Pods do not run here; that the hook is one
the API server takes is in ``tests/kubernetes/test_helm.py``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import SECRET, one, render
from tests.support.instance import Up
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(300)

VALUES = SECRET | {"test": {"existingSecret": "key", "model": ""}}


def run(url: str, key: str = "", values: dict[str, Any] = VALUES, **changes: str) -> subprocess.CompletedProcess[str]:
    """The container, with the key in the place of the Secret's and an address in that of the Service's."""
    [container] = one(render(values), "Pod", "-test")["spec"]["containers"]
    given = {entry["name"]: entry for entry in container["env"]}
    environ = {name: entry["value"] for name, entry in given.items() if "value" in entry}
    assert environ["URL"] == "http://qm-quartermaster:80"
    if "KEY" in given:
        assert given["KEY"]["valueFrom"] == {"secretKeyRef": {"name": "key", "key": "api-key"}}
        environ["KEY"] = key
    python, *rest = container["args"]
    assert python == "python"
    return subprocess.run(
        [sys.executable, *rest], env=environ | {"URL": url} | changes, capture_output=True, text=True, timeout=200
    )


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """As the guide sets it up behind an Ingress: clients come by HTTPS."""
    made = Up(tmp_path_factory.mktemp("helm-test") / "home", QUARTERMASTER_HTTPS="on").start()
    try:
        made.wait_ready()
        made.wait(lambda: not run(made.url, made.demo()["keys"]["standard"]).returncode)
        yield made
    finally:
        made.stop()


def test_with_a_key_a_model_answers(up: Up) -> None:
    demo = up.demo()
    done = run(up.url, demo["keys"]["standard"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ready, strangers are refused, and {demo['model']} answers\n"
    assert run(up.url, f"{demo['keys']['standard']}\n").returncode == 0, (
        "a Secret made from a file ends with a line end"
    )


def test_without_a_key_it_is_ready_and_refuses_strangers(up: Up) -> None:
    done = run(up.url, values=SECRET)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ready, and strangers are refused; set test.existingSecret")


def test_a_wrong_key_and_a_model_that_is_not_there_are_said(up: Up) -> None:
    wrong = run(up.url, "qm-nobody")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("the key of test.existingSecret is refused: ")
    missing = run(up.url, up.demo()["keys"]["standard"], VALUES | {"test": {"existingSecret": "key", "model": "gpt-9"}})
    assert missing.returncode == 1
    assert missing.stderr.startswith("gpt-9 answered 404: ")
    assert "Traceback" not in wrong.stderr + missing.stderr


def test_a_server_that_is_away_is_said(tmp_path: Path) -> None:
    done = run(f"http://127.0.0.1:{free_port()}", "key")
    assert done.returncode == 1
    assert "does not answer ([Errno 111] Connection refused): are web pods ready" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def answering(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """A server that gives each path one answer, and 401 to whoever shows no key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, text = answers[self.path]
            if self.path != "/readyz" and not self.headers.get("authorization"):
                status, text = answers.get("stranger", (401, "{}"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


READY = {"/readyz": (200, "{}"), "/readyz?of=process": (200, "{}")}
ONE_MODEL = {"/v1/models": (200, json.dumps({"data": [{"id": "llama"}]}))}
NO_BACKEND = (503, json.dumps({"error": {"message": "No replica of this pool is ready.", "code": "no_backend"}}))


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"/readyz": (503, "redis: away")}, "/readyz answered 503: redis: away. See docs/guide/kubernetes.md"),
        (READY | {"/v1/models": (200, ""), "stranger": (200, "<html>")}, "instead of 401: is http://"),
        (READY | {"/v1/models": (200, '{"data": []}')}, "the key opens no model: make a pool"),
        (
            READY | ONE_MODEL | {"/v1/chat/completions": NO_BACKEND},
            "llama answered 503: No replica of this pool is ready.",
        ),
        (READY | ONE_MODEL | {"/v1/chat/completions": (502, "<h1>Bad gateway</h1>")}, "llama answered 502: <h1>Bad"),
    ],
)
def test_what_fails_is_said_in_a_sentence(answers: dict[str, tuple[int, str]], says: str) -> None:
    with answering(answers) as url:
        done = run(url, "key")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
