"""Files and batches of a whole instance, through the OpenAI SDK; and whatever is killed, each line has one result.

The sample kills the executor and the web process once; the slow run kills them, the executor and Redis again and again
during 10,000 lines.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.instance import Up

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
LIMIT_S = 100
FILE_BYTES = 4 * 1024 * 1024
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    instance = Up(
        tmp_path_factory.mktemp("batches") / "home", QUARTERMASTER_SIM_REPLICAS="1",
        QUARTERMASTER_FILE_BYTES=str(FILE_BYTES),
    ).start()  # fmt: skip
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


@pytest.fixture(scope="module")
def client(up: Up) -> openai.OpenAI:
    return up.client("standard", timeout=60)


def line(up: Up, number: int, **changes: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Say {number}."}
    body = {"model": up.demo()["model"], "messages": [message], "max_tokens": 4} | changes
    return {"custom_id": f"r-{number}", "method": "POST", "url": CHAT, "body": body}


def begin(client: openai.OpenAI, rows: list[dict[str, Any]], **options: Any) -> Any:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(**{"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | options)


def patiently(ask: Callable[[], Any]) -> Any:
    """What a process says that may be starting again."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except (openai.APIConnectionError, openai.InternalServerError):
            assert time.monotonic() < end
            time.sleep(0.2)


def done(client: openai.OpenAI, batch_id: str, lines: int, limit_s: float) -> Any:
    """The batch when so many lines are completed, or it has ended. ``limit_s``: without another one; on a full machine
    the executor gives way to everything else."""
    most, end = -1, time.monotonic() + limit_s
    while True:
        now = patiently(lambda: client.batches.retrieve(batch_id))
        if now.status in ENDED or now.request_counts.completed >= lines:
            return now
        if now.request_counts.completed > most:
            most, end = now.request_counts.completed, time.monotonic() + limit_s
        assert time.monotonic() < end, now
        time.sleep(0.05)


def ended(client: openai.OpenAI, batch_id: str, limit_s: float = LIMIT_S) -> Any:
    return done(client, batch_id, 10**9, limit_s)


def rows_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(row) for row in client.files.content(file_id).text.splitlines()] if file_id else []


def test_a_batch_runs_and_each_line_has_its_answer_or_its_error(up: Up, client: openai.OpenAI):
    rows = [line(up, n) for n in range(30)] + [line(up, 30, max_tokens=-1), line(up, 31, unknown=1)]
    batch = begin(client, rows, metadata={"night": "1"})
    assert (batch.status, batch.metadata) == ("validating", {"night": "1"})
    done = ended(client, batch.id)
    assert (done.status, done.errors) == ("completed", None)
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (32, 30, 2)
    output, errors = rows_of(client, done.output_file_id), rows_of(client, done.error_file_id)
    assert [o["custom_id"] for o in output] == [f"r-{n}" for n in range(30)]
    assert all(o["response"]["status_code"] == 200 and o["error"] is None for o in output)
    assert all(o["response"]["body"]["choices"][0]["message"]["content"] for o in output)
    assert [(e["custom_id"], e["response"]["status_code"]) for e in errors] == [("r-30", 400), ("r-31", 400)]
    assert done.usage.output_tokens == sum(o["response"]["body"]["usage"]["completion_tokens"] for o in output)
    listed = client.batches.list(limit=1).data
    assert [b.id for b in listed] == [batch.id]
    assert {f.purpose for f in client.files.list()} == {"batch", "batch_output"}
    # each has a row in the ledger, under the entitlement of the key
    own = {row["request_id"] for row in ledger(up, batch.id)}
    assert own == {o["response"]["request_id"] for o in [*output, *errors]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["one two", "three"]}),
        ("/v1/responses", {"input": "one two three", "max_output_tokens": 3}),
    ],
)
def test_a_batch_of_vectors_or_responses_has_their_answers_and_tokens(
    up: Up, client: openai.OpenAI, path: str, body: dict[str, Any]
):
    model = {"model": up.demo()["model"]}
    rows = [{"custom_id": f"v-{n}", "method": "POST", "url": path, "body": body | model} for n in range(5)]
    rows.append(rows[0] | {"custom_id": "bad", "body": model | {"input": []}})
    done = ended(client, begin(client, rows, endpoint=path).id)
    assert (done.status, done.endpoint) == ("completed", path)
    assert (done.request_counts.completed, done.request_counts.failed) == (5, 1)
    output, errors = rows_of(client, done.output_file_id), rows_of(client, done.error_file_id)
    assert [(e["custom_id"], e["response"]["status_code"]) for e in errors] == [("bad", 400)]
    usages = [o["response"]["body"]["usage"] for o in output]
    assert done.usage.input_tokens == sum(u.get("prompt_tokens", u.get("input_tokens")) for u in usages) > 0
    assert done.usage.output_tokens == sum(u.get("output_tokens", 0) for u in usages)


