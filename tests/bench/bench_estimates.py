"""What a prediction adds to a request on the data plane, at a full window: its own time, and what it teaches.

    python -m tests.bench.bench_estimates [--json FILE]

CPU time of one thread, in a process set up like the web process: one BLAS thread, few looks for cycles.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from controlplane.garbage_collection import look_rarely
from scheduling.core.estimate.features import features
from scheduling.core.estimate.regression import IN_VAIN
from scheduling.core.types import PredictorMode
from scheduling.estimation.embedding import Embedder, pack
from scheduling.estimation.regression import RidgeRegression
from scheduling.gateway.estimate.forecasts import PoolForecasts
from scheduling.state.history import Observation
from tests.support.preparing import prepare
from tests.unit.gateway.test_gateway_prepare import POOL

WORDS = (
    "write explain list translate summarise describe compare improve code function report table letter poem history "
    "river engine harbour budget market python query server student doctor garden music theory light water energy "
    "customer product email meeting project plan question answer simple short detailed formal three five ten"
).split()
ASKED = 2_000


class Silent:
    """A stream that nobody reads."""

    async def append(self, observations: list[Observation]) -> None:
        return None


def prompts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for number in range(count):
        yield " ".join([*rng.choices(WORDS, k=rng.randrange(8, 120)), f"case{number}"])


def answer(text: str, rng: random.Random) -> int:
    """Tokens of the answer to a prompt: the longer it is the more, so that a regression knows better than the rest."""
    return max(5, round(6 * text.count(" ") * rng.lognormvariate(0.0, 0.3)))


def full(seed: int = 1, count: int = 10_000) -> PoolForecasts:
    pool = PoolForecasts(PredictorMode.SIMILAR, Silent(), Embedder())  # type: ignore[arg-type]
    embedder = Embedder()
    rng = random.Random(seed)
    for text in prompts(count, seed):
        vector = embedder.embed(text)
        assert vector is not None
        pool._learn(
            Observation(
                f"key{rng.randrange(50)}", "acme", "m", "report", 50, answer(text, rng), False, "similar", 400.0,
                pack(vector), features(text, "report"),
            )
        )  # fmt: skip
        pool.chain.fit()
    return pool


def unlike(count: int, seed: int) -> Iterator[str]:
    """Prompts of the same size whose words are all different, but for those that tell what is asked for."""
    rng = random.Random(seed)
    made = ["".join(rng.choices("abcdefghiklmnoprstuvw", k=rng.randrange(3, 9))) for _ in range(12_000)]
    for _ in range(count):
        yield " ".join([rng.choice(WORDS), *rng.choices(made, k=rng.randrange(8, 120))])


def regression_of(pool: PoolForecasts) -> Any:
    """What the pool knows of the application that asks here."""
    tenant = pool.chain.of("acme")
    assert tenant is not None
    assert tenant.regression is not None
    return tenant.regression._applications["key7"]


def call_of(text: str) -> Any:
    body = b'{"model":"%s","messages":[{"role":"user","content":"%s"}]}' % (POOL.model.encode(), text.encode())
    return SimpleNamespace(
        access=SimpleNamespace(
            key=SimpleNamespace(id="key7"), entitlement=SimpleNamespace(tenant="acme"), pool=SimpleNamespace(model="m")
        ),
        prepared=prepare(body, True, POOL),
        outlook=None,
    )


def look(pool: PoolForecasts, call: Any) -> None:
    call.outlook = pool.look(call.access, call.prepared, 50, 512)


def timed(calls: list[Any], work: Callable[[Any], object]) -> tuple[float, float]:
    """Median and 99th percentile [us] of this thread's own CPU time."""
    spent = []
    for call in calls:
        began = time.thread_time_ns()
        work(call)
        spent.append((time.thread_time_ns() - began) / 1000)
    spent.sort()
    return spent[len(spent) // 2], spent[int(len(spent) * 0.99)]


def measure() -> dict[str, tuple[float, float]]:
    """Per step, median and 99th percentile [us]."""
    pool = full()
    new = [call_of(text) for text in prompts(ASKED, 99)]
    again = [call_of(next(prompts(1, 7))) for _ in range(ASKED)]
    look_rarely()
    for text in prompts(100, 55):
        look(pool, call_of(text))
    steps = {
        "predict a new prompt": timed(new, lambda call: look(pool, call)),
        "tell": timed(new, lambda call: pool.ended(call.outlook, 120)),
    }
    look(pool, again[0])
    known = again[0].outlook.facts
    for _ in range(20):
        pool._learn(
            Observation(
                "key7", "acme", "m", known.category, 50, 100, False, "similar", 99.0, pack(known.embedding),
                known.features,
            )
        )  # fmt: skip
    steps["predict a prompt known by heart"] = timed(again, lambda call: look(pool, call))
    strange = [call_of(text) for text in unlike(ASKED, 5)]
    for call in strange[:100]:
        look(pool, call)
    steps["predict one that resembles none, similar ones looked for"] = timed(
        strange[100 : ASKED // 2], lambda call: look(pool, call)
    )
    application = regression_of(pool)
    while application.looks:  # as answers would teach it
        application.in_vain = IN_VAIN
        application.answers += 1
    steps["the same where none are ever found"] = timed(strange[ASKED // 2 :], lambda call: look(pool, call))
    application.in_vain = 0
    seen = [
        Observation(
            "key7", "acme", "m", f.category, 50, 120, False, "similar", 99.0, pack(f.embedding), f.features, others
        )
        for f, others in ((call.outlook.facts, call.outlook.forecast.heard.scored_by()) for call in new)
    ]
    steps["learn"] = timed(seen, pool._learn)
    regression = RidgeRegression()
    for call in new:
        regression.add(call.outlook.facts.embedding, call.outlook.facts.features, 120.0)
    steps["fit a regression, in a thread"] = timed(new, lambda _: regression.fit())
    return steps


def table(steps: dict[str, tuple[float, float]]) -> str:
    rows = [f"| {name} | {p50:.0f} | {p99:.0f} |" for name, (p50, p99) in steps.items()]
    return "\n".join(["| step | p50 CPU us | p99 CPU us |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    steps = measure()
    print(table(steps))
    if args.json is not None:
        args.json.write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
