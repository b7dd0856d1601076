"""deploy/envoy in a real Envoy, in front of a real instance: what its clients meet, and when their leases end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.instance import LIMIT_S, ROOT, Up, until
from tests.support.own_environment import installed
from tests.support.ports import free_port

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(600)]

TOKEN = "token-of-the-data-plane"
HELLO = {"model": "llama-3-8b", "max_tokens": 3000, "messages": [{"role": "user", "content": "Hello there"}]}
LONG = HELLO | {"ignore_eos": True}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    settings = {"QUARTERMASTER_EXT_AUTHZ_S": "600", "QUARTERMASTER_EXT_AUTHZ_TOKEN": TOKEN}
    made = Up(tmp_path_factory.mktemp("envoy") / "home", **settings).start()
    try:
        yield made.wait_ready()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def clients(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of Envoy, which runs the shipped file with this instance's address and token."""
    folder, port = tmp_path_factory.mktemp("envoy"), free_port()
    config = (ROOT / "deploy/envoy/envoy.yaml").read_text()
    for shipped, ours in (
        ("PUT-YOUR-TOKEN-HERE", TOKEN),
        ("address: quartermaster, port_value: 8000", f"address: 127.0.0.1, port_value: {up.port}"),
        ("address: 0.0.0.0, port_value: 10000", f"address: 127.0.0.1, port_value: {port}"),
    ):
        assert config.count(shipped) == 1
        config = config.replace(shipped, ours)
    (folder / "envoy.yaml").write_text(config)
    program = installed("envoy").parent.parent / "lib"
    [binary] = program.glob("python*/site-packages/envoy/_bin/envoy")
    command = [binary, "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart"]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        headers = {"authorization": f"Bearer {up.demo()['keys']['standard']}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            until(lambda: process.poll() is not None or answers(client))
            assert process.poll() is None, (folder / "out").read_text()[-3000:]
            yield client
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def running(up: Up) -> int:
    pools = httpx.get(f"{up.url}/api/v1/live", headers=up.admin(), follow_redirects=True).json()["pools"]
    return sum(pool["running"] for pool in pools.values())


def record(up: Up, before: set[str]) -> dict[str, Any]:
    """The one record that was not there before, once it is there."""
    found = until(lambda: [row for row in records(up) if row["request_id"] not in before])
    assert len(found) == 1
    return dict(found[0])


def records(up: Up) -> list[dict[str, Any]]:
    answer = httpx.get(f"{up.url}/api/v1/requests/?limit=200", headers=up.admin(), follow_redirects=True)
    return [row for row in answer.raise_for_status().json()["results"] if row["outcome"] != "refused"]


def known(up: Up) -> set[str]:
    return {row["request_id"] for row in records(up)}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_an_answer_is_charged_what_its_engine_told(up: Up, clients: httpx.Client, path: str) -> None:
    before = known(up)
    ask: dict[str, Any] = dict(HELLO)
    if path == "/v1/responses":
        ask = {"model": HELLO["model"], "max_output_tokens": 3000, "store": False, "input": "Hello there"}
    answer = clients.post(path, json=ask)
    assert answer.status_code == 200
    told = answer.json()["usage"]
    written = record(up, before)
    assert written["input_tokens"] == told.get("prompt_tokens", told.get("input_tokens"))
    assert written["output_tokens"] == told.get("completion_tokens", told.get("output_tokens")) < 3000
    for secret in ("x-quartermaster-lease", "x-gateway-destination-endpoint"):
        assert secret not in answer.headers


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_slot_back(up: Up, clients: httpx.Client, stream: bool) -> None:
    before = known(up)
    if stream:
        with clients.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as answer:
            body = answer.iter_bytes()  # a name of its own, or it is closed with its first piece
            assert next(body)
            until(lambda: running(up) == 1)
    else:
        with pytest.raises(httpx.ReadTimeout):
            clients.post("/v1/chat/completions", json=LONG, timeout=1)
    written = record(up, before)  # with ten minutes to the end of its lease
    assert written["outcome"] == "cancelled"
    until(lambda: running(up) == 0)


def test_nobody_sends_a_request_elsewhere_than_where_its_slot_is(up: Up, clients: httpx.Client) -> None:
    before = known(up)
    nowhere = f"127.0.0.1:{free_port()}"
    answer = clients.post(
        "/v1/chat/completions", json=HELLO | {"max_tokens": 5}, headers={"x-gateway-destination-endpoint": nowhere}
    )
    assert answer.status_code == 200
    assert record(up, before)["outcome"] == "completed"


def test_a_refusal_is_the_one_that_v1_gives(up: Up, clients: httpx.Client) -> None:
    ask = HELLO | {"model": "none"}
    through, direct = (
        clients.post("/v1/messages", json=ask),
        httpx.post(f"{up.url}/v1/messages", json=ask, headers=clients.headers),
    )
    assert through.status_code == direct.status_code == 404
    assert through.json() | {"request_id": ""} == direct.json() | {"request_id": ""}
    assert through.headers["x-quartermaster-reason"] == direct.headers["x-quartermaster-reason"] == "unknown_model"
