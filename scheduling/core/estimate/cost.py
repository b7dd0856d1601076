"""What will a request cost the engine? Its KV over time, its prefill, its decoding, its memory.

Everything is a function of input tokens and the output-length distribution; cost and seconds are increasing in the
output length, so that quantiles carry over.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.estimate.contracts import Prediction
from scheduling.core.gittins import CostDistribution, cost_distribution
from scheduling.core.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request. Seconds are those of an engine that runs ``beside`` others of the same context."""

    service: CostDistribution  # O^2/2 + I*O [token steps] (SageSched 3.2)
    prefill_s: float
    decode_s: float  # expected
    decode_p90_s: float
    kv_bytes: float  # expected at its end
    kv_bytes_most: float  # if it reaches its bound


def service_costs(input_tokens: int, prediction: Prediction) -> CostDistribution:
    """``O^2/2 + I*O`` as a distribution [token steps]; its Gittins index is what SageSched orders by."""
    return cost_distribution(input_tokens, CostDistribution(prediction.lengths, prediction.probabilities))


def prefill_seconds(step_time: StepTime, input_tokens: int, chunk: int) -> float:
    """Seconds until the prompt is in the cache, in chunks of at most ``chunk`` tokens with nothing beside it."""
    seconds = 0.0
    done = 0
    while done < input_tokens:
        part = min(chunk, input_tokens - done)
        seconds += step_time.step(part, 0, 0.0, part * (done + part / 2.0))
        done += part
    return seconds


def decode_seconds(step_time: StepTime, input_tokens: int, output_tokens: float, beside: int = 0) -> float:
    """Seconds of generating ``output_tokens`` while ``beside`` others of the same context decode in each step."""
    steps = max(0, round(output_tokens) - 1)  # the first token comes out of the prefill
    sequences = 1 + beside
    return step_time.decode_run(sequences, sequences * float(input_tokens), steps)


def cost(
    input_tokens: int, output_bound: int, prediction: Prediction, p90: float, step_time: StepTime, *,
    chunk: int = 2048, beside: int = 0, kv_bytes_per_token: int = 0,
) -> Cost:  # fmt: skip
    """What a request of ``input_tokens`` with that prediction is expected to cost; ``p90``: its 90 % length."""
    return Cost(
        service_costs(input_tokens, prediction),
        prefill_seconds(step_time, input_tokens, chunk),
        decode_seconds(step_time, input_tokens, prediction.mean, beside),
        decode_seconds(step_time, input_tokens, p90, beside),
        kv_bytes_per_token * (input_tokens + prediction.mean),
        float(kv_bytes_per_token * (input_tokens + output_bound)),
    )
