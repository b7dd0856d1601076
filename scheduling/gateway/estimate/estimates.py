"""What a request is believed to need, and when it wants to be done: its Estimate and its QueuedRequest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from scheduling.core.deadline import few_tokens, first_token_deadline_s, total_deadline_s
from scheduling.core.estimate.chain import Outlook
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.outcomes import Reason
from scheduling.core.placement.pace_wait import pace_us
from scheduling.core.policies.routing import USES_PREFIX
from scheduling.core.types import MAX_SEQUENCES, Estimate, PoolSpec, QueuedRequest, Slo
from scheduling.engines.kinds import kind_of
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import CLIENT_TIMEOUT, ROUTE_TIMEOUT, TTFT_HINT, TTLT_HINT
from scheduling.gateway.errors import Refusal
from scheduling.gateway.estimate.prefix import prefixes_of

CONTEXT = "This model's maximum context length"
KV_CACHE = "The KV cache of its largest replica"

Look = Callable[[int, int], Outlook]  # input tokens and output bound: what to expect


def make_estimate(
    prepared: Prepared, pool: PoolSpec, calibration: TokenCalibration, look: Look | None = None, cuts: bool = True
) -> Estimate:
    """Input from a tokenizer, or words and bytes (exact for token ids); output by ``look``, or by its bound where the
    pool predicts nothing. What is reserved and charged is the bound either way: a prediction orders, it does not limit.

    A request for several answers needs the sum of theirs: its prompts are charged once, and are in the cache of each.
    Refuses what can fit nowhere (400); where only our estimate says so, the engine, which counts, has the last word.
    ``cuts``: a bound beyond what the prompt leaves of the context counts as what it leaves, as vLLM takes it (the body
    is sent as it came); without, it is refused, as where another model may have room for it.
    """
    if prepared.exact_input:
        tokens = least = int(prepared.raw_input)
    else:
        tokens = calibration.estimate(prepared.raw_input)
        least = tokens // 2
    bound = prepared.output_bound
    limit = pool.max_model_len
    prompt, shortest = tokens, least  # of the longest one
    if prepared.prompts > 1 or (prepared.media and prepared.longest):
        share = prepared.longest / prepared.raw_input
        prompt, shortest = round(tokens * share), round(least * share)
    if not prepared.bound_given:
        left = limit - prompt
        if cuts and kind_of(pool.engine).cuts_answers:
            # a default gives way to the prompt, not to doubt about its length
            left = max(left, min(prompt - shortest, limit - shortest))
        bound = max(1, min(bound, left))
        prepared.set_bound(bound)
        prepared.surely_left = limit - prompt if 0 < limit - prompt < bound else 0
    elif cuts and shortest < limit and bound <= limit:
        bound = min(bound, limit - shortest)
    largest = max((b.kv_tokens for b in pool.backends), default=limit)
    choices = prepared.choices
    output = bound * choices
    kv = min(tokens * prepared.copies + output, limit * choices)  # each answer has its prompt in the cache
    if shortest + bound > limit:
        param = prepared.bound_field if bound > limit else prepared.prompt_field
        raise Refusal(Reason.TOO_LONG, param=param, input=prompt, output=bound, most=CONTEXT, limit=limit)
    if not output:
        kv = min(kv, largest)  # prompts that are only read leave the cache one after the other
    if kv > largest:
        raise Refusal(
            Reason.TOO_LONG, param=prepared.bound_field, input=tokens, output=output, most=KV_CACHE, limit=largest
        )
    if look is None or not output:
        return Estimate(tokens, output, float(output), kv, tokens + output)
    outlook = look(tokens, bound)
    prediction = outlook.forecast.prediction
    return Estimate(
        tokens, output, prediction.mean * choices, kv, tokens + output, prediction.source,
        outlook.forecast.p90 * choices, outlook.facts.category,
        prediction.lengths if choices == 1 else tuple(length * choices for length in prediction.lengths),
        prediction.probabilities,
    )  # fmt: skip


def make_queued(
    request_id: str, arrival_s: float, access: Access, prepared: Prepared, estimate: Estimate,
    hints: Mapping[bytes, float] | None, gateway_id: str,
) -> QueuedRequest:  # fmt: skip
    """What ordering may know. Deadlines are the contract's; what the client wishes stands beside them."""
    entitlement = access.entitlement
    pool = access.pool
    tier = entitlement.tier
    slo = tier.slo
    timeout_s, whole = (None, False) if hints is None else _client_timeout(hints, prepared.stream)
    return QueuedRequest(
        request_id, 0, arrival_s, entitlement.id, entitlement.tenant, tier.name, tier.rank, tier.weight,
        tier.service_class, estimate.input_tokens, estimate.output_bound, estimate.output_tokens, estimate.kv_tokens,
        1, prepared.client_priority,
        None if slo.ttft_s is None else first_token_deadline_s(arrival_s, slo),
        None if slo.ttlt_s is None else total_deadline_s(arrival_s, slo),
        arrival_s + tier.max_wait_s, "", gateway_id, entitlement.concurrency,
        0, 0, estimate.output_lengths, estimate.output_probabilities,  # nothing of it was computed before
        prefixes_of(
            prepared.judged, access.prefix_key, pool, estimate.input_tokens, _of_media(prepared, estimate.input_tokens)
        )
        if pool.routing in USES_PREFIX and not _may_be_cut(prepared)
        else "",
        None if hints is None else _hinted_deadline_s(arrival_s, slo, hints),
        pool.adapter, 0, "", min(prepared.choices, MAX_SEQUENCES), "", 0,
        pace_us(slo, estimate.output_bound // prepared.choices),
        None if timeout_s is None else arrival_s + timeout_s,
        few_tokens(estimate) / prepared.choices if whole else 0.0,
    )  # fmt: skip


def _client_timeout(hints: Mapping[bytes, float], stream: bool) -> tuple[float | None, bool]:
    """When whoever waits for the answer leaves [s after its arrival], and whether it has to be whole by then. A client
    stays once a stream has begun; a proxy breaks it off. Of both the sooner."""
    timeout_s, route_s = hints.get(CLIENT_TIMEOUT), hints.get(ROUTE_TIMEOUT)
    if route_s is not None and (timeout_s is None or route_s <= timeout_s):
        return route_s, True
    return timeout_s, timeout_s is not None and not stream


def _of_media(prepared: Prepared, input_tokens: int) -> int:
    """How many of its input tokens images, audio and video are taken for."""
    return math.ceil(input_tokens * prepared.media / prepared.raw_input) if prepared.media else 0


def _may_be_cut(prepared: Prepared) -> bool:
    """Whether the engine may cut off how the prompt begins (``truncate_prompt_tokens``): an estimate may be half of
    what it counts."""
    return prepared.kept < 2 * prepared.raw_input


def _hinted_deadline_s(arrival_s: float, slo: Slo, hints: Mapping[bytes, float]) -> float | None:
    """The deadline that the client asks for, where the tier has such a target and it is not as tight."""
    name, target_s = (TTFT_HINT, slo.ttft_s) if slo.interactive else (TTLT_HINT, slo.ttlt_s)
    wanted_s = hints.get(name)
    if wanted_s is None or target_s is None or wanted_s >= target_s:
        return None
    return arrival_s + wanted_s
