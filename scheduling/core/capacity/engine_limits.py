"""How much of a replica may be used: what was typed in, bounded by what its engine says and by what it was seen to do.

Question: with how many slots and KV tokens is this replica offered, for requests of which length, and why?
A figure typed too large would let the queue move into the engine, where no policy reaches it. So the smaller of the two
holds. Where an engine does not say how many sequences it runs at once (vLLM says so only in its development mode), that
is learned: when requests of ours wait inside it for :data:`LOOKS` looks in a row while it runs the same number, then
that number is its limit (:class:`SlotLimit`). More is tried now and then, and given up where it only waits there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scheduling.core.capacity.prefill_credit import MAX_WAITING
from scheduling.core.types import BackendSpec

BY_ARRIVAL = (
    "the engine runs what waits in it in the order of arrival: start it with --scheduling-policy priority, so that it "
    "keeps the policy's order"
)
ESTIMATE_MARGIN = 1.25  # an estimate of a request's tokens may be so much too low
ROUNDING = 0.01  # of the KV cache: engines count it in blocks, people in thousands of tokens
LOOKS = 5  # in a row
STEP_MARGIN = 1.05  # a full step is measured to within a twentieth
STEP_QUANTUM = 256  # tokens: advised budgets are multiples, and none is less
KV_FULL = 0.8  # of a KV cache: beyond that a prompt may wait for room in it
GROW_S = 30.0  # without such a queue: a tenth beyond a learned limit is tried
MOST_PAUSE_S = 600.0  # until the next try, twice as long after each that only filled the engine's queue


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one server says of its limits, of all its engines together. None: it does not say."""

    slots: int | None = None  # sequences at once (--max-num-seqs)
    step_tokens: int | None = None  # tokens a step (--max-num-batched-tokens)
    max_model_len: int | None = None  # prompt and answer of one sequence [tokens]
    priority: bool | None = None  # it orders by ``priority`` (--scheduling-policy priority)
    kv_tokens: int | None = None  # KV cache [tokens]


