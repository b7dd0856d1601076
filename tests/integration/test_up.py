"""``make up`` as a newcomer meets it: one command, everything answers, Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx
import openai
import psutil
import pytest

from tests.support.instance import ROOT, Up, bindable, gone
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("up") / "home"


class FirstStart(Up):
    begins_empty = True


@pytest.fixture(scope="module")
def up(home):
    """One instance for the tests that only look at it."""
    instance = FirstStart(home).start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


def test_the_demo_file_holds_what_a_newcomer_needs_and_only_he_may_read_it(up):
    demo = up.demo()
    assert demo["base_url"] == up.url
    admin = {"url": f"{up.url}/admin/", "username": "admin", "password": demo["admin"]["password"]}
    assert demo["admin"] == admin | {"token": demo["admin"]["token"]}
    assert (demo["model"], demo["pool"]) == ("llama-3-8b", "llama-3-8b")
    assert set(demo["keys"]) == {"premium", "standard", "batch"}
    assert (up.home / "demo.json").stat().st_mode & 0o077 == 0


def test_the_terminal_says_how_to_begin(up):
    up.wait(lambda: "Ctrl-C" in up.output.read_text())
    said = up.output.read_text()
    demo = up.demo()
    for word in (up.url, demo["admin"]["password"], demo["keys"]["standard"], "curl "):
        assert word in said


def test_the_openai_sdk_lists_completes_and_streams(up):
    model = up.demo()["model"]
    with up.client() as client:
        assert [m.id for m in client.models.list()] == [model]
        messages = [{"role": "user", "content": "How many words do you see here?"}]
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12)
        assert whole.choices[0].message.content
        assert whole.usage.completion_tokens <= 12
        chunks = list(
            client.chat.completions.create(
                model=model, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}
            )
        )
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_wrong_key_is_refused_in_openais_words(up):
    stranger = openai.OpenAI(base_url=f"{up.url}/v1", api_key="qm-nobody.nothing")
    with stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert caught.value.body["type"] == "authentication_error"


def test_health_readiness_and_metrics_answer(up):
    assert up.get("/healthz") == (200, b'{"alive": true}')
    status, report = up.get("/readyz")
    assert status == 200
    assert json.loads(report)["pools"]["llama-3-8b"]["ready_backends"] == 2
    status, page = up.get("/metrics")
    assert status == 200
    assert b"quartermaster_open_requests" in page


def test_every_part_has_its_pid_and_its_log(up):
    for name in ("redis", "web", "worker", "standby", "engine-0", "engine-1"):
        assert psutil.pid_exists(up.pid(name))
        assert (up.home / "logs" / f"{name}.log").exists()


def test_a_second_start_on_the_same_home_is_refused_with_a_reason(up):
    second = Up(up.home).start()
    assert second.stop(signal.SIGCONT) == 1
    assert f"process {up.process.pid}" in second.output.read_text()


def test_a_busy_port_is_refused_with_a_reason(up, tmp_path):
    second = Up(tmp_path / "other", QUARTERMASTER_PORT=str(up.port)).start()
    assert second.stop(signal.SIGCONT) == 1
    assert f"Port {up.port}" in second.output.read_text()


def test_a_killed_web_server_comes_back_and_the_terminal_says_so(up):
    before = up.pid("web")
    os.kill(before, signal.SIGKILL)
    up.wait(lambda: up.get("/readyz")[0] != 200)
    up.wait_ready()
    assert up.pid("web") != before
    assert "web was killed by SIGKILL" in up.output.read_text()
    with up.client() as client:
        client.chat.completions.create(
            model=up.demo()["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
        )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_process_that_leads_ends_another_leads_and_what_ended_stands_by(up, number):
    up.wait(lambda: up.leader() and (up.home / "run" / "standby.pid").exists())
    ended = up.leader()
    other = {"worker": "standby", "standby": "worker"}[ended]
    before = up.pid(ended)
    os.kill(before, number)
    up.wait(lambda: up.leader() == other)
    with up.client() as client:
        client.chat.completions.create(
            model=up.demo()["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
        )
    up.wait(lambda: (up.home / "run" / f"{ended}.pid").exists() and up.pid(ended) != before)
    assert up.get("/readyz")[0] == 200
    assert up.leader() == other


def past_of(up: Up, minutes: int) -> list[float]:
    """The moments that the overview can show."""
    demo = up.demo()
    query = {"pool": demo["pool"], "minutes": minutes}
    answer = httpx.get(f"{up.url}/api/v1/live/history", params=query, headers=up.admin(), timeout=20)
    return [frame["at"] for frame in answer.json()["frames"]] if answer.status_code == 200 else []


def test_ctrl_c_ends_everything_and_a_second_start_keeps_keys_ports_and_the_overviews_past(tmp_path):
    up = Up(tmp_path / "home").start().wait_ready()
    up.wait(lambda: len(past_of(up, 15)) > 12)  # steps of ten seconds are in the database then
    seen = past_of(up, 15)[0]
    demo, tree = up.demo(), up.tree()
    engines = json.loads((up.home / "ports.json").read_text())
    assert len(tree) >= 6
    assert up.stop(signal.SIGINT) == 0
    assert gone(tree), up.output.read_text()
    assert all(bindable(port) for port in [up.port, *engines.values()])
    assert not list((up.home / "run").glob("*.pid"))

    up.start().wait_ready()
    try:
        assert up.demo() == demo
        assert json.loads((up.home / "ports.json").read_text()) == engines
        with up.client() as client:
            assert client.models.list().data
        up.wait(lambda: past_of(up, 15)[-1:] > [seen + 15])  # it goes on
        assert past_of(up, 15)[0] == seen
        assert past_of(up, 60)[0] <= seen + 10
    finally:
        tree = up.tree()
        up.stop(signal.SIGTERM)
    assert gone(tree)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_a_killed_supervisor_leaves_no_process(tmp_path):
    up = Up(tmp_path / "home").start()
    up.wait(lambda: (up.home / "run" / "web.pid").exists() and (up.home / "run" / "worker.pid").exists())
    tree = up.tree()
    up.stop(signal.SIGKILL)
    assert gone(tree)


def test_engines_that_already_run_are_asked_what_they_serve(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "scheduling.engines.simulated", "--port", str(port)]
    engine = subprocess.Popen([*command, "--model", "our/Model-7B.v2", "--preset", "llama-3-8b-h100"], cwd=ROOT)
    up = Up(tmp_path / "home", ENGINE=url, QUARTERMASTER_ENGINE_SLOTS="17")
    try:
        up.start().wait_ready()
        demo = up.demo()
        assert (demo["model"], demo["pool"]) == ("our/Model-7B.v2", "model-7b-v2")
        assert not (up.home / "run" / "engine-0.pid").exists()
        with up.client() as client:
            assert client.chat.completions.create(
                model=demo["model"], messages=[{"role": "user", "content": "x"}], max_tokens=2
            ).usage
        stored = httpx.get(f"{up.url}/api/v1/backends", headers=up.admin()).json()["results"]
        assert [(b["url"], b["slots"], b["kv_tokens"] > 1000) for b in stored] == [(url, 17, True)]
    finally:
        up.stop()
        engine.terminate()
        engine.wait(30)


def test_a_home_too_deep_for_a_socket_works(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    up = Up(deep / "home", QUARTERMASTER_SIM_REPLICAS="1").start().wait_ready()
    tree = up.tree()
    assert up.stop() == 0
    assert gone(tree)
