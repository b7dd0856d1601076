"""Who is in time beyond an engine's capacity, by where the order is decided, on a GPU's step times, without a GPU.

    python -m tests.bench.bench_gpu_step_times [--seeds 10]

An engine whose steps last what the fit to a vLLM run on an H100 says (``docs/results/gpu-h100.json``, *plugin* at
25.5/s) serves the open-loop requests of ``manage.py experiment gpu``. *fcfs*, *priority* and *plugin* are stepped one
by one: the stand-in for vLLM's scheduler that tests use, and over it the plugin's own code. *front* is the lab with the
policy in front, a credit that is found while it serves or given, and what the H200 took from a first token to the next
prompt. Prints a row for each load and mode: means over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from controlplane.experiments.gpu_load import Planned, Promises, digest_of, plan
from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.registry import make_routing
from scheduling.core.types import QueuedRequest
from scheduling.engines.vllm_plugin.settings import Settings
from scheduling.simulator.engine_queue import waiting
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import is_late
from scheduling.simulator.workload import SimRequest
from tests.support.vllm_stand_in import Clock, Fcfs, Plugged, Request, StandIn

STEP = StepTime(t0=0.0064, a=1.985e-5, b=9.05e-5, c=3.36e-8, e=9.425e-10, knee=0.0, a2=0.0)
SLOTS, BUDGET, LONGEST = 256, 2048, 8192
SIGNAL_S = 0.055  # from a first token to the next prompt in the engine (docs/results/gpu.md)
SECONDS = 10.0
PROMISES = Promises(1.0, 0.05, 6.0)
LOADS = (
    ("azure-code", 15.3), ("azure-code", 25.5), ("azure-code", 35.0), ("azure-conv", 20.0), ("azure-conv", 30.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Came:
    """What came of one run: share in time by tier, tokens a second, and requests that waited in the engine (p99; None
    where the engine itself decides)."""

    tiers: dict[str, float]
    in_time: float
    tokens_per_s: float
    waiting: float | None = None


class ByPriority(Fcfs):
    """vLLM's priority order: the smallest first, and of alike ones who came first."""

    def add_request(self, request: Request) -> None:
        at = len(self)
        while at and self[at - 1].priority > request.priority:
            at -= 1
        self.insert(at, request)


def fcfs(_: Clock) -> StandIn:
    return StandIn(budget=BUDGET, seats=SLOTS)


def priority(_: Clock) -> StandIn:
    engine = StandIn(budget=BUDGET, seats=SLOTS)
    engine.waiting = ByPriority()
    return engine


def plugin(clock: Clock) -> StandIn:
    return Plugged(Settings(), clock, budget=BUDGET, seats=SLOTS)


def stepped(make: Callable[[Clock], StandIn], asked: Sequence[Planned]) -> Came:
    """An engine that orders what it was sent by itself."""
    clock = Clock(0.0)
    engine, expected = make(clock), mean(one.output for one in asked)
    sent = 0
    seen: list[list[float]] = [[] for _ in asked]  # tokens, since the request was sent
    known: dict[str, Request] = {}
    tokens = 0
    while sent < len(asked) or engine.requests:
        while sent < len(asked) and asked[sent].at_s <= clock.at:
            one = asked[sent]
            request = known[str(sent)] = Request(
                str(sent), len(one.prompt), one.output, digest=digest_of(one, expected), priority=one.tier.rank,
                arrival=one.at_s,
            )  # fmt: skip
            engine.add_request(request)
            sent += 1
        if not engine.requests:
            clock.at = asked[sent].at_s
            continue
        before = {name: request.num_computed_tokens for name, request in engine.requests.items()}
        output = engine.schedule()
        prefill = decodes = context = 0
        pairs = 0.0
        for name, count in output.num_scheduled_tokens.items():
            done = before[name]
            if known[name].num_output_tokens:
                decodes, context = decodes + 1, context + done
            else:
                prefill, pairs = prefill + count, pairs + count * (done + count / 2)
        clock.at += STEP.step(prefill, decodes, context, pairs)
        tokens += prefill + decodes
        made = {name: known[name].num_output_tokens for name in output.num_scheduled_tokens}
        engine.update_from_output(output, None)
        for name, count in made.items():
            if known[name].num_output_tokens > count:
                seen[int(name)].append(clock.at - asked[int(name)].at_s)
    late = [_late(one, times) for one, times in zip(asked, seen, strict=True)]
    return _came(asked, late, tokens / clock.at)


