"""What clients are told and what is served at 1 to 10 times the load, in simulated time: ``python -m
tests.bench.bench_overload [--seeds 20]``.

The Python model of shared state and clients with the OpenAI SDK's two retries; those that "storm" come back after
50 ms, whatever they are told. Nothing here depends on the machine.
"""

from __future__ import annotations

import argparse
from statistics import median

from tests.support.overload_world import Overload, team

SECONDS = 20.0


LOADS = (1, 1.5, 2, 2.5, 3, 4, 5, 7, 10)


def one(seed: int, load: float, obeys: bool) -> tuple[float, float, float, float, float]:
    """Retry-After's p50 [s], attempts for each request, requests served per second, their share in the end, and the
    attempts that any rule needs where all are asked to come back."""
    world = Overload(seed=seed)
    world.arrivals(team(), load * world.capacity, 0, SECONDS, obeys=obeys)
    world.run(1000)
    least = 1 + world.refused_at_least(SECONDS)
    return world.told_p50(), world.attempts_each(), world.goodput(4, SECONDS), world.served_share(), least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    chosen = parser.parse_args()
    for obeys in (True, False):
        at_1x: list[tuple[float, float, float, float, float]] = []
        for load in LOADS:
            found = [one(seed, load, obeys) for seed in range(1, chosen.seeds + 1)]
            at_1x = at_1x or found
            told, attempts, _, served, least = (sorted(column) for column in zip(*found, strict=True))
            times = sorted(now[0] / then[0] for now, then in zip(found, at_1x, strict=True))
            kept = sorted(now[2] / then[2] for now, then in zip(found, at_1x, strict=True))
            clients = "as told" if obeys else "storming"
            print(
                f"{clients}, {load:3g}x, seeds 1 to {chosen.seeds}: told {median(told):.1f} s "
                f"({told[0]:.1f}-{told[-1]:.1f}), {median(times):.1f} times 1x (least {times[0]:.1f}); attempts "
                f"{median(attempts):.2f} (most {attempts[-1]:.2f}; at least {median(least):.2f} were all asked to come "
                f"back); goodput {median(kept) * 100:.0f} % of 1x (least {kept[0] * 100:.0f}); served in the end "
                f"{median(served) * 100:.0f} % (least {served[0] * 100:.0f})"
            )


if __name__ == "__main__":
    main()
