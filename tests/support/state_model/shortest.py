"""The shortest walks known to meet what the random ones seldom do, and how they are found.

``starts.json`` has the moves of a walk for each broken variant that random walks meet late: found by such a walk, then
cut down to the moves that matter. They are played on the real scripts like those of any walk. When one does not meet
its variant any more (the model's members changed), random walks do it, slowly, until

    python -m tests.support.state_model.shortest NAME...

was run: it looks again (without names: for all variants that are met neither by their moves nor early).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scheduling.state.script import Script
from tests.support.redis_server import RedisServer
from tests.support.state_model.broken import BROKEN
from tests.support.state_model.listeners import model_connection
from tests.support.state_model.scripts import timed_scripts, variant
from tests.support.state_model.walk import World, begin, step

Move = tuple[str, Sequence[Any]]
Make = Callable[[dict[str, Script]], AbstractContextManager[World]]

STARTS = Path(__file__).with_name("starts.json")
MOVES = frozenset(
    "admit finish requeue renew announce record elect resign set_ready set_adapters grant evict set_standing set_stuck "
    "set_cached look sweep suspect pause report pass_time corrupt flush first_tokens prefilled listen".split()
)
WALKS, STEPS = 120, 400
ALWAYS = ("elect", "set_ready", "set_stuck", "admit", "pass_time")  # in every narrow walk
EARLY = 2  # what so many walks meet needs no moves of its own


class Recorder:
    """A world whose moves are written down. It makes those of ``kinds`` only."""

    def __init__(self, world: World, kinds: Collection[str] = MOVES) -> None:
        self._world = world
        self._kinds = kinds
        self.moves: list[Move] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._world, name)
        if name not in MOVES:
            return found

        def move(*args: Any) -> None:
            if name not in self._kinds:
                return
            self.moves.append((name, [_plain(a) for a in args]))
            found(*args)

        return move


def _plain(value: Any) -> Any:
    if isinstance(value, random.Random):
        return 1  # a seed: what it draws is not what was drawn
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, set):
        return sorted(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def play(world: World, moves: Iterable[Move]) -> None:
    for name, args in moves:
        assert name in MOVES, f"{name} is no move"
        getattr(world, name)(*args)


def broken_scripts(name: str) -> dict[str, Script]:
    """The real scripts, one of them with a protection taken out."""
    script, old, new = BROKEN[name]
    scripts = timed_scripts()
    scripts[script] = variant(scripts[script], old, new)
    return scripts


def read_starts() -> dict[str, list[Move]]:
    return {name: [(move, args) for move, *args in moves] for name, moves in json.loads(STARTS.read_text()).items()}


def meets(world: World, moves: Sequence[Move]) -> int:
    """How many of the moves it takes to see that the world's scripts are broken; 0: they do not show it."""
    for i, move in enumerate(moves):
        try:
            play(world, [move])
        except AssertionError:
            return i + 1
    return 0


def _walk_that_meets(make: Make, scripts: dict[str, Script], walks: int, narrow: bool = False) -> list[Move]:
    """The moves of the first of so many random walks that shows it; none where none does. A narrow one makes some kinds
    of moves only: it is short, and comes further with those."""
    for seed in range(walks):
        rng = random.Random(seed)
        kinds = {*rng.sample(sorted(MOVES), 8), *ALWAYS} if narrow else MOVES
        with make(scripts) as world:
            recorder = Recorder(world, kinds)
            try:
                begin(recorder, rng)  # type: ignore[arg-type]
                for _ in range(STEPS // 4 if narrow else STEPS):
                    step(recorder, rng)  # type: ignore[arg-type]
            except AssertionError:
                return recorder.moves
    return []


def _count(make: Make, broken: dict[str, Script], real: dict[str, Script], moves: Sequence[Move]) -> int:
    """As ``meets``; 0 also if the real scripts fail, because nobody makes such moves."""
    with make(broken) as world:
        count = meets(world, moves)
    if not count:
        return 0
    with make(real) as world:
        return 0 if meets(world, moves[:count]) else count


def shortened(moves: list[Move], fails: Callable[[Sequence[Move]], int]) -> list[Move]:
    """As few of the moves as still fail, by leaving out ever smaller pieces."""
    size = len(moves) // 2
    while size:
        at = 0
        while at < len(moves):
            rest = moves[:at] + moves[at + size :]
            if count := fails(rest):
                moves = rest[:count]
            else:
                at += size
        size //= 2
    return moves


def _write(starts: dict[str, list[Move]]) -> None:
    """A line a move, in the order of the variants."""
    texts = []
    for name in (name for name in BROKEN if name in starts):
        lines = ",\n".join(f"    {json.dumps([move, *args])}" for move, args in starts[name])
        texts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    STARTS.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def main(names: Collection[str]) -> None:
    server = RedisServer()
    server.start()

    @contextmanager
    def make(scripts: dict[str, Script]) -> Iterator[World]:
        server.flush()
        with model_connection(server.url) as (run, resp, ears):  # its own: a broken script may tell somebody too much
            yield World(run, resp, scripts, ears)

    starts = read_starts() if STARTS.exists() else {}
    real = timed_scripts()
    try:
        for name in names or BROKEN:
            scripts = broken_scripts(name)
            if not names and (
                _count(make, scripts, real, starts.get(name, ())) or _walk_that_meets(make, scripts, EARLY)
            ):
                continue
            walked = _walk_that_meets(make, scripts, 2 * WALKS, narrow=True) or _walk_that_meets(make, scripts, WALKS)
            if not _count(make, scripts, real, walked):
                raise SystemExit(f"{name}: random walks do not meet it, or not again when their moves are made alone")
            moves = shortened(walked, partial(_count, make, scripts, real))
            starts[name] = moves
            _write(starts)
            print(f"{name}: {len(walked)} -> {len(moves)} moves", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a broken variant; none: those not met by their moves")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - BROKEN.keys():
        sys.exit(f"no such variant: {', '.join(sorted(unknown))}")
    main(chosen)
