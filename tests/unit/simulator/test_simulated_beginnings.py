"""Prompts that begin alike, behind the product's rules: what is cached of them does not count against the credit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from django.core.management import CommandError, call_command

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import Phase, ServiceClass, Slo
from scheduling.simulator.kv_blocks import KvBlocks
from scheduling.simulator.prefix_cache import BlockCache, prefixes_of
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.shared_prompts import Conversations, Instructions, write_shared
from scheduling.simulator.trace import TraceRequest, read_trace
from scheduling.simulator.workload import BLOCK_TOKENS, Belief, SimRequest, Tier, make_request

TIER = Tier("standard", Slo(ttft_s=2.0), 1, 30.0, 1.0, ServiceClass.ELASTIC)


def asked(trace: list[TraceRequest]) -> list[SimRequest]:
    belief, requests = Belief(8.0, 200, (8.0,), (1.0,)), []
    for n, one in enumerate(trace):
        made = make_request(n, one.arrival_s, one.input_tokens, one.output_tokens, TIER, belief)
        queued = replace(made.queued, prefixes=prefixes_of(one.blocks, one.input_tokens))
        requests.append(replace(made, queued=queued, blocks=one.blocks))
    return requests


class Served:
    """``lost_s``: when all caches are emptied."""

    def __init__(self, trace: list[TraceRequest], uncounted_s: float, lost_s: float | None = None) -> None:
        preset = load_preset("llama-3-8b-a100")
        replica = Replica(preset.step_time, 128, 421_000, 1024, None, "priority")
        routing = make_routing("prefix_affinity", {"uncounted_s": uncounted_s})
        replay = Replay([replica] * 2, make_ordering("unified"), routing)
        requests = asked(trace)

        def lose(now_s: float, *_: object) -> None:
            if now_s == lost_s:
                caches = replay._caches
                caches._caches = [BlockCache(421_000 // BLOCK_TOKENS) for _ in caches._caches]

        outcomes = replay.run(requests, lose, every_s=1.0)
        self.in_time = sum(o.ttft_s <= 2.0 for o in outcomes) / len(outcomes)
        self.last_s = max(o.arrival_s + o.ttlt_s for o in outcomes)


def instructions(texts: int, rate: float) -> list[TraceRequest]:
    return list(Instructions(texts, 4096).requests(rate, 30.0, Random(5)))


def test_prompts_of_one_instruction_are_served_as_fast_as_engines_compute_what_is_their_own() -> None:
    trace = instructions(1, 75.0)
    counted, uncounted = Served(trace, 0.0), Served(trace, 3.0)
    assert uncounted.in_time > 0.97
    assert counted.in_time < 0.85, "the test would see it"
    assert uncounted.last_s < counted.last_s - 5.0


def test_tenants_with_instructions_of_their_own_share_the_bound() -> None:
    trace = instructions(12, 60.0)
    counted, tight, default = (Served(trace, seconds) for seconds in (0.0, 0.1, 3.0))
    assert default.last_s < min(counted.last_s, tight.last_s) - 2.0


@pytest.mark.parametrize("texts", [1, 12])
def test_where_caches_are_lost_no_fewer_are_in_time_than_if_everything_counted(texts: int) -> None:
    trace = instructions(texts, 60.0)
    assert Served(trace, 3.0, 15.0).in_time >= Served(trace, 0.0, 15.0).in_time


def test_conversations_are_served_about_as_well() -> None:
    traces = [list(Conversations().requests(3.0, 40.0, Random(seed))) for seed in (5, 6, 7)]
    counted, uncounted = ([Served(trace, bound_s) for trace in traces] for bound_s in (0.0, 3.0))
    assert sum(each.in_time for each in uncounted) >= sum(each.in_time for each in counted) - 3 * 0.015
    assert sum(each.last_s for each in uncounted) <= sum(each.last_s for each in counted) + 3 * 1.0


# --- the traces


@pytest.mark.parametrize("kind", [Instructions(3, 1024), Conversations(512), Conversations(0)])
def test_a_trace_is_read_as_it_was_drawn(tmp_path: Path, kind: Instructions | Conversations) -> None:
    path = tmp_path / "shared.jsonl"
    written = write_shared(path, kind, 5.0, 60.0, 7)
    read = read_trace(path)
    assert len(read) == written > 100
    assert path.read_bytes() == (write_shared(path, kind, 5.0, 60.0, 7), path.read_bytes())[1], "drawn from the seed"
    for request in read:
        assert (len(request.blocks) - 1) * BLOCK_TOKENS < request.input_tokens <= len(request.blocks) * BLOCK_TOKENS


def test_what_begins_alike_is_what_the_kind_says() -> None:
    asked_of = {request.blocks[:2] for request in Instructions(3, 1024).requests(20.0, 30.0, Random(1))}
    assert asked_of == {(0, 1), (2, 3), (4, 5)}
    turns = list(Conversations(1024).requests(1.0, 120.0, Random(1)))
    assert all(request.blocks[:2] == (0, 1) for request in turns)
    known = {request.blocks for request in turns}
    going_on = sum(any(request.blocks[:n] in known for n in range(3, len(request.blocks))) for request in turns)
    assert 0.8 * len(turns) < going_on < len(turns)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["instructions", "--texts", "0"], "--texts"),
        (["conversations", "--tokens", "700"], "multiple of 512"),
        (["instructions", "--rate", "nan"], "--rate"),
        (["instructions", "--rate", "1e9"], "at most 1,000,000"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, options: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        call_command("lab", "shared", *options, "--out", str(tmp_path / "x.jsonl"))
    assert not (tmp_path / "x.jsonl").exists()


def test_the_lab_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.jsonl"
    call_command("lab", "shared", "conversations", "--out", str(out), "--rate", "2", "--seconds", "10")
    assert f"wrote {len(read_trace(out))} requests to" in capsys.readouterr().out


@pytest.mark.parametrize("apart", [False, True])
def test_where_other_replicas_compute_prompts_nothing_is_believed_to_be_cached(apart: bool) -> None:
    preset = load_preset("llama-3-8b-a100")
    both = Replica(preset.step_time, 128, 421_000, 1024, None, "priority")
    decode, prefill = replace(both, phase=Phase.DECODE), replace(both, phase=Phase.PREFILL)
    replicas = [decode, decode, prefill] if apart else [both, both]
    replay = Replay(replicas, make_ordering("unified"), make_routing("prefix_affinity"))
    replay.run(asked(instructions(1, 20.0)))
    assert all((backend.cache_trust == 0) is apart for backend in replay.view.backends.values())


@pytest.mark.parametrize(("blocks", "fit"), [((), 2), ((1, 2, 3), 3), ((1, 2, 4), 3)])
def test_running_requests_hold_a_beginning_that_they_share_once(blocks: tuple[int, ...], fit: int):
    """Three prompts of 1,100 tokens in a cache of 3,000: with 1,024 tokens in common all run, else two."""
    kv = KvBlocks(3_008, 16, 0.0, BLOCK_TOKENS)
    prompts = [blocks[:2], blocks[:2], blocks[:2]]
    assert [kv.admit(1_100, 0, ids) for ids in prompts] == [True, True, fit == 3]
    for ids in prompts[:fit]:
        kv.release(1_100, ids)
    assert kv.free == kv.total


def test_what_others_still_hold_of_a_beginning_is_not_free():
    kv = KvBlocks(16_000, 16, 0.0, BLOCK_TOKENS)
    for ids in ((1, 2), (1, 2), (1, 3)):
        assert kv.admit(1_024, 0, ids)
    assert (kv.total - kv.free) * 16 == 3 * BLOCK_TOKENS
    kv.release(1_024, (1, 2))
    assert (kv.total - kv.free) * 16 == 3 * BLOCK_TOKENS
    kv.release(1_024, (1, 2))
    assert (kv.total - kv.free) * 16 == 2 * BLOCK_TOKENS
    kv.release(1_024, (1, 3))
    assert kv.free == kv.total
