"""No error of the plugin reaches the engine: vLLM's own order and budget hold, and the log says so once."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Any

import pytest

from scheduling.engines.prometheus_text import total
from tests.support.plugged_engine import CHAT, LATER, ask, digest, plugged
from tests.support.vllm_stand_in import Clock, Request


class Broken(Exception):
    pass


def _breaks(*args: object, **kwargs: object) -> Any:
    raise Broken("by a test")


@pytest.mark.parametrize("where", ["select", "push", "discard"])
def test_a_policy_that_fails_leaves_vllms_order_and_loses_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    engine = plugged(clock, seats=1)
    for number in range(4):
        ask(engine, clock, f"{number}", 10, 1)
        clock.at += 1
    assert engine.qm_order is not None
    setattr(engine.qm_order._queue, where, _breaks)
    with caplog.at_level(logging.ERROR, logger="vllm.quartermaster"):
        late = ask(engine, clock, "gone", 10, 1, CHAT)
        engine.finish(late)
        ask(engine, clock, "last", 10, 1, CHAT)
        served = [next(iter(engine.step(clock))) for _ in range(5)]
    if where != "discard":
        assert served == ["0", "1", "2", "3", "last"], "as vLLM would: first come, first served"
    assert sorted(served) == ["0", "1", "2", "3", "last"]
    assert engine.requests == {}
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    assert total(engine.qm_log.metrics(), ("quartermaster_plugin_degraded",)) == 1
    assert total(engine.qm_log.metrics(), ("quartermaster_plugin_errors_total",)) == 1
    assert "Broken" in engine.qm_log.off


def test_an_error_in_a_decision_leaves_vllms_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 30, CHAT)
    engine.step(clock, 0.6)
    monkeypatch.setattr("scheduling.engines.vllm_plugin.deciding.prefill_budget", _breaks)
    ask(engine, clock, "long", 20_000, 4, LATER)
    assert engine.step(clock) == {"chat": 1, "long": 2047}
    assert engine.qm_log.off.startswith("decide: Broken")
    assert engine.policy == "fcfs"
    assert engine.requests["chat"].priority == 0
    assert engine.step(clock) == {"chat": 1, "long": 2047}


@pytest.mark.parametrize("method", ["_qm_scheduled", "_qm_ended", "_qm_meet", "qm_victims.rank"])
def test_an_error_anywhere_lets_the_engine_serve_on(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "one", 40, 3, CHAT)
    engine.step(clock)
    *parts, name = method.split(".")
    monkeypatch.setattr(attrgetter(*parts)(engine) if parts else engine, name, _breaks)
    ask(engine, clock, "two", 40, 3, CHAT)
    for _ in range(6):
        engine.step(clock)
    assert engine.requests == {}
    assert engine.qm_log.off


def test_a_digest_that_cannot_be_read_is_counted_and_its_request_served_without() -> None:
    clock = Clock()
    engine = plugged(clock)
    for at, odd in enumerate((17, "", "1 2", "9 " + digest(CHAT), "1 0 0 nan e 1 - - 3", "x" * 5000)):
        engine.add_request(Request(f"{at}", 10, 1, digest=odd, arrival=clock.at))
    engine.add_request(Request("good", 10, 1, digest=digest(CHAT), arrival=clock.at))
    assert len(engine.step(clock)) == 7
    page = engine.qm_log.metrics()
    assert total(page, ("quartermaster_plugin_digests_refused_total",)) == 6
    assert total(page, ("quartermaster_plugin_digests_total",)) == 1
    assert "at most 1024 letters" in engine.qm_log.state()["last_refused_digest"]
    assert not engine.qm_log.off
