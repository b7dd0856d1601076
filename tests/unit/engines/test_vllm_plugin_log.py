"""What others can read of the plugin: its steps, metrics and state."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from scheduling.engines.prometheus_text import total
from scheduling.engines.vllm_plugin.export import serve
from tests.support.plugged_engine import CHAT, ask, plugged
from tests.support.vllm_stand_in import Clock


def test_steps_and_the_time_in_the_engines_queue_are_logged() -> None:
    clock = Clock()
    engine = plugged(clock, seats=1)
    ask(engine, clock, "one", 100, 3, CHAT)
    ask(engine, clock, "two", 150, 1, CHAT)
    for _ in range(5):
        engine.step(clock, 0.02)
    steps, admitted = engine.qm_log.steps(), engine.qm_log.requests()
    assert [(step.prefill, step.decodes) for step in steps] == [(100, 0), (0, 1), (0, 1), (150, 0)]
    assert [step.seconds for step in steps] == pytest.approx([0.02] * 4)
    assert steps[0].pp == 5000
    assert [(one.id, one.prompt) for one in admitted] == [("one", 100), ("two", 150)]
    assert [one.queued_s for one in admitted] == pytest.approx([0.0, 0.06])
    rows = [json.loads(line) for line in engine.qm_log.lines()]
    assert [row["kind"] for row in rows] == ["admitted", "step", "step", "step", "admitted", "step"]


def test_the_log_is_bounded_and_can_be_thinned() -> None:
    clock = Clock()
    engine = plugged(clock, log_steps=5, log_every=3)
    ask(engine, clock, "one", 10, 100)
    for _ in range(40):
        engine.step(clock)
    assert len(engine.qm_log.steps()) == 5
    assert engine.qm_log.counters.steps == 40


def test_who_comes_again_is_told_the_steps_since_and_all_of_another_process() -> None:
    clock = Clock()
    engine = plugged(clock, log_steps=5)
    ask(engine, clock, "one", 10, 100)
    for _ in range(8):
        engine.step(clock)
    log = engine.qm_log
    assert log.began

    def told(after: int, began: str) -> tuple[dict[str, Any], list[int]]:
        head, *steps = [json.loads(line) for line in log.since(after, began)]
        assert head["kind"] == "log"
        assert head["limits"] == {"slots": engine.max_num_running_reqs, "step_tokens": 2048}
        return head, [step["number"] for step in steps]

    head, numbers = told(0, "")
    assert (head["last"], numbers) == (8, [4, 5, 6, 7, 8])
    assert told(6, log.began)[1] == [7, 8]
    head, numbers = told(8, log.began)
    assert (head["last"], numbers) == (8, [])
    assert told(8, "abc")[1] == [4, 5, 6, 7, 8], "the process that it had read before was another one"
    head, numbers = told(99, "abc")
    assert (head["last"], len(numbers)) == (8, 5)


def test_metrics_log_and_state_are_served_and_nothing_else() -> None:
    clock = Clock()
    engine = plugged(clock)
    engine.qm_log.facts = {"policy": 'a"b'}
    ask(engine, clock, "one", 10, 2, CHAT)
    engine.step(clock)
    server = serve(engine.qm_log, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        page = opener.open(url + "/metrics", timeout=5).read().decode()
        assert total(page, ("quartermaster_plugin_steps_total",)) == 1
        assert 'policy="a\\"b"' in page
        assert len(opener.open(url + "/steps", timeout=5).read().splitlines()) == 2
        since = opener.open(url + f"/steps?after=0&began={engine.qm_log.began}", timeout=5).read().splitlines()
        assert [json.loads(line)["kind"] for line in since] == ["log", "step"]
        for odd in ("/steps?after=-1", "/steps?after=1&began=../x", "/steps?after=" + "9" * 30):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                opener.open(url + odd, timeout=5)
        assert json.loads(opener.open(url + "/state", timeout=5).read())["degraded"] == ""
        with pytest.raises(urllib.error.HTTPError, match="404"):
            opener.open(url + "/../settings", timeout=5)
    finally:
        server.shutdown()
        server.server_close()


def test_every_metric_is_documented_and_every_documented_one_is_there() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "one", 10, 2)
    engine.step(clock)
    engine.qm_log.counters.errors["here"] = 1
    engine.qm_log.model = {"error": 0.1}
    there = {line.split()[2] for line in engine.qm_log.metrics().splitlines() if line.startswith("# TYPE")}
    page = (Path(__file__).parents[3] / "docs" / "guide" / "vllm-plugin.md").read_text()
    assert there == set(re.findall(r"^\| `(quartermaster_plugin_\w+)`", page, re.MULTILINE))