def ledger(up: Up, batch_id: str, count: int = 32) -> list[dict[str, Any]]:
    """The rows of a batch's requests, once there are as many as lines."""
    end = time.monotonic() + LIMIT_S
    while True:
        found: list[dict[str, Any]] = []
        with httpx.Client(base_url=f"{up.url}/api/v1", headers=up.admin(), timeout=60) as api:
            answer = api.get("/requests", params={"request_id": batch_id, "limit": 100}).json()
            found = answer["results"]
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.2)


def test_a_file_with_faults_fails_with_their_lines(up: Up, client: openai.OpenAI):
    batch = ended(client, begin(client, [line(up, 1), line(up, 1), line(up, 2, model="other")]).id)
    assert batch.status == "failed"
    assert [(e.line, e.code) for e in batch.errors.data] == [(2, "duplicate_custom_id"), (3, "model_not_found")]
    assert batch.output_file_id is None


def test_a_batch_that_is_cancelled_keeps_what_was_done_and_names_the_rest(up: Up, client: openai.OpenAI):
    batch = begin(client, [line(up, n, max_tokens=400) for n in range(3000)])
    deadline = time.monotonic() + LIMIT_S
    while client.batches.retrieve(batch.id).status == "validating":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = ended(client, batch.id)
    assert done.status == "cancelled"
    found = [*rows_of(client, done.output_file_id), *rows_of(client, done.error_file_id)]
    assert Counter(r["custom_id"] for r in found) == Counter(f"r-{n}" for n in range(3000))
    assert {r["error"]["code"] for r in found if r["error"]} == {"batch_cancelled"}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


@pytest.mark.slow
def test_what_is_not_done_within_the_window_expires_and_is_named(up: Up, client: openai.OpenAI):
    batch = begin(client, [line(up, n, max_tokens=400) for n in range(6000)], completion_window="1m")
    done = ended(client, batch.id, 200)
    assert done.status == "expired"
    assert done.expired_at >= done.expires_at
    found = [*rows_of(client, done.output_file_id), *rows_of(client, done.error_file_id)]
    assert Counter(r["custom_id"] for r in found) == Counter(f"r-{n}" for n in range(6000))
    assert {r["error"]["code"] for r in found if r["error"]} == {"batch_expired"}


