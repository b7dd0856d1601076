"""Options of actions that run policies on traces, and the cases that they make."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from scheduling.core.engine.step_time import preset_names
from scheduling.core.policies.registry import make_ordering
from scheduling.simulator.compare import GRANT_DELAY_S, PLACES, Case, parse_shares
from scheduling.simulator.contracts import KEYS, ContractError, parse_contract


def add_case(parser: ArgumentParser) -> None:
    ours = Case("", "")
    shares = ",".join(f"{name}={100 * share:g}" for name, share in ours.shares)
    kinds = (
        "a recording (`lab record`), Azure 2023/2024 CSV, Mooncake JSONL, ServeGen's rates (with --lengths); "
        ".gz as it is; may be repeated"
    )
    parser.add_argument("--trace", action="append", required=True, metavar="FILE", help=kinds)
    parser.add_argument("--lengths", default="", metavar="FILE", help="ServeGen's length distributions")
    parser.add_argument("--replicas", type=int, default=ours.replicas, help=f"engines (default {ours.replicas})")
    parser.add_argument("--preset", default=ours.preset, help=f"the engine model (default {ours.preset})")
    parser.add_argument("--slots", type=int, default=0, help="sequences an engine runs at once (default: preset's)")
    parser.add_argument(
        "--from-minute", type=float, default=ours.from_minute, help="start at this minute of the recording"
    )
    parser.add_argument(
        "--minutes", type=float, default=ours.minutes, help="minutes of the recording (default %(default)g)"
    )
    load = f"mean arrivals as a share of what the replicas can serve (default {ours.load:g})"
    parser.add_argument("--load", type=float, default=ours.load, help=load)
    parser.add_argument("--as-recorded", action="store_true", help="keep the recorded rate instead of --load")
    budget = "tokens that an engine computes in a step (default: the preset's)"
    parser.add_argument("--token-budget", type=int, default=0, metavar="N", help=budget)
    parser.add_argument("--tiers", default=shares, help=f"shares of requests (default {shares})")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a chart")


def add_where(parser: ArgumentParser) -> None:
    ours = Case("", "")
    where = (
        "the policy decides: in front of all engines, as this product does, or inside each, as the papers have it "
        "(default %(default)s)"
    )
    parser.add_argument("--where", choices=PLACES, default=ours.where, help=where)
    credit = (
        "in front: prefill credit of a replica [prompt tokens], 1 is one prompt at a time, 0 is no bound (default: "
        "found while it serves, as live)"
    )
    parser.add_argument("--credit", dest="prefill_tokens", type=int, metavar="N", help=credit)
    delay = f"in front: delay from an engine's token to the grant that follows (default {1e3 * GRANT_DELAY_S:g})"
    parser.add_argument("--signal-ms", type=float, metavar="MS", help=delay)
    order = (
        "in front: how engines take what they were granted: fifo as vLLM's fcfs, or priority, told the policy's "
        "order (default %(default)s)"
    )
    parser.add_argument("--engine-order", default=ours.engine_order, metavar="POLICY", help=order)
    limits = (
        "in front: requests pass the product's admission; each tenant's concurrency is its share of the slots, and "
        "the shipped tiers' queue limits and longest waits apply (default: everybody is let in)"
    )
    parser.add_argument("--limits", action="store_true", help=limits)
    contract = (
        f"a shipped tier with another promise or other limits, such as premium:ttlt=300,over=wait; keys: "
        f"{', '.join(KEYS)} [s, requests]; latencies that are not named are not promised then; may be repeated"
    )
    parser.add_argument("--contract", action="append", default=[], metavar="TIER:KEY=VALUE,...", help=contract)
    equal = "with --limits: tenants of a tier have the same concurrency, whatever each asks for"
    parser.add_argument("--equal-limits", action="store_true", help=equal)


def cases_of(options: dict[str, Any], policies: Sequence[tuple[str, Any, bool]]) -> list[Case]:
    if options["preset"] not in preset_names():
        raise CommandError(f"--preset: unknown {options['preset']!r}; there are: {', '.join(preset_names())}")
    if options.get("equal_limits") and not options["limits"]:
        raise CommandError("--equal-limits: give --limits too")
    if options["token_budget"] < 0:
        raise CommandError("--token-budget must be at least 1, or 0 for the preset's")
    try:
        contracts = tuple(parse_contract(text) for text in options.get("contract", ()))
    except ContractError as error:
        raise CommandError(f"--contract: {error}") from error
    if options["seeds"] < 1:
        raise CommandError("--seeds must be at least 1")
    names = [Path(trace).name.split(".")[0] for trace in options["trace"]]
    if len(set(names)) < len(names):
        raise CommandError("--trace: two files have the same name, their rows could not be told apart")
    engines = ("replicas", "preset", "slots", "token_budget")
    options_kept = ("lengths", *engines, "from_minute", "minutes", "load", "as_recorded")
    where = ("where", "prefill_tokens", "signal_ms", "engine_order", "limits", "equal_limits")
    same = {name: options[name] for name in (*options_kept, *where) if name in options}
    make_ordering(same.get("engine_order", "fifo"))
    shares = parse_shares(options["tiers"])
    return [
        Case(trace, policy, params, shares=shares, seed=seed, clairvoyant=clairvoyant, contracts=contracts, **same)
        for trace in options["trace"]
        for policy, params, clairvoyant in policies
        for seed in range(1, options["seeds"] + 1)
    ]


def chart_of(options: dict[str, Any]) -> Path | None:
    plot: Path | None = options["plot"]
    if plot is not None and not plot.resolve().parent.is_dir():
        raise CommandError(f"--plot: there is no folder {plot.resolve().parent}")
    return plot
