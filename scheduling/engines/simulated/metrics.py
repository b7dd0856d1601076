"""The engine's counts under vLLM 0.32's metric names, and the GPU's under the DCGM exporter's."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from scheduling.core.capacity.kv import BLOCK_TOKENS

_TTFT_BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_ITL_BOUNDS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_REQUEST_BOUNDS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
MIB = 1024 * 1024


class Histogram:
    """A Prometheus histogram of seconds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum += seconds * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def lines(self, name: str, help_text: str, labels: str) -> list[str]:
        out = [f"# HELP {name} {help_text}", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}')
        out.append(f"{name}_count{{{labels}}} {float(total)}")
        out.append(f"{name}_sum{{{labels}}} {self.sum}")
        return out


@dataclass(slots=True)
class EngineTotals:
    """What happened since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, found in the prefix cache
    generation_tokens: int = 0
    preemptions: int = 0
    rejections: int = 0
    aborted: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(_TTFT_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(_ITL_BOUNDS))
    latency: Histogram = field(default_factory=lambda: Histogram(_REQUEST_BOUNDS))
    queued: Histogram = field(default_factory=lambda: Histogram(_REQUEST_BOUNDS))


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the exporter would say of each GPU of the server."""

    count: int
    name: str
    memory_bytes: int  # of one
    used_bytes: int  # of one: weights and the whole KV pool, which vLLM reserves at its start
    busy: float  # 0..1, share of time with any kernel running
    active: float  # 0..1, modelled (scheduling/engines/simulated/runner.py)


def render(
    totals: EngineTotals, *, running: int, waiting: int, kv_usage: float, kv_blocks: int, model: str, gpus: Gpus,
    prefix: tuple[int, int] | None = None, steps: int = 0, asleep: bool = False,
) -> str:  # fmt: skip
    """The text of ``/metrics``. ``prefix``: tokens looked up in the prefix cache, and found there; None: it is off."""
    queried, found = prefix or (0, 0)
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{escaped}"'
    out: list[str] = []

    def scalar(name: str, help_text: str, value: float, extra: str = "") -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        out.extend((f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name}{{{labels}{extra}}} {float(value)}"))

    scalar("vllm:num_requests_running", "Number of requests in model execution batches.", running)
    scalar("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
    name = "vllm:num_requests_waiting_by_reason"
    out.extend((f"# HELP {name} Number of waiting requests by reason.", f"# TYPE {name} gauge"))
    for reason, count in (("capacity", waiting), ("deferred", 0)):
        out.append(f'{name}{{engine="0",model_name="{escaped}",reason="{reason}"}} {float(count)}')
    name = "vllm:engine_sleep_state"
    out.extend((f"# HELP {name} Engine sleep state; awake = 0 means engine is sleeping.", f"# TYPE {name} gauge"))
    for state, holds in (("awake", not asleep), ("weights_offloaded", asleep), ("discard_all", False)):
        out.append(f'{name}{{{labels},sleep_state="{state}"}} {float(holds)}')
    scalar("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv_usage)
    # without a simulated prefix cache nothing is looked up, nothing is found
    scalar("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", queried)
    scalar("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", found)
    scalar("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", totals.preemptions)
    scalar("vllm:prompt_tokens_total", "Number of prefill tokens processed.", totals.prompt_tokens)
    scalar(
        "vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", totals.cached_tokens
    )
    scalar("vllm:generation_tokens_total", "Number of generation tokens processed.", totals.generation_tokens)
    name = "vllm:iteration_tokens_total"  # vLLM's has buckets as well
    out.extend((f"# HELP {name} Histogram of number of tokens per engine_step.", f"# TYPE {name} histogram"))
    out.append(f"{name}_count{{{labels}}} {float(steps)}")
    out.append(f"{name}_sum{{{labels}}} {float(totals.prompt_tokens + totals.generation_tokens)}")
    name = "vllm:request_success_total"
    out.extend((f"# HELP {name} Count of successfully processed requests.", f"# TYPE {name} counter"))
    # vLLM leaves abort at 0 when clients close their connections
    for reason, count in (("stop", totals.finished_stop), ("length", totals.finished_length), ("abort", 0)):
        out.append(f'{name}{{engine="0",finished_reason="{reason}",model_name="{escaped}"}} {float(count)}')
    scalar(
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        totals.rejections,
        ',reason="max_num_queued_reqs"',
    )
    name = "vllm:cache_config_info"
    out.extend((f"# HELP {name} Information of the LLMEngine CacheConfig", f"# TYPE {name} gauge"))
    size = f'block_size="{BLOCK_TOKENS}",engine="0",kv_cache_size_tokens="{kv_blocks * BLOCK_TOKENS}"'
    caches = f'enable_prefix_caching="{prefix is not None}"'
    out.append(f'{name}{{{caches},{size},num_gpu_blocks="{kv_blocks}"}} 1.0')
    for histogram, name, help_text in (
        (totals.first_token, "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds."),
        (totals.inter_token, "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
        (totals.latency, "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
        (totals.queued, "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    ):
        out.extend(histogram.lines(name, help_text, labels))
    used, free = gpus.used_bytes // MIB, (gpus.memory_bytes - gpus.used_bytes) // MIB
    for name, help_text, value in (
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", round(100 * gpus.busy)),
        ("DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", round(gpus.active, 6)),
        ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", used),
        ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", free),
    ):
        out.extend((f"# HELP {name} {help_text}", f"# TYPE {name} gauge"))
        out.extend(f'{name}{{gpu="{i}",modelName="simulated {gpus.name}"}} {value}' for i in range(gpus.count))
    return "\n".join(out) + "\n"