def test_nothing_of_another_tenant_can_be_seen_or_used(up: Up, client: openai.OpenAI):
    batch = ended(client, begin(client, [line(up, 1)]).id)
    other = up.client("premium", timeout=60)
    asks: list[Callable[[], Any]] = [
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(batch.output_file_id),
        lambda: other.files.delete(batch.input_file_id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
        lambda: other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
    ]
    for ask in asks:
        with pytest.raises(openai.NotFoundError):
            ask()
    assert not other.files.list().data
    assert not other.batches.list().data
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def of_project(up: Up, name: str, **limits: Any) -> openai.OpenAI:
    """A client with a key of a new project, of the tenant that has the demo's standard key."""
    with httpx.Client(base_url=f"{up.url}/api/v1/", headers=up.admin(), timeout=60) as api:
        public = up.demo()["keys"]["standard"].removeprefix("qm-").partition(".")[0]
        tenant = api.get(f"keys/{public}").json()["tenant"]
        slug = f"{name}-{os.urandom(3).hex()}"  # new with each try
        assert api.post("projects", json={"slug": slug, "tenant": tenant}).status_code == 201
        made = api.post("keys", json={"name": name, "project": slug, "user": "nightly", **limits})
        assert made.status_code == 201, made.text
        return openai.OpenAI(base_url=f"{up.url}/v1", api_key=made.json()["key"], timeout=60)


def test_a_batch_of_a_projects_key_runs_within_its_limits_and_is_seen_by_its_project_alone(
    up: Up, client: openai.OpenAI
):
    night, other = of_project(up, "night", requests_per_minute=6), of_project(up, "day")
    model = night.models.list().data[0].id
    rows = [line(up, n, model=model) for n in range(6)] + [line(up, 6, model=model, user="ada")]
    batch = begin(night, rows)
    done = ended(night, batch.id)  # the seventh waits until the minute has room again
    assert (done.status, done.request_counts.completed) == ("completed", 7)
    assert done.completed_at - done.in_progress_at >= 5
    assert len(rows_of(night, done.output_file_id)) == 7
    told = ledger(up, batch.id, 7)
    assert sorted(row["user"] for row in told) == ["ada", *["nightly"] * 6]
    for stranger in (other, client):
        for ask in (
            lambda who: who.batches.retrieve(batch.id),
            lambda who: who.batches.cancel(batch.id),
            lambda who: who.files.content(done.output_file_id),
            lambda who: who.files.delete(batch.input_file_id),
            lambda who: who.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                ask(stranger)
        assert batch.id not in [b.id for b in stranger.batches.list()]


def form(content: bytes, purpose: str = "batch") -> dict[str, Any]:
    return {"data": {"purpose": purpose}, "files": {"file": ("../../x\r\n.jsonl", content)}}


def test_what_a_client_sends_is_bounded_and_refused_with_its_reason(up: Up):
    key = {"authorization": f"Bearer {up.demo()['keys']['standard']}"}
    with httpx.Client(base_url=f"{up.url}/v1", headers=key, timeout=60) as http:
        taken = http.post("/files", **form(b"{}"))
        assert taken.status_code == 200
        assert taken.json()["filename"].endswith(".jsonl")
        assert not {"/", "\r", "\n"} & set(taken.json()["filename"])
        wrong = {
            400: [
                http.post("/files", **form(b"{}", purpose="assistants")),
                http.post("/files", data={"purpose": "batch"}, files={"other": b"{}"}),
                http.post("/files", files=[("file", b"1"), ("file", b"2")], data={"purpose": "batch"}),
                http.post("/files", **form(b"")),
                http.post("/files", files={"file": b"1"}, data={f"f{n}": "1" for n in range(2000)}),
                http.post("/files", content=b"--x", headers={"content-type": "multipart/form-data; boundary=y"}),
                http.post("/files", content=b"{}", headers={"content-type": "application/json"}),
                http.post("/batches", content=b"[" * 10_000),
                http.post("/batches", json={"input_file_id": taken.json()["id"], "endpoint": CHAT}),
                http.post("/batches", json=create(taken, metadata={str(n): "x" for n in range(17)})),
                http.post("/batches", json=create(taken, metadata={"x": "y" * 513})),
                http.post("/batches", json=create(taken, metadata={"x": "\x00"})),
                http.post("/batches", content=json.dumps(create(taken, metadata={"\ud800": "x"}))),
                http.post("/batches", content=rb'{"\ud800": 1}'),
                http.post("/batches", content=b'{"input_file_id": NaN}'),
                http.post("/batches", content=b'{"input_file_id": %b}' % (b"9" * 5_000)),
                http.post("/batches", json=create(taken, endpoint="/v1/moderations")),
                http.get("/batches", params={"after": "\x00"}),
                http.post("/batches", json=create(taken, more=1)),
                http.get("/batches", params={"limit": "101"}),
                http.get("/files", params={"after": "file-unknown"}),
            ],
            404: [
                http.post("/batches", json=create(taken, input_file_id="\x00")),
                http.get("/files/%00"),
                http.get("/files/none"),
                http.get("/batches/x/y"),
                http.get("/filesystem"),
                http.get("/files/a/b/c"),
            ],
            405: [http.put("/files", json={}), http.delete("/batches")],
            413: [
                http.post("/files", **form(b"x" * (FILE_BYTES + 70_000))),
                http.post("/batches", content=b"x" * 70_000),
            ],
        }
        for status, answers in wrong.items():
            assert [a.status_code for a in answers] == [status] * len(answers), [a.text for a in answers]
            assert all(a.json()["error"]["message"] for a in answers)
            assert not [a.text for a in answers if "settings." in a.text]
        pieces = http.post(
            "/files", content=itertools.repeat(b"x" * 65_536, 80),
            headers={"content-type": "multipart/form-data; boundary=y"},
        )  # fmt: skip
        assert pieces.status_code == 413  # without a declared length
    with httpx.Client(base_url=f"{up.url}/v1", timeout=60) as nobody:
        answers = [nobody.post("/files", **form(b"{}")), nobody.get("/batches"), nobody.get("/files/x/content")]
        assert [a.status_code for a in answers] == [401] * 3


def create(file: httpx.Response, **changes: Any) -> dict[str, Any]:
    return {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"} | changes


def test_uploads_of_one_tenant_that_have_not_ended_have_a_size_together(up: Up):
    """None of them says how long it will be, so nothing is known before it has come. Which one is refused is decided by
    the order in which the server reads."""
    head = "POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n".format(up.demo()["keys"]["standard"])
    head += "content-type: multipart/form-data; boundary=y\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    opened = [socket.create_connection(("127.0.0.1", up.port), timeout=60) for _ in range(3)]
    try:
        for connection in opened[:2]:
            connection.sendall(head.encode() + piece * (FILE_BYTES // 65536))
        with suppress(OSError):  # refused meanwhile
            for part in (head.encode(), *[piece] * (FILE_BYTES // 65536)):
                opened[2].sendall(part)
        (refused,) = select.select(opened, [], [], 60)[0]
        answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"tenant_connections" in answer
        assert b"bytes of uploads" in answer + refused.recv(4096)
        opened.remove(refused)
        refused.close()
        assert not select.select(opened, [], [], 0)[0], "the others go on"
    finally:
        for connection in opened:
            connection.close()


def test_an_upload_that_stops_holds_up_no_chat(up: Up, client: openai.OpenAI):
    """The key is checked, half of a form is there, and nothing comes any more."""
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {up.demo()['keys']['standard']}\r\n"
        "content-type: multipart/form-data; boundary=y\r\ncontent-length: 100000\r\n\r\n--y\r\n"
    ).encode()
    idle = [socket.create_connection(("127.0.0.1", up.port)) for _ in range(12)]
    try:
        for one in idle:
            one.sendall(head)
        asked = client.chat.completions.create(
            model=up.demo()["model"], messages=[{"role": "user", "content": "hello"}], max_tokens=2
        )
        assert asked.choices
        refused, _, _ = select.select(idle, [], [], 0.0)
        end = time.monotonic() + 20
        while len(refused) < 4 and time.monotonic() < end:
            time.sleep(0.05)
            refused, _, _ = select.select(idle, [], [], 0.0)
        assert [one.recv(64)[:12] for one in refused] == [b"HTTP/1.1 429"] * 4, "a tenant has more uploads open"
    finally:
        for one in idle:
            one.close()


# --- whatever is killed


def kill(up: Up, name: str) -> None:
    """Kills a process of the instance; ``executor``: the process of tasks, which the worker replaces."""
    with suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        if name == "executor":
            for child in psutil.Process(up.pid("worker")).children():
                child.kill()
        else:
            os.kill(up.pid(name), signal.SIGKILL)


def reconciled(client: openai.OpenAI, batch: Any, expected: set[str]) -> dict[str, int]:
    """Missing, double and foreign results of a batch, and how many lines ran more than once."""
    found = [*rows_of(client, batch.output_file_id), *rows_of(client, batch.error_file_id)]
    counts = Counter(r["custom_id"] for r in found)
    return {
        "results": len(found),
        "missing": len(expected - counts.keys()),
        "double": sum(n - 1 for n in counts.values()),
        "foreign": len(counts.keys() - expected),
        "wrong": sum(r["response"] is None or r["response"]["status_code"] != 200 for r in found),
    }


def survive(up: Up, client: openai.OpenAI, lines: int, kills: list[str], limit_s: float) -> dict[str, int]:
    """Runs a batch, kills one after the other as it gets on, and compares results with lines."""
    batch = begin(client, [line(up, n) for n in range(lines)])
    for number, name in enumerate(kills, 1):
        now = done(client, batch.id, lines * number // (len(kills) + 1), limit_s)
        print(f"{name} killed at {now.request_counts.completed} of {lines}")
        kill(up, name)
    return reconciled(client, ended(client, batch.id, limit_s), {f"r-{n}" for n in range(lines)})


@pytest.mark.timeout(600)
def test_a_batch_whose_executor_and_web_process_are_killed_has_one_result_a_line(up: Up, client: openai.OpenAI):
    found = survive(up, client, 300, ["executor", "web"], LIMIT_S)
    assert found == {"results": 300, "missing": 0, "double": 0, "foreign": 0, "wrong": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_lines_have_ten_thousand_results_whatever_is_killed(up: Up, client: openai.OpenAI):
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    draw = random.Random(seed)
    kills = ["worker", "web", "executor", "redis", *draw.choices(["worker", "web", "executor", "redis"], k=4)]
    print(f"SEED={seed} {kills}")
    found = survive(up, client, 10_000, kills, 900)
    assert found == {"results": 10_000, "missing": 0, "double": 0, "foreign": 0, "wrong": 0}