@dataclass(slots=True)
class SlotLimit:
    """How many sequences an engine that does not say so was seen to run at once. Fed about once a second; seconds of
    one monotonic clock."""

    slots: int | None = None  # learned; None: nothing was
    _looks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=LOOKS))  # (running, ours that wait)
    _ran: int = 0  # at once, at most; what ``slots`` has beyond it is a try
    _grown_s: float = 0.0
    _pause_s: float = GROW_S  # until it is tried again

    def seen(self, running: int, waiting: int, leases: int, now_s: float, kv_usage: float | None = None) -> None:
        """A look at the engine. ``leases``: what we granted there. What others sent it is not ours to cut.
        ``kv_usage``: of its KV cache, 0 to 1, as far as it says: what waits for that waits for no slot."""
        looks = self._looks
        if waiting > MAX_WAITING and kv_usage is not None and kv_usage >= KV_FULL:
            looks.clear()
            return
        looks.append((running, min(waiting, leases - running)))
        most, least = max(r for r, _ in looks), min(r for r, _ in looks)
        queued = len(looks) == LOOKS and all(ours > MAX_WAITING for _, ours in looks)
        if queued and least > 0 and most - least <= 1 + most // 50:
            self._learned(most, now_s)
        elif self.slots is not None and most > self._ran:
            self._ran, self._pause_s = most, GROW_S
        elif self.slots is not None and self.slots > self._ran and self._in_vain():
            self._learned(self._ran, now_s)
        elif waiting > MAX_WAITING:
            self._grown_s = now_s
        elif self.slots is not None and leases >= self.slots and now_s - self._grown_s >= self._pause_s:
            self.slots += max(1, self.slots // 10)
            self._grown_s = now_s
            looks.clear()

    def _in_vain(self) -> bool:
        """Whether what is tried beyond the limit only waits in the engine: few do, but always some."""
        return len(self._looks) == LOOKS and all(ours > 0 for _, ours in self._looks)

    def _learned(self, slots: int, now_s: float) -> None:
        if self.slots is not None and self.slots > slots:  # tried in vain
            self._pause_s = min(MOST_PAUSE_S, 2.0 * self._pause_s)
        self.slots = self._ran = slots
        self._grown_s = now_s
        self._looks.clear()

    def forget(self) -> None:
        """Another engine may stand there now."""
        self.slots, self._ran, self._pause_s = None, 0, GROW_S
        self._looks.clear()


def in_force(spec: BackendSpec, facts: EngineFacts, learned: int | None, longest: int) -> tuple[BackendSpec, str]:
    """The replica as it may be used, and in words what was cut (empty: nothing). ``longest``: a sequence of the pool
    [tokens]; so much KV is left, so that one that is too long for the engine is refused by it and does not wait."""
    slots, kv, cuts = spec.slots, spec.kv_tokens, []
    if facts.slots is not None and facts.slots < slots:
        cuts.append(f"{facts.slots} slots instead of {slots}: the engine says that it runs no more (--max-num-seqs)")
        slots = facts.slots
    if learned is not None and learned < slots:
        cuts.append(f"{learned} slots instead of {slots}: it was seen to run no more at once while requests waited")
        slots = learned
    least = min(kv, longest)
    if facts.kv_tokens is not None and facts.kv_tokens < kv:
        cut = max(facts.kv_tokens, least)
        if cut < kv * (1.0 - ROUNDING):
            cuts.append(f"{cut:,} KV tokens instead of {kv:,}: the engine's cache holds {facts.kv_tokens:,}")
        kv = cut
    if (slots, kv) == (spec.slots, spec.kv_tokens):
        return spec, ""
    return replace(spec, slots=slots, kv_tokens=kv), "; ".join(cuts)


def longest_of(context: int | None, contexts: Iterable[int], longest: int) -> int:
    """KV tokens that one request may need on a replica whose engine's context is so long; 0: no bound. An engine
    refuses a longer one at once and as the client's fault, so that a replica with a shorter context than the others of
    its pool would have the least work, and draw all long requests. ``contexts``: those of all its replicas that are
    known, ``longest``: a sequence of the pool [tokens]. Where none takes more, the engine has the last word."""
    if context is None or context >= min(longest, max(contexts, default=0)):
        return 0
    return max(1, int(context / ESTIMATE_MARGIN))


def short_context(context: int | None, longest: int) -> str:
    """The advice where the engine's context is shorter than a sequence of the pool, and no replica has a longer one:
    such requests are taken, hold a slot and are refused by the engine. Empty where there is none."""
    if context is None or context >= longest:
        return ""
    return (
        f"the engine refuses requests of more than {context:,} tokens, and the pool takes up to {longest:,}: set the "
        f"pool's context length to {context}, or start the engine with a longer context"
    )


def slow_steps(step_tokens: int | None, full_s: float, tbt_s: float | None, reported: bool = True) -> str:
    """The advice where a full step takes longer than the SLO allows between tokens, since decoding requests wait for
    each step and no order can keep that promise; empty where there is none. ``full_s``: the measured time of a full
    step, 0: not known; ``tbt_s``: the strictest time between tokens of the pool's tiers; ``reported``: the engine says
    how many tokens its steps have, else they are those of the steps that were measured."""
    if not step_tokens or full_s <= 0 or tbt_s is None or full_s <= STEP_MARGIN * tbt_s:
        return ""
    in_time = int(step_tokens * tbt_s / full_s)
    advised = max(STEP_QUANTUM, min(in_time, step_tokens - 1) // STEP_QUANTUM * STEP_QUANTUM)
    what = (
        f"a full step of {step_tokens:,} tokens takes"
        if reported
        else (f"a step takes, while prompts wait and it has some {step_tokens:,} tokens,")
    )
    change = f"start the engine with --max-num-batched-tokens {advised}"
    if step_tokens <= STEP_QUANTUM:
        change = "smaller steps would hardly help, so promise a longer time or take a faster engine"
    return f"{what} {full_s:.2f} s, and an SLO of this pool allows {tbt_s:g} s between tokens: {change}"


def slow_tokens(token_s: float, tbt_s: float | None) -> str:
    """Likewise where even the mean time between tokens is longer; ``token_s``: as engines report it, 0: not known."""
    if tbt_s is None or token_s <= tbt_s:
        return ""
    return (
        f"a token takes {1e3 * token_s:.3g} ms on average, and the SLO allows {1e3 * tbt_s:g} ms: give the engine "
        "fewer slots, promise a longer time or take a faster engine"
    )
