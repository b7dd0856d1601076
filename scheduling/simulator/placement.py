"""Routing policies beside each other on a trace whose prompts share beginnings (``docs/results/placement.md``).

    python -m scheduling.simulator.placement TRACE.jsonl.gz [--replicas 8] [--cache TOKENS] [--rate 1.0]

Reads Mooncake's format, of which the simulator's other parts use the lengths only: ``hash_ids`` name the prompt's
blocks of 512 tokens. Every replica is an engine of the preset with a prefix cache of its own, of which the least
recently used block leaves first; what it finds there it does not compute. KV cache is not limited otherwise: prompts of
this trace are longer than the model of the preset takes. Beside them one cache with the room of all, in order of
arrival: what placement can reach. And the rule of ``prefix_affinity`` where the caches themselves are asked at every
choice, instead of an index of where prompts ran: what engines could at best add by telling what they hold and evict.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scheduling.core.engine.step_time import load_preset
from scheduling.core.placement.rule import Warmth, place, read_points, worth
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing, routings
from scheduling.core.types import BackendView, QueuedRequest
from scheduling.simulator.cluster import Cluster
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import to_s
from scheduling.simulator.prefix_cache import BlockCache, Turns
from scheduling.simulator.trace import TraceRequest, spread
from scheduling.simulator.workload import BLOCK_TOKENS, Belief, SimRequest, Tier, make_request

STAMPS_S = 3.0
EXPECTED_OUTPUT = 350.0  # tokens, of every answer: nothing is known of its length when it is placed

CACHE_ORACLE = "prefix_affinity, told what caches hold"


@dataclass(frozen=True, slots=True)
class Row:
    """What one routing policy made of a trace."""

    routing: str
    hit_rate: float  # of prompt tokens
    of_ideal: float  # hit rate as a share of that of one cache with the room of all
    busiest_assigned: float  # tokens that the busiest replica was sent (input and output), as a share of the mean
    busiest_computed: float  # and of those it computed
    ttft_p50_s: float
    ttft_p99_s: float


def read(path: Path, limit: int | None = None) -> list[tuple[TraceRequest, tuple[int, ...]]]:
    """Requests in order of arrival with the ids of their blocks. Raises OSError, ValueError or KeyError."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as stream:
        rows = [json.loads(line) for _, line in zip(range(limit or sys.maxsize), stream, strict=False)]
    rows.sort(key=lambda row: row["timestamp"])
    start = rows[0]["timestamp"]
    requests = spread(
        [TraceRequest((r["timestamp"] - start) / 1000, r["input_length"], r["output_length"]) for r in rows], STAMPS_S
    )
    return [(request, tuple(row["hash_ids"])) for request, row in zip(requests, rows, strict=True)]


def evaluate(
    trace: Sequence[tuple[TraceRequest, tuple[int, ...]]],
    *,
    replicas: int = 8,
    cache_tokens: int = 0,
    rate: float = 1.0,
    preset: str = "llama-3-8b-a100",
    names: Sequence[str] = (),
) -> tuple[float, list[Row]]:
    """The hit rate of one cache with the room of all, and each routing policy's row. ``cache_tokens``: of each replica;
    0: the preset's KV cache. ``rate``: arrivals so many times as fast as recorded."""
    engine = load_preset(preset)
    blocks = (cache_tokens or engine.kv_tokens) // BLOCK_TOKENS
    whole = BlockCache(blocks * replicas)
    total = sum(request.input_tokens for request, _ in trace)
    ideal = sum(min(whole.take(ids) * BLOCK_TOKENS, r.input_tokens - 1) for r, ids in trace) / total
    tier = Tier("all")
    work, turns = [], Turns()
    for index, (request, ids) in enumerate(trace):
        sim = make_request(
            index, request.arrival_s / rate, request.input_tokens, max(1, request.output_tokens), tier,
            Belief(EXPECTED_OUTPUT),
        )  # fmt: skip
        work.append(replace(sim, queued=replace(sim.queued, prefixes=turns.prefixes_of(ids, request.input_tokens))))
    config = EngineConfig(engine.step_time, token_budget=engine.token_budget, max_seqs=engine.slots)
    return ideal, [
        _run(name, work, [ids for _, ids in trace], config, replicas, blocks, ideal) for name in names or routings()
    ]