def front(asked: Sequence[Planned], credit: int | None = None) -> Came:
    """Our gateway and leader before an engine that is told their order. ``credit`` None: found while it serves."""
    expected = mean(one.output for one in asked)
    requests = []
    for number, one in enumerate(asked):
        tier, slo, prompt = one.tier, one.tier.slo, len(one.prompt)
        queued = QueuedRequest(
            str(number), number, one.at_s, tier.name, tier.name, tier.name, tier.rank, tier.weight, tier.service_class,
            prompt, one.output, expected, prompt + one.output,
            ttft_deadline_s=None if slo.ttft_s is None else one.at_s + slo.ttft_s,
            ttlt_deadline_s=None if slo.ttlt_s is None else one.at_s + slo.ttlt_s,
        )  # fmt: skip
        requests.append(SimRequest(number, to_fs(one.at_s), prompt, one.output, slo, queued))
    replica = Replica(STEP, SLOTS, 10**7, BUDGET, credit, "priority")
    replay = Replay([replica], make_named("unified", {}), make_routing("least_work"), signal_s=SIGNAL_S)
    outcomes = replay.run(requests)
    end = max(one.arrival_s + one.ttlt_s for one in outcomes)
    tokens = sum(one.input_tokens + one.output_tokens for one in outcomes)
    return _came(asked, [one.late for one in outcomes], tokens / end, waiting(replay.stays, 1).p99)


def _late(one: Planned, times: Sequence[float]) -> bool:
    slo = one.tier.slo
    if slo.ttft_s is not None and slo.tbt_s is not None:
        return any(at > slo.ttft_s + n * slo.tbt_s for n, at in enumerate(times))
    return is_late(slo, times[0], times[-1], one.output)


def _came(asked: Sequence[Planned], late: Sequence[bool], tokens_per_s: float, waits: float | None = None) -> Came:
    by_tier: dict[str, list[bool]] = {}
    for one, is_so in zip(asked, late, strict=True):
        by_tier.setdefault(one.tier.name, []).append(not is_so)
    tiers = {name: mean(rows) for name, rows in sorted(by_tier.items())}
    return Came(tiers, 1.0 - mean(late), tokens_per_s, waits)


MODES: dict[str, Callable[[Sequence[Planned]], Came]] = {
    "fcfs": lambda asked: stepped(fcfs, asked),
    "priority": lambda asked: stepped(priority, asked),
    "plugin": lambda asked: stepped(plugin, asked),
    "front": front,
    "front, 8,192 tokens": lambda asked: front(asked, 8192),
}


def row(workload: str, rate: float, name: str, came: Sequence[Came]) -> str:
    tiers = ", ".join(f"{100 * mean(one.tiers[tier] for one in came):.0f}" for tier in came[0].tiers)
    all_ = [100 * one.in_time for one in came]
    waits = [one.waiting for one in came if one.waiting is not None]
    return (
        f"| {workload} {rate:g}/s | {name} | {mean(all_):.1f} ({tiers}) | {min(all_):.1f} to {max(all_):.1f} | "
        f"{mean(one.tokens_per_s for one in came):,.0f} | {f'{max(waits):.0f}' if waits else ''} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    print("| load | mode | in time % (q1, q2, q3) | its draws | tokens/s | waiting, p99 |\n|---|---|---|---|---|---|")
    for workload, rate in LOADS:
        draws = [plan(workload, rate, SECONDS, PROMISES, LONGEST, seed) for seed in seeds]
        for name, run in MODES.items():
            print(row(workload, rate, name, [run(asked) for asked in draws]), flush=True)


if __name__ == "__main__":
    main()
