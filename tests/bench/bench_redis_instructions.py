"""How many instructions Redis needs for a request, counted by callgrind: whoever compares two trees runs it in both.

    python -m tests.bench.bench_redis_instructions [--pairs 320] [--only WORDS] [--functions 40]

It needs valgrind (``apt install valgrind``). What else the machine does changes little: two runs of one tree differ by
1 or 2 %. The calls are those of a gateway (:mod:`tests.support.redis_cost`), to the bundled server, with an append-only
file as instances have it. ``--functions``: the functions of the server that take most.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys

from tests.support.redis_cost import SITUATIONS, instructions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=320, help="requests that are counted of each situation")
    parser.add_argument("--only", default="", help="situations whose name contains these words")
    parser.add_argument("--functions", type=int, default=0, help="so many functions of the server, by instructions")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed")
    for situation in SITUATIONS:
        if args.only not in situation.name:
            continue
        counted, functions = asyncio.run(instructions(situation, args.pairs))
        print(f"{situation.name:<42} {counted:>12,.0f}", flush=True)
        for name, own in functions.most_common(args.functions):
            print(f"    {own:>12,.0f}  {name}")


if __name__ == "__main__":
    main()