def _run(
    name: str, work: Sequence[SimRequest], ids: Sequence[Sequence[int]], config: EngineConfig, replicas: int,
    blocks: int, ideal: float,
) -> Row:  # fmt: skip
    caches = [BlockCache(blocks) for _ in range(replicas)]
    hits = [0] * replicas
    ids_of = {request.queued.id: ids[request.index] for request in work}
    routing = _CacheOracle(caches, ids_of) if name == CACHE_ORACLE else None

    def cached(number: int, request: SimRequest) -> int:
        tokens = min(caches[number].take(ids[request.index]) * BLOCK_TOKENS, request.input_tokens - 1)
        hits[number] += tokens
        return tokens

    engines = [ContinuousEngine(config, make_policy("fifo")) for _ in range(replicas)]
    lives = Cluster(engines, routing or make_routing(name), cached=cached).run(work)
    assigned = [0] * replicas
    for life in lives:
        assigned[life.replica] += life.sim.input_tokens + life.sim.output_tokens
    computed = [a - f for a, f in zip(assigned, hits, strict=True)]
    ttft = sorted(to_s(life.first_fs - life.sim.arrival_fs) for life in lives)
    hit_rate = sum(hits) / sum(request.input_tokens for request in work)
    return Row(
        name, hit_rate, hit_rate / ideal if ideal else 1.0, max(assigned) * replicas / sum(assigned),
        max(computed) * replicas / sum(computed), ttft[len(ttft) // 2], ttft[len(ttft) * 99 // 100],
    )  # fmt: skip


class _CacheOracle:
    """The rule of ``prefix_affinity`` over what the caches hold at that moment."""

    name = CACHE_ORACLE

    def __init__(self, caches: Sequence[BlockCache], ids: Mapping[str, Sequence[int]]) -> None:
        self._caches = caches
        self._ids = ids

    def router(self) -> _CacheOracle:
        return self

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        fit = list(backends)
        if not request.prefixes:
            return place(fit)
        skew, points = read_points(request.prefixes)
        cached = (cache.cached(self._ids[request.id]) * BLOCK_TOKENS for cache in self._caches)
        return place(fit, Warmth(skew, points[0][0], {
            view.id: worth(tokens, goes_on=True) for view, tokens in zip(fit, cached, strict=True)
        }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trace", type=Path, help="Mooncake JSONL, .gz as it is")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--cache", type=int, default=0, help="of a replica [tokens] (default: the preset's KV cache)")
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals so many times as fast as recorded")
    parser.add_argument("--preset", default="llama-3-8b-a100")
    parser.add_argument("--limit", type=int, help="only so many requests")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ideal, rows = evaluate(
        read(args.trace, args.limit),
        replicas=args.replicas,
        cache_tokens=args.cache,
        rate=args.rate,
        preset=args.preset,
        names=(*routings(), CACHE_ORACLE),
    )
    if args.json:
        print(json.dumps({"ideal_hit_rate": ideal, "rows": [asdict(row) for row in rows]}, indent=2))
        return
    print(f"one cache with the room of all: {ideal:.3f} of the prompt tokens are found\n")
    print("| routing | hit rate | of one cache | busiest, sent | busiest, computed | TTFT p50 [s] | p99 [s] |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| `{r.routing}` | {r.hit_rate:.3f} | {r.of_ideal:.3f} | {r.busiest_assigned:.3f} | "
            f"{r.busiest_computed:.3f} | {r.ttft_p50_s:.2f} | {r.ttft_p99_s:.2f} |"
        )


if __name__ == "__main__":
    main()
