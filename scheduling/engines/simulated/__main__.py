"""``python -m scheduling.engines.simulated``: one simulated replica in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from scheduling.core.engine.step_time import preset_names
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer


def parse_options(argv: Sequence[str] | None = None) -> EngineOptions:
    """Options from the command line, with vLLM's names where vLLM has one."""
    parser = argparse.ArgumentParser(prog="python -m scheduling.engines.simulated", description=__doc__)
    parser.add_argument("--model", required=True, help="the name it is served under")
    parser.add_argument("--preset", default="llama-3-8b-a100", choices=preset_names(), help="hardware and model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one and prints it")
    parser.add_argument("--slots", "--max-num-seqs", type=_positive, help="sequences at once")
    parser.add_argument("--kv-tokens", type=_positive, help="KV cache [tokens]")
    parser.add_argument("--token-budget", "--max-num-batched-tokens", type=_positive, help="tokens per step")
    parser.add_argument("--max-model-len", type=_positive, help="prompt and output of one request [tokens]")
    parser.add_argument("--speed", type=float, default=1.0, help="2: twice as fast as the modelled hardware")
    parser.add_argument("--seed", type=int, default=0, help="of output lengths and faults")
    parser.add_argument(
        "--scheduling-policy", default="fcfs", choices=("fcfs", "priority"), help="priority: heed it, lower is sooner"
    )
    parser.add_argument("--priority-scheduling", action="store_true", help="the same as --scheduling-policy priority")
    parser.add_argument("--max-num-queued-reqs", type=_positive, help="answer 503 when so many wait")
    parser.add_argument(
        "--enable-prefix-caching", action="store_true", help="prompts that begin alike (and have the same cache_salt)"
    )
    parser.add_argument("--enable-lora", action="store_true", help="serve LoRA adapters")
    parser.add_argument(
        "--lora-modules", nargs="+", default=[], type=_module, metavar="NAME=PATH", help="from the start"
    )
    parser.add_argument("--max-cpu-loras", type=_positive, help="adapters that it keeps")
    args = parser.parse_args(argv)
    if args.lora_modules and not args.enable_lora:
        parser.error("--lora-modules needs --enable-lora")
    return EngineOptions(
        model=args.model,
        preset=args.preset,
        host=args.host,
        port=args.port,
        slots=args.slots,
        kv_tokens=args.kv_tokens,
        token_budget=args.token_budget,
        max_model_len=args.max_model_len,
        speed=args.speed,
        seed=args.seed,
        priority_scheduling=args.priority_scheduling or args.scheduling_policy == "priority",
        max_queued=args.max_num_queued_reqs,
        prefix_cache=args.enable_prefix_caching,
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE", "") == "1",
        adapters=tuple(args.lora_modules),
        max_adapters=args.max_cpu_loras,
        runtime_lora=args.enable_lora
        and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in ("1", "true"),
        api_key=os.environ.get("VLLM_API_KEY", ""),  # as vLLM reads it: a command line is visible to everyone
    )


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true")


def _module(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not name or not equals or not path:
        raise argparse.ArgumentTypeError("must be NAME=PATH")
    return name, path


def _positive(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


async def _serve(server: SimulatedServer) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await server.start()
    limits, preset = server.limits, server.preset
    print(
        f"simulated {server.options.model} on {server.url}: {preset.name} ({preset.label}), {limits.slots} slots, "
        f"{limits.kv_tokens} KV tokens, {limits.token_budget} tokens a step, speed {server.options.speed:g}",
        flush=True,
    )
    await ended.wait()
    await server.close()


def main() -> int:
    try:
        server = SimulatedServer(parse_options())
        try:
            import uvloop
        except ImportError:  # not on Windows
            asyncio.run(_serve(server))
        else:
            uvloop.run(_serve(server))
    except (ValueError, OSError) as error:
        print(f"cannot start the simulated engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
