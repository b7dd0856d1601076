"""Which engines an instance uses: simulated ones, vLLM servers that already run, or a real one on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable

from controlplane.embedded.home import CannotStart, Home
from controlplane.embedded.plan import Engine, Plan
from controlplane.env import Env
from scheduling.core.capacity.engine_limits import STEP_QUANTUM
from scheduling.core.engine.step_time import EnginePreset, load_preset
from scheduling.engines.kinds import kind_of

# vLLM's own --max-num-batched-tokens for serving where it is not told: by the GPU, 2,048 for all others
SERVING_STEP_TOKENS = (("H100", 8192), ("H200", 8192), ("H800", 8192), ("MI300", 8192), ("B200", 8192))
PROMISED_TBT_S = 0.1  # the strictest time between tokens of the tiers that come with the product
# what a full step under load has beside its part of a prompt, whose middle it computes
DECODES, CONTEXT_TOKENS, PROMPT_TOKENS = 16, 2048, 8192
SUMMARIES = "summaries-0"  # the engine of the demo's second pool
GIVEN_PATIENCE_S = 15.0  # a server named in ENGINE should be there


def plan(env: Env, home: Home, say: Callable[[str], None]) -> Plan:
    """Raises:
    CannotStart: a preset or a kind that does not exist, or a real vLLM that cannot be installed here.
    """
    if env.engine == "vllm":
        from controlplane.embedded import vllm_cpu

        return vllm_cpu.plan(env, home, say)
    if env.engines:
        say(f"using {len(env.engines)} engine(s) that already run")
        # people copy an address from where their clients have it
        urls = [url.rstrip("/").removesuffix("/v1") for url in env.engines]
        there = [Engine(f"engine-{i}", url, env.engine_slots) for i, url in enumerate(urls)]
        return Plan(there, kind=_kind(env), patience_s=GIVEN_PATIENCE_S)
    return simulated(env, home)


def _kind(env: Env) -> str:
    try:
        return kind_of(env.engine_kind).name if env.engine_kind else ""
    except LookupError as error:
        raise CannotStart(f"QUARTERMASTER_ENGINE_KIND: {error}") from None


def step_tokens(preset: EnginePreset) -> int:
    """The step budget of a simulated engine: vLLM's own on this hardware, lowered until a full step under load takes no
    longer than the tiers promise between two tokens, to the least that *Backends* advises
    (``docs/reference/prefill-credit.md``)."""
    tokens = next((tokens for gpu, tokens in SERVING_STEP_TOKENS if preset.gpu.startswith(gpu)), 2048)
    while tokens > STEP_QUANTUM and full_step_s(preset, tokens) > PROMISED_TBT_S:
        tokens -= STEP_QUANTUM
    return tokens


def full_step_s(preset: EnginePreset, tokens: int) -> float:
    """How long a full step of so many tokens takes under load [s]."""
    prompt = tokens - DECODES
    return preset.step_time.step(prompt, DECODES, DECODES * CONTEXT_TOKENS, prompt * PROMPT_TOKENS / 2)


def simulated(env: Env, home: Home) -> Plan:
    try:
        preset = load_preset(env.sim_preset)
    except ValueError as error:
        raise CannotStart(f"QUARTERMASTER_SIM_PRESET: {error}") from None
    model = env.sim_preset.split("-" + preset.gpu.split("-")[0].lower())[0]
    slots = env.sim_slots or preset.slots
    names = [f"engine-{i}" for i in range(env.sim_replicas)]
    # Where an earlier start made the second pool, it keeps its engine without the demo load too.
    summaries = [SUMMARIES] if env.demo_load or home.has_port(SUMMARIES) else []
    ports = home.ports([*names, *summaries])
    command = [
        *(sys.executable, "-m", "scheduling.engines.simulated"),
        *("--host", "127.0.0.1", "--model", model, "--preset", preset.name, "--slots", str(slots)),
        *("--scheduling-policy", "priority", "--max-num-batched-tokens", str(step_tokens(preset))),
        *(["--enable-prefix-caching"] if env.sim_prefix_caching else []),
    ]
    engines = {name: Engine(name, f"http://127.0.0.1:{port}", slots, preset.kv_tokens) for name, port in ports.items()}
    return Plan(
        [engines[name] for name in names],
        summaries=[engines[name] for name in summaries],
        model=model,
        max_model_len=preset.max_model_len,
        commands={name: [*command, "--port", str(port)] for name, port in ports.items()},
        environ={"VLLM_SERVER_DEV_MODE": "1"},  # so that they say their limits
        caches=env.sim_prefix_caching,
    )
