"""How long one iteration of a continuously batching engine takes.

    t = t0 + a*P + b*D + c*kv_dec + e*pp + a2*max(0, P + D - knee)

P prefill tokens and D decoding sequences in the step, ``kv_dec`` the sum of the decoding sequences' contexts [tokens],
``pp = sum of P_i * (ctx_i + P_i/2)`` over the prompt chunks (``ctx_i``: tokens of that prompt already in the cache).
Linear in all but the knee, where matrix multiplications turn from memory-bound to compute-bound. The shape fits the
linear model of QoServe's artifact and Vidur's tables to a few percent.

A scheduler's belief (planner) and an engine's behaviour (truth) are separate objects of the same class.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

MAX_CHUNKS = 4096  # of one prompt that are added up one by one

PRESETS_DIR = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seven numbers, in seconds per unit. All are >= 0, so that more work never takes less time."""

    t0: float  # s per step
    a: float  # s per prefill token
    b: float  # s per decoding sequence
    c: float  # s per token of decoding context
    e: float  # s per (prefill token x context token)
    knee: float  # tokens in the step beyond which each costs ``a2`` more
    a2: float  # s per token beyond the knee

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"step-time coefficient {field.name} must be a finite number >= 0, not {value!r}")
        if self.t0 <= 0:
            raise ValueError("step-time coefficient t0 must be above 0: a step is never free")

    def step(self, prefill: float, decodes: float, kv_dec: float = 0.0, pp: float = 0.0) -> float:
        """Seconds of one step."""
        return (
            self.t0
            + self.a * prefill
            + self.b * decodes
            + self.c * kv_dec
            + self.e * pp
            + self.a2 * max(0.0, prefill + decodes - self.knee)
        )

    def prefill_run(self, tokens: int, budget: int, decodes: int = 0, kv_dec: float = 0.0) -> float:
        """Seconds until one prompt is prefilled that has every step to itself, but for the tokens of its decodes:
        chunks of what ``budget`` tokens per step leave."""
        chunk = max(1, budget - decodes)
        whole, rest = divmod(max(1, tokens), chunk)
        seconds = sum(
            self.step(chunk, decodes, kv_dec, chunk * (i * chunk + chunk / 2)) for i in range(min(whole, MAX_CHUNKS))
        )
        if whole > MAX_CHUNKS:  # beyond any context there is: as the last of them
            seconds *= whole / MAX_CHUNKS
        return seconds + (self.step(rest, decodes, kv_dec, rest * (whole * chunk + rest / 2)) if rest else 0.0)

    def prefill_per_s(self, budget: int) -> float:
        """Prompt tokens a second in steps of ``budget`` tokens that hold nothing else."""
        return budget / self.step(budget, 0, 0.0, budget * budget / 2)

    def tokens_per_s(self, prompt: float, output: float, slots: int, budget: int) -> float:
        """Prompt and output tokens a second, with ``slots`` requests of these lengths kept going. A step has at most
        ``budget`` tokens: where prompts fill it, fewer sequences than slots decode beside them."""
        prompt, output = max(0.0, prompt), max(1.0, output)
        decodes = min(float(slots), budget / (1.0 + prompt / output))  # each token of answer brings its share of prompt
        prefill = decodes * prompt / output
        seconds = self.step(prefill, decodes, decodes * (prompt + output / 2), prefill * prompt / 2)
        return (prefill + decodes) / seconds

    def max_prefill(
        self, decodes: int, kv_dec: float, context: float, budget_s: float, margin: float = 1.0, most: int = 1 << 20
    ) -> int:
        """The largest chunk of one prompt, ``context`` of whose tokens are cached, that a step can take beside its
        decodes with ``margin * step <= budget_s`` (QoServe 3.3; its margin is 1.2). 0 when none fits, ``most`` at most.
        """

        def fits(tokens: int) -> bool:
            return margin * self.step(tokens, decodes, kv_dec, tokens * (context + tokens / 2)) <= budget_s

        if not fits(1):
            return 0
        if fits(most):
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                low = middle
            else:
                high = middle
        return low

    def slowed(self, factor: float) -> StepTime:
        """The same engine with every step ``factor`` times as long."""
        f = factor
        return StepTime(self.t0 * f, self.a * f, self.b * f, self.c * f, self.e * f, self.knee, self.a2 * f)


@dataclass(frozen=True, slots=True)
class EnginePreset:
    """A model on its GPUs: how fast, how much fits, and where the figures come from."""

    name: str
    model: str  # Hugging Face id
    gpu: str
    gpus: int
    label: str  # "measured" | "fitted" (to a figure that a paper prints) | "roofline"
    source: str
    step_time: StepTime
    kv_tokens: int  # KV cache [tokens]
    kv_bytes_per_token: int
    weights_bytes: int
    gpu_memory_bytes: int  # of one GPU
    slots: int  # sequences at once
    token_budget: int  # tokens per step
    max_model_len: int


def preset_names() -> list[str]:
    """The presets shipped, sorted."""
    return sorted(path.stem for path in PRESETS_DIR.glob("*.toml"))


@cache
def load_preset(name: str) -> EnginePreset:
    """Reads a preset by name. Raises ValueError that lists the names, or the file and key that are wrong."""
    if name not in preset_names():
        raise ValueError(f"unknown engine preset {name!r}; there are: {', '.join(preset_names())}")
    path = PRESETS_DIR / f"{name}.toml"
    return parse_preset(name, tomllib.loads(path.read_text(encoding="utf-8")))


UNITS = {"t0_ms": 1e-3, "a_us": 1e-6, "b_us": 1e-6, "c_us": 1e-6, "e_ps": 1e-12, "knee_tokens": 1.0, "a2_us": 1e-6}


def parse_preset(name: str, data: dict[str, Any]) -> EnginePreset:
    """An :class:`EnginePreset` from a parsed preset file. Raises ValueError naming the key."""
    values = dict(data)
    raw = values.pop("step_time", None)
    if not isinstance(raw, dict) or set(raw) != set(UNITS):
        raise ValueError(f"preset {name}: [step_time] must have exactly {', '.join(UNITS)}")
    step_time = StepTime(**{key.rsplit("_", 1)[0]: float(raw[key]) * unit for key, unit in UNITS.items()})
    wanted = {f.name: f.type for f in fields(EnginePreset) if f.name not in ("name", "step_time")}
    if set(values) != set(wanted):
        odd = ", ".join(sorted(set(values) ^ set(wanted)))
        raise ValueError(f"preset {name}: missing or unknown keys: {odd}")
    for key, kind in wanted.items():
        value = values[key]
        if kind == "int" and not (isinstance(value, int) and value > 0):
            raise ValueError(f"preset {name}: {key} must be a whole number above 0, not {value!r}")
        if kind == "str" and not (isinstance(value, str) and value):
            raise ValueError(f"preset {name}: {key} must be text, not {value!r}")
    if values["label"] not in ("measured", "fitted", "roofline"):
        raise ValueError(f"preset {name}: label must be 'measured', 'fitted' or 'roofline', not {values['label']!r}")
    return EnginePreset(name=name, step_time=step_time, **values)
