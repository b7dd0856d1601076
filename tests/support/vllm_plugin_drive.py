"""vLLM's real scheduler classes with the plugin over them, driven without a model. Runs in vLLM's environment only:
``python -m tests.support.vllm_plugin_drive MODEL_FOLDER`` prints what happened as JSON.

As vLLM tests its schedulers (``tests/v1/core/utils.py``): a KV cache that nobody writes to, and outputs that are
made up. Asynchronous scheduling is set behind the platform's back, which switches it off on a CPU.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections import deque
from typing import Any

import torch
from vllm.config import CacheConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from scheduling.core.inside_engine.digest import ARGUMENT
from scheduling.core.types import ServiceClass, Slo
from scheduling.engines.vllm_plugin import Scheduler
from scheduling.engines.vllm_plugin.versions import METHODS
from tests.support.plugin_digest import Kind, digest_of

BLOCK = 16
KINDS = (
    Kind("chat", 100, 20, Slo(ttft_s=0.2, tbt_s=0.004)),
    Kind("batch", 900, 20, Slo(ttlt_s=60.0), 2, ServiceClass.SPOT, ((40.0, 400.0), (0.8, 0.2))),
)
STEP = {"t0": 0.001, "a": 1e-5, "b": 1e-5, "c": 1e-8}


def make(model: str, *, asynchronous: bool, blocks: int, adapters: bool, policy: str) -> Any:
    settings = {"policy": policy, "step_time": STEP, "learn": False, "log_steps": 100_000}
    scheduler = SchedulerConfig(
        max_num_seqs=16, max_num_batched_tokens=512, max_model_len=4096, enable_chunked_prefill=True,
        is_encoder_decoder=False,
    )  # fmt: skip
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=4096),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=scheduler,
        additional_config={"quartermaster": settings},
    )
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = blocks
    if adapters:
        config.lora_config = LoRAConfig(max_loras=1, max_cpu_loras=4, max_lora_rank=8)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def asked(number: int, draw: random.Random, hasher: Any, adapters: bool) -> Request:
    kind = KINDS[number % 3 == 0]
    shared = [7] * 64 if number % 4 == 0 else []
    prompt = shared + [draw.randint(10, 900) for _ in range(draw.choice((20, 60, 900, 1500)))]
    sampling = SamplingParams(max_tokens=draw.randint(1, 60), ignore_eos=True, extra_args={ARGUMENT: digest_of(kind)})
    sampling.update_from_generation_config({}, 1)
    adapter = LoRARequest(f"a{number % 3}", number % 3, "/none") if adapters and number % 3 else None
    return Request(
        request_id=f"{number}", prompt_token_ids=prompt, sampling_params=sampling, pooling_params=None,
        lora_request=adapter, block_hasher=hasher,
    )  # fmt: skip


def output_of(engine: Any, scheduled: Any) -> ModelRunnerOutput:
    names = list(scheduled.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = engine.requests.get(name)
        tokens.append([] if request is None or request.is_prefill_chunk else [11])
    return ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=tokens,
        logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
    )  # fmt: skip


def drive(model: str, *, asynchronous: bool = False, blocks: int = 4000, adapters: bool = False,
          policy: str = "hybrid") -> dict[str, Any]:  # fmt: skip
    engine = make(model, asynchronous=asynchronous, blocks=blocks, adapters=adapters, policy=policy)
    hash_with = get_hash_fn_by_name("sha256")
    init_none_hash(hash_with)
    hasher, draw = get_request_block_hasher(BLOCK, hash_with), random.Random(5)
    flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
    number = most = steps = 0
    depth = 2 if asynchronous else 1
    while number < 150 or engine.requests or flight:
        if number < 150 and draw.random() < 0.5:
            engine.add_request(asked(number, draw, hasher, adapters))
            number += 1
        if engine.requests and draw.random() < 0.01:
            engine.finish_requests(draw.choice(list(engine.requests)), RequestStatus.FINISHED_ABORTED)
        if engine.has_requests():
            scheduled = engine.schedule()
            flight.append((scheduled, output_of(engine, scheduled)))
            most = max(most, len(engine.qm_flight))
            steps += 1
        while flight and (len(flight) >= depth or not engine.has_requests() or not flight[-1][0].num_scheduled_tokens):
            engine.update_from_output(*flight.popleft())
        assert steps < 20_000, f"{len(engine.requests)} requests do not end"
    log = engine.qm_log
    return {
        "class": type(engine).__name__,
        "steps": steps,
        "unfinished": len(engine.requests),
        "degraded": log.off,
        "in_flight_most": most,
        "victims": log.counters.victims,
        "gave_way": log.counters.gave_way,
        "shortened": log.counters.shortened,
        "cached": sum(one.cached for one in log.requests()),
        "digests": log.counters.digests,
    }


def main() -> None:
    model = sys.argv[1]
    found: dict[str, Any] = {
        "methods": {name: list(inspect.signature(getattr(VllmScheduler, name)).parameters) for name in METHODS},
        "sync": drive(model),
        "async": drive(model, asynchronous=True),
        "adapters": drive(model, asynchronous=True, adapters=True),
        "full": drive(model, blocks=300, policy="gittins"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
