"""Requests with their truth, and the streams of them that the papers used.

A :class:`SimRequest` holds what really happens (true output length) beside what a policy may know of it (``queued``, a
:class:`scheduling.core.types.QueuedRequest`). Engines read the truth, policies only ever see ``queued``.
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from scheduling.core.placement.pace_wait import pace_us
from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.simulator.kernel import to_fs, to_s

if TYPE_CHECKING:
    pass

LENGTHS_DIR = Path(__file__).parent / "lengths"


BLOCK_TOKENS = 512  # of a trace's block ids, as Mooncake's hash_ids are
NO_PROMISE = Slo()


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of requests in a scenario: its promise, its rank and its share."""

    name: str
    slo: Slo = NO_PROMISE
    rank: int = 0
    weight: float = 1.0
    share: float = 1.0
    service_class: ServiceClass = ServiceClass.ELASTIC


@dataclass(slots=True)
class SimRequest:
    """One request: truth, promise and what policies may know. Not changed once it was made."""

    index: int  # position in the workload
    arrival_fs: int
    input_tokens: int
    output_tokens: int  # the truth
    slo: Slo
    queued: QueuedRequest
    label: str = ""  # family or category, for summaries only
    important: bool = True  # False: relegated first (QoServe's low priority)
    base_tokens: float = 0.0  # output expected of its category before calibration (DriftSched)
    whole: bool = False  # its answer comes whole: nobody sees its first token
    blocks: tuple[int, ...] = ()  # of its prompt, chained ids (``simulator/prefix_cache.py``); empty: shared with none

    @property
    def tier(self) -> str:
        return self.queued.tier

    @property
    def whole_blocks(self) -> tuple[int, ...]:
        """Those of its blocks that its prompt fills; what follows in the last one is its own."""
        return self.blocks[: self.input_tokens // BLOCK_TOKENS] if self.blocks else ()


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of a request's output when it arrives."""

    output_tokens: float
    bound: int = 4096
    lengths: tuple[float, ...] = ()  # with ``probabilities``: its distribution
    probabilities: tuple[float, ...] = ()


def make_request(
    index: int,
    arrival_s: float,
    input_tokens: int,
    output_tokens: int,
    tier: Tier,
    belief: Belief,
    *,
    label: str = "",
    important: bool = True,
    base_tokens: float = 0.0,
    tenant: str = "",
) -> SimRequest:
    """A request of a tier; without ``tenant`` the tier is its own tenant.

    Raises ValueError for one without a prompt or without output.
    """
    if input_tokens < 1 or output_tokens < 1:
        raise ValueError(f"request {index} needs at least one token in and one out")
    slo = tier.slo
    queued = QueuedRequest(
        id=f"r{index}",
        seq=index,
        arrival_s=arrival_s,
        entitlement=tenant or tier.name,
        tenant=tenant or tier.name,
        tier=tier.name,
        rank=tier.rank,
        weight=tier.weight,
        service_class=tier.service_class,
        input_tokens=input_tokens,
        output_bound=belief.bound,
        output_tokens=belief.output_tokens,
        kv_tokens=input_tokens + belief.bound,
        ttft_deadline_s=None if slo.ttft_s is None else arrival_s + slo.ttft_s,
        ttlt_deadline_s=None if slo.ttlt_s is None else arrival_s + slo.ttlt_s,
        output_lengths=belief.lengths,
        output_probabilities=belief.probabilities,
        pace_us=pace_us(slo, belief.bound),
    )
    return SimRequest(index, to_fs(arrival_s), input_tokens, output_tokens, slo, queued, label, important, base_tokens)


# --- when


def poisson(random: Random, rate: float) -> Iterator[float]:
    """Arrivals [s] of a Poisson process with ``rate`` per second, for ever."""
    now = 0.0
    while True:
        now += random.expovariate(rate)
        yield now


def uniform_gaps(random: Random, low_s: float, high_s: float, start_s: float = 0.0) -> Iterator[float]:
    """Arrivals [s] with gaps drawn evenly from an interval, for ever."""
    now = start_s
    while True:
        now += random.uniform(low_s, high_s)
        yield now


def square_wave(random: Random, rates: Sequence[float], period_s: float) -> Iterator[float]:
    """Poisson arrivals [s] whose rate steps through ``rates``, each for ``period_s``, round and round.

    Exact at the steps: what is left of an exponential gap is exponential again, so it is stretched by the new rate.
    """
    now, step = 0.0, 0
    while True:
        need = random.expovariate(1.0)
        while now + need / rates[step % len(rates)] > (step + 1) * period_s:
            end = (step + 1) * period_s
            need -= (end - now) * rates[step % len(rates)]
            now, step = end, step + 1
        now += need / rates[step % len(rates)]
        yield now


# --- how long

Lengths = Callable[[Random], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ClippedLognormal:
    """Tokens with this median and 90th percentile, never above ``most``: a mean exists only because of the clip."""

    median: float
    p90: float
    most: int

    def draw(self, random: Random) -> int:
        sigma = math.log(self.p90 / self.median) / 1.2815515655446004  # the normal's 90th percentile
        return max(1, min(self.most, round(random.lognormvariate(math.log(self.median), sigma))))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Tokens from a table of percentiles 0..100, linear in between."""

    table: tuple[int, ...]

    def draw(self, random: Random) -> int:
        place = random.random() * (len(self.table) - 1)
        low = int(place)
        return max(1, round(self.table[low] + (self.table[low + 1] - self.table[low]) * (place - low)))


@cache
def quantile_table(name: str) -> tuple[Quantiles, Quantiles]:
    """Input and output lengths of a table shipped in ``lengths/``. Raises OSError when there is none."""
    data = tomllib.loads((LENGTHS_DIR / f"{name}.toml").read_text(encoding="utf-8"))
    return Quantiles(tuple(data["input_tokens"])), Quantiles(tuple(data["output_tokens"]))


# QoServe, Table 2 (median, 90th percentile). Azure Code is clipped at 7,000: unclipped its mean, 2,944, is 15 % above
# that of the trace; the others at the 8 k context of Llama 3.
CODE = (ClippedLognormal(1930, 6251, 7000), ClippedLognormal(8, 43, 1024))
CONV = (ClippedLognormal(928, 3830, 7000), ClippedLognormal(41, 342, 1024))
FIRST_TOKEN = Quantiles((1, 1))  # all that a prefill replica writes

LENGTHS: dict[str, Callable[[], tuple[ClippedLognormal | Quantiles, ClippedLognormal | Quantiles]]] = {
    "azure-code": lambda: CODE,
    "azure-conv": lambda: CONV,
    "azure-conv-prompts": lambda: (CONV[0], FIRST_TOKEN),
    "sharegpt": lambda: quantile_table("sharegpt"),
}


def independent_lengths(name: str) -> Lengths:
    """Input and output length drawn independently. Raises ValueError that lists the names."""
    if name not in LENGTHS:
        raise ValueError(f"unknown lengths {name!r}; there are: {', '.join(LENGTHS)}")
    inputs, outputs = LENGTHS[name]()
    return lambda random: (inputs.draw(random), outputs.draw(random))


def mixed_prompts(shares: Sequence[tuple[float, int, int]], output_tokens: int) -> Lengths:
    """EWSJF's mixes: ``(share, low, high)`` prompts drawn evenly from each interval, one output length for all."""
    edges = list(accumulate(share for share, _, _ in shares))

    def draw(random: Random) -> tuple[int, int]:
        _, low, high = shares[min(len(shares) - 1, bisect_right(edges, random.random() * edges[-1]))]
        return random.randint(low, high), output_tokens

    return draw


EWSJF_MIX = ((0.8, 32, 256), (0.2, 1024, 4096))  # "80 % short (interactive), 20 % long (batch)" (EWSJF 6.2)
EWSJF_OUTPUT = 12  # tokens of an answer, as Tables 4 to 9 come to


def bursts(random: Random, rate: float) -> Iterator[float]:
    """Arrivals [s], for ever: 40 to 120 within ten seconds, and then nobody until the mean rate is ``rate``."""
    now = 0.0
    while True:
        count = random.randint(40, 120)
        yield from sorted(now + random.uniform(0.0, 10.0) for _ in range(count))
        now += max(10.0, count / rate)


def waves(random: Random, rate: float) -> Iterator[float]:
    """Poisson arrivals [s] whose rate is 0.4 and 1.6 times ``rate`` by turns, five minutes each."""
    return square_wave(random, (0.4 * rate, 1.6 * rate), 300.0)


def _lognormal(inputs: ClippedLognormal, outputs: ClippedLognormal) -> Lengths:
    return lambda random: (inputs.draw(random), outputs.draw(random))


MIXES: dict[str, tuple[Callable[[Random, float], Iterator[float]], Lengths]] = {
    "ewsjf": (poisson, mixed_prompts(EWSJF_MIX, EWSJF_OUTPUT)),
    "reasoning": (poisson, _lognormal(ClippedLognormal(250, 697, 7000), ClippedLognormal(2300, 5640, 6000))),
    "two-lengths": (bursts, mixed_prompts(((0.5, 60, 60), (0.5, 6000, 6000)), 100)),
    "code": (poisson, _lognormal(*CODE)),
    "conversation": (poisson, _lognormal(*CONV)),
    "documents": (poisson, mixed_prompts(((1.0, 3000, 16_000),), 200)),
    "waves": (waves, _lognormal(ClippedLognormal(660, 3072, 7000), ClippedLognormal(150, 364, 1024))),
}


def write_mix(path: Path, count: int, rate: float, seed: int, kind: str = "ewsjf") -> None:
    """Writes a workload of :data:`MIXES` as a trace (Azure's columns): ``count`` requests, ``rate`` per second on the
    mean. *ewsjf* is that paper's main workload.

    Raises OSError where the file cannot be written.
    """
    arrivals, draw = MIXES[kind]
    gaps, lengths = Random(f"{seed} arrivals"), Random(f"{seed} prompts")
    start = datetime(2026, 1, 1)
    with path.open("w", encoding="utf-8") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at, _ in zip(arrivals(gaps, rate), range(count), strict=False):
            input_tokens, output_tokens = draw(lengths)
            out.write(
                f"{(start + timedelta(seconds=at)).isoformat(' ', 'microseconds')},{input_tokens},{output_tokens}\n"
            )


# --- who


def pick_tier(random: Random, tiers: Sequence[Tier]) -> Tier:
    """One of the tiers, by their shares."""
    at = random.random() * sum(tier.share for tier in tiers)
    for tier in tiers:
        at -= tier.share
        if at < 0:
            return tier
    return tiers[-1]


def open_loop(
    arrivals: Iterable[float],
    count: int,
    lengths: Lengths,
    tiers: Sequence[Tier],
    belief: Belief,
    *,
    length_stream: Random,
    tier_stream: Random,
    low_share: float = 0.0,
) -> list[SimRequest]:
    """``count`` requests that come whatever the system does. ``low_share`` of them are not important."""
    requests: list[SimRequest] = []
    for index, at in zip(range(count), arrivals, strict=False):
        given, out = lengths(length_stream)
        tier = pick_tier(tier_stream, tiers)
        important = low_share <= 0.0 or tier_stream.random() >= low_share
        requests.append(make_request(index, at, given, out, tier, belief, important=important))
    return requests


@dataclass(frozen=True, slots=True)
class Family:
    """Prompts that resemble each other: what SageSched's predictor learns is their output distribution."""

    name: str
    input_low: int
    input_high: int
    lengths: tuple[float, ...]  # increasing
    probabilities: tuple[float, ...]

    def belief(self, bound: int) -> Belief:
        mean = sum(v * p for v, p in zip(self.lengths, self.probabilities, strict=True))
        return Belief(mean, bound, self.lengths, self.probabilities)


def make_families(random: Random, count: int, values: int = 20) -> list[Family]:
    """Families of prompts like SageSched's three data sets: chat, summaries (long in, short out) and writing (short in,
    long out). 60 % are bimodal: the same prompt sometimes gets a short and sometimes a long answer.

    Each has an output distribution over ``values`` lengths. Synthetic: the paper prints none of its own.
    """
    kinds = (("chat", 30, 600, 250), ("summary", 600, 2400, 150), ("writing", 30, 400, 500))
    families = []
    for number in range(count):
        kind, low, high, scale = kinds[number % len(kinds)]
        centre = scale * random.lognormvariate(0.0, 0.8)
        modes = [(1.0, centre)]
        if random.random() < 0.6:
            modes = [(0.5, centre * 0.2), (0.5, centre * 1.8)]
        lengths: set[int] = set()
        while len(lengths) < values:
            at = random.random()
            _, mode = modes[0] if len(modes) == 1 or at < 0.5 else modes[1]
            lengths.add(max(1, min(4000, round(mode * random.lognormvariate(0.0, 0.25)))))
        shortest = random.randint(low, (low + high) // 2)
        families.append(
            Family(
                f"{kind}-{number}",
                shortest,
                shortest + (high - low) // 4,
                tuple(float(v) for v in sorted(lengths)),
                (1.0 / values,) * values,
            )
        )
    return families


def from_families(
    arrivals: Iterable[float], count: int, families: Sequence[Family], tier: Tier, random: Random, bound: int = 4096
) -> list[SimRequest]:
    """Requests of random families; each one's true output is drawn from the distribution that policies are told."""
    requests = []
    for index, at in zip(range(count), arrivals, strict=False):
        family = families[random.randrange(len(families))]
        out = int(random.choices(family.lengths, family.probabilities)[0])
        given = random.randint(family.input_low, family.input_high)
        requests.append(make_request(index, at, given, out, tier, family.belief(bound), label=family.name))
    return requests


class ClosedLoop:
    """Clients that send the next request when the last one is answered and they have thought about it.

    ``think_s``: mean of an exponential pause, 0 for none. Every client sends ``requests_each``.
    """

    def __init__(
        self,
        clients: int,
        requests_each: int,
        lengths: Lengths,
        tiers: Sequence[Tier],
        belief: Belief,
        random: Random,
        *,
        think_s: float = 0.0,
    ) -> None:
        if clients < 1 or requests_each < 1 or think_s < 0:
            raise ValueError("a closed loop needs clients, requests for each, and a pause of at least 0")
        self._left = [requests_each] * clients
        self._client_of: list[int] = []  # by index of the request
        self._lengths, self._tiers, self._belief, self._random = lengths, tiers, belief, random
        self._think_s = think_s

    def first(self) -> list[SimRequest]:
        """What the clients send to begin with."""
        requests = [self._ask(client, self._pause()) for client in range(len(self._left))]
        return sorted(requests, key=lambda request: request.arrival_fs)

    def after(self, ended: SimRequest, now_fs: int) -> SimRequest | None:
        """What the client whose request has just ended sends next; None when it has sent all."""
        client = self._client_of[ended.index]
        return self._ask(client, to_s(now_fs) + self._pause(), now_fs) if self._left[client] else None

    def _pause(self) -> float:
        return self._random.expovariate(1.0 / self._think_s) if self._think_s > 0 else 0.0

    def _ask(self, client: int, at_s: float, not_before_fs: int = 0) -> SimRequest:
        self._left[client] -= 1
        index = len(self._client_of)
        self._client_of.append(client)
        given, out = self._lengths(self._random)
        request = make_request(index, at_s, given, out, pick_tier(self._random, self._tiers), self._belief)
        request.arrival_fs = max(request.arrival_fs, not_before_fs)  # a float may lie a little before its instant
        return request
