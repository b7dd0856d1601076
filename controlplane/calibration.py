"""Measures the replicas of a pool under load, one after the other, and says what the catalog should say of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from scheduling.core.engine.calibration import Burst, Proposal, propose
from scheduling.core.types import BackendSpec
from scheduling.engines import loading
from scheduling.engines.client import EngineError, counted
from scheduling.engines.kinds import VLLM, kind_of, make_client
from scheduling.engines.loading import Shape
from scheduling.tls import authorities

SHORT = Shape(32, 64)  # with the usual shape, step times
USUAL = Shape(384, 64)
LONG = 4096  # tokens of an answer that goes on while the limit of sequences is looked for
RESERVED = 256  # likewise, where KV cache for all of it has to be free before it begins
ENOUGH = 1.5  # typical requests of one place that a burst has to see
MOST_SEQUENCES = 1024  # sequences that are offered at most


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica said and did."""

    kv_tokens: int | None
    bursts: tuple[Burst, ...]
    proposal: Proposal
    in_turn: float  # typical requests that one place was seen to do; of few, throughput is a matter of chance
    seconds: float  # that it was given

    @property
    def too_short(self) -> str:
        """Why throughput says nothing; empty where it does."""
        if self.in_turn >= ENOUGH:
            return ""
        wanted = math.ceil(self.seconds * 1.2 * ENOUGH / max(self.in_turn, 0.05))
        return (
            f"throughput is left out: a place did {self.in_turn:.1f} typical requests while it was watched, which says "
            f"little; give it --seconds {wanted}"
        )


class Busy(EngineError):
    """It serves others: figures would be wrong, and its clients would suffer."""


def plan(slots: int, usual: Shape) -> list[tuple[int, Shape]]:
    """The bursts for a replica that runs ``slots`` sequences: from one request to twice as many."""
    slots = min(slots, MOST_SEQUENCES)
    levels = sorted(
        {1, max(1, slots // 8), max(1, slots // 4), max(1, slots // 2), slots, min(MOST_SEQUENCES, 2 * slots)}
    )
    return [*((level, SHORT) for level in levels), (1, usual), (max(1, slots // 2), usual), (slots, usual)]


def lasting(engine: str, context: int | None) -> int:
    """Tokens of the answers that run while the limit of sequences is looked for: as many as may be, so that none ends
    meanwhile. Of an engine that reserves KV cache for them, long ones would fill that before the limit is reached."""
    most = RESERVED if kind_of(engine).reserves_answers else LONG
    return most if context is None else max(1, min(most, context - SHORT.prompt - 1))


async def measure(
    spec: BackendSpec,
    model: str,
    seconds: float,
    *,
    usual: Shape = USUAL,
    force: bool = False,
    passed: Callable[[float, float], None] = lambda _done, _total: None,
    seed: int = 1,
    engine: str = VLLM,
) -> Measured:
    """Loads one replica for about ``seconds``, with short requests and with ``usual`` ones.

    ``passed`` is told the seconds done and in all. Raises Busy when it serves others and ``force`` is not set,
    EngineError when it fails.
    """
    if not kind_of(engine).reports:
        raise EngineError(f"engines of kind {engine!r} do not report what they do, so nothing can be measured")
    draw = random.Random(seed)
    headers = {"authorization": f"Bearer {spec.api_key}"} if spec.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=MOST_SEQUENCES)
    async with httpx.AsyncClient(verify=authorities(), trust_env=False, follow_redirects=False, limits=limits) as http:
        client = make_client(spec.url, http=http, model=model, api_key=spec.api_key, kind=engine)
        if not force and (why := await loading.busy(client)):
            raise Busy(f"{why}: drain it first, or say --force")
        kv_tokens = await client.kv_tokens()
        facts = await client.facts((await counted(client)).engines)
        if facts.max_model_len is not None and usual.most > facts.max_model_len:
            raise EngineError(
                f"its context is {facts.max_model_len} tokens, and typical requests have up to {usual.most}: say "
                "smaller --prompt and --output (one and a half times the output counts)"
            )
        output = lasting(engine, facts.max_model_len)
        slots, offered = facts.slots, 0
        while slots is None and offered < MOST_SEQUENCES:  # it does not say: offer more than it runs
            offered = min(MOST_SEQUENCES, 2 * max(offered, spec.slots))
            slots = await loading.limit(client, http, model, headers, offered, SHORT.prompt, output, draw)
            await loading.quiet(client)
        todo = plan(slots or spec.slots, usual)
        each, done = seconds / len(todo), 0.0
        bursts: list[Burst] = []

        def progress(by: float) -> None:
            nonlocal done
            done += by
            passed(done, each * (len(bursts) + 1 + len(todo)))

        while todo:
            level, shape = todo.pop(0)
            result = await loading.burst(client, http, model, headers, level, shape, each, draw, progress)
            bursts.append(result)
            await loading.quiet(client)
    return Measured(kv_tokens, tuple(bursts), propose(bursts, usual.context, slots), _in_turn(bursts, usual), seconds)


def _in_turn(bursts: Sequence[Burst], usual: Shape) -> float:
    """Typical requests that each place of a burst was seen to do, one after another; the fewest."""
    return min(one.steps / usual.output for one in bursts if one.context == usual.context and one.running > 0)


def changes(spec: BackendSpec, measured: Measured) -> dict[str, tuple[float, float]]:
    """What the catalog would say instead: field -> (now, then). Throughput is cut to two digits: more is noise."""
    figures = {} if measured.too_short else {"tokens_per_s": float(f"{measured.proposal.tokens_per_s:.2g}")}
    if measured.proposal.slots is not None:
        figures["slots"] = measured.proposal.slots
    if measured.kv_tokens is not None:
        figures["kv_tokens"] = measured.kv_tokens
    return {name: (getattr(spec, name), then) for name, then in figures.items() if getattr(spec, name) != then}
