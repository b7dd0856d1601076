"""The key of somebody who is removed opens nothing any more: on two web processes, and in the executor of batches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.instance import Up

LIMIT_S = 100
CONNECTIONS = 24  # so many that each of two processes accepts some
CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    instance = Up(tmp_path_factory.mktemp("removed") / "home", QUARTERMASTER_WEB_PROCESSES="2").start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


def held_by(up: Up) -> dict[str, int]:
    """How many connections of clients each web process has."""
    counts = {}
    for name in ("web", "web-1"):
        pid = int((up.home / "run" / f"{name}.pid").read_text())
        here = psutil.Process(pid).net_connections("tcp")
        counts[name] = sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == up.port for c in here)
    return counts


def test_a_removed_users_key_opens_nothing_on_any_web_process_and_ends_its_batches(up: Up):
    model = up.demo()["model"]
    with ExitStack() as stack:
        api = stack.enter_context(httpx.Client(base_url=f"{up.url}/api/v1/", headers=up.admin(), timeout=60))
        [entitlement] = [row["slug"] for row in api.get("entitlements").json()["results"] if row["tenant"] == "acme"]
        made = api.post("keys", json={"name": "eve", "entitlement": entitlement, "user": "eve"})
        assert made.status_code == 201, made.text
        key: dict[str, Any] = made.json()
        client = openai.OpenAI(base_url=f"{up.url}/v1", api_key=key["key"], max_retries=0, timeout=60)
        message = {"role": "user", "content": "hello"}
        body = {"model": model, "messages": [message], "max_tokens": 300}
        rows = [{"custom_id": f"r-{n}", "method": "POST", "url": CHAT, "body": body} for n in range(2000)]
        file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, rows)).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        deadline = time.monotonic() + LIMIT_S
        while not client.batches.retrieve(batch.id).request_counts.completed:
            assert time.monotonic() < deadline, client.batches.retrieve(batch.id)
            time.sleep(0.1)

        headers = {"authorization": f"Bearer {key['key']}"}
        each = [stack.enter_context(httpx.Client(base_url=up.url, headers=headers)) for _ in range(CONNECTIONS)]
        assert {one.get("/v1/models").status_code for one in each} == {200}
        assert min(held_by(up).values()) > 0

        removed = api.post("tenants/acme/revoke-user", json={"user": "eve"})
        assert (removed.status_code, removed.json()) == (200, {"revoked": [key["id"]]})
        began = time.monotonic()

        def refused(one: httpx.Client) -> float:
            """When the first request was sent that is refused on this connection. The refusal waits for the newest
            catalog."""
            while True:
                sent = time.monotonic() - began
                if one.get("/v1/models").status_code == 401:
                    return sent
                assert sent < LIMIT_S

        with ThreadPoolExecutor(CONNECTIONS) as threads:
            took = sorted(threads.map(refused, each))
        print(f"refused on {held_by(up)} connections what was sent after {took[0]:.2f} to {took[-1]:.2f} s")

        # its batch: the last line began when the executor knew nothing of it yet
        keeper = up.client("premium", timeout=60)
        while (ended := keeper.batches.retrieve(batch.id)).status != "cancelled":
            assert time.monotonic() - began < LIMIT_S, ended
            time.sleep(0.05)
        print(f"its batch is cancelled after {time.monotonic() - began:.2f} s")
        assert [problem.code for problem in ended.errors.data] == ["key_revoked"]
        counts = ended.request_counts
        assert counts.total == counts.completed + counts.failed == 2000
        assert 0 < counts.completed < 2000
