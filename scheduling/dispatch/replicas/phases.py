"""Prefill and decode apart, as a pool's leader offers its replicas.

Requests are granted to replicas that write answers: *decode* ones, and those that do *both*. A decode replica gets them
only while a prefill replica serves; its prefill credit is its share of what the prefill replicas have
(:mod:`scheduling.core.placement.legs`). Prefill replicas are in shared state by themselves, for gateways that need one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduling.core.capacity.engine_limits import BY_ARRIVAL, longest_of, short_context
from scheduling.core.engine.token_time import compare
from scheduling.core.placement.legs import share
from scheduling.core.placement.rule import relative_speed
from scheduling.core.types import BackendSpec, Phase, PoolView
from scheduling.dispatch.replicas.watched import WatchedBackend, facts_of, limits_of, offer_of, serves

_LACKS = {
    Phase.DECODE: "no decode replica of its pool serves: nothing takes over what it would compute",
    Phase.PREFILL: "no prefill replica of its pool serves: nothing computes the prompts of its answers",
}


class Phases:
    """``backends`` is the monitor's own dictionary: it changes there."""

    def __init__(self, backends: Mapping[str, WatchedBackend]) -> None:
        self._backends = backends

    @property
    def apart(self) -> bool:
        return any(b.spec.phase is not Phase.BOTH for b in self._backends.values())

    def answers(self, backend: WatchedBackend) -> bool:
        """Whether requests may be granted to it."""
        if not serves(backend) or backend.spec.phase is Phase.PREFILL:
            return False
        return backend.spec.phase is Phase.BOTH or bool(self._serving(Phase.PREFILL))

    def lacks(self, backend: WatchedBackend) -> str:
        """Why it serves nothing although it is well; empty where it does."""
        phase = backend.spec.phase
        if phase is Phase.BOTH or not serves(backend):
            return ""
        other = Phase.DECODE if phase is Phase.PREFILL else Phase.PREFILL
        return "" if self._serving(other) else _LACKS[other]

    def alone(self, backend: WatchedBackend) -> bool:
        """Whether no other replica that serves does what it does."""
        return not any(b is not backend for b in self._serving(backend.spec.phase))

    def in_force(self, backend: WatchedBackend) -> tuple[BackendSpec, str]:
        """Its limits, with its share of the prefill credit where others compute its prompts; and in words what is less
        than was typed, or not as it should be started."""
        spec, cut = limits_of(backend)
        spec = self._bounded(backend, self._shared(spec))
        context = short_context(backend.context, backend.longest)
        if spec.longest:
            context = (
                f"requests of up to {spec.longest:,} tokens: its context is {backend.context:,}, and others' longer"
            )
        ordered = backend.kind.takes_digest or facts_of(backend).priority is not False
        return spec, "; ".join(words for words in (cut, context, "" if ordered else BY_ARRIVAL) if words)

    def offer(self, backend: WatchedBackend) -> BackendSpec:
        """The limits within which it is granted requests now."""
        return self._paced(self._bounded(backend, self._shared(offer_of(backend))))

    def slots(self) -> dict[str, int]:
        """Of the prefill replicas that may compute prompts now."""
        now_s = asyncio.get_running_loop().time()
        able = (b for b in self._serving(Phase.PREFILL) if not b.doubted)
        offered = {b.spec.id: b.outlier.offered(limits_of(b)[0].slots, now_s) for b in able}
        return {name: slots for name, slots in offered.items() if slots > 0}

    def compare(self) -> None:
        """How fast those are that write answers, beside each other; called once a second."""
        now_s = asyncio.get_running_loop().time()
        for phase in (Phase.BOTH, Phase.DECODE):
            compare(now_s, [(b.token_time, self._typed_speed(b.spec)) for b in self._alike(phase)])

    def limited(self, view: PoolView, waits: bool) -> None:
        """What prefill replicas lack shows at the decode replicas, where requests wait for their credit."""
        seen = [view.backends.get(b.spec.id) for b in self._serving(Phase.DECODE)]
        usual = next((b.credit for b in self._backends.values()), None)
        binds = waits and usual is not None and any(v is not None and usual.lacked_at(v) for v in seen)
        for backend in self._backends.values():
            if backend.spec.phase is not Phase.BOTH:
                backend.limited = binds and backend.spec.phase is Phase.PREFILL

    def _typed_speed(self, spec: BackendSpec) -> int:
        """Of those that do what it does, as they were typed in: what ``manage.py calibrate`` measures."""
        return relative_speed(spec.tokens_per_s, [b.spec.tokens_per_s for b in self._alike(spec.phase)])

    def _alike(self, phase: Phase) -> list[WatchedBackend]:
        """Those that do the same and go on doing it; one that is away for a moment is among them."""
        return [b for b in self._backends.values() if b.spec.phase is phase and not b.spec.draining]

    def _serving(self, phase: Phase) -> list[WatchedBackend]:
        return [b for b in self._backends.values() if b.spec.phase is phase and serves(b)]

    def _bounded(self, backend: WatchedBackend, spec: BackendSpec) -> BackendSpec:
        """With the length of requests that it takes: what one takes that is away for a moment waits for it."""
        contexts = [b.context for b in self._alike(spec.phase) if b.context is not None]
        bound = longest_of(backend.context, contexts, backend.longest)
        return replace(spec, longest=bound) if bound else spec

    def _paced(self, spec: BackendSpec) -> BackendSpec:
        """With its speed, of those that do what it does: as its answers show, or where they do not, as it was typed
        in."""
        time = self._backends[spec.id].token_time
        speed = time.speed or self._typed_speed(spec)
        if (speed, time.token_us) == (spec.speed, spec.token_us):
            return spec
        return replace(spec, speed=speed, token_us=time.token_us)

    def _shared(self, spec: BackendSpec) -> BackendSpec:
        if spec.phase is not Phase.DECODE:
            return spec
        having = [limits_of(b)[0] for b in self._serving(Phase.PREFILL)]
        sharers = len(self._serving(Phase.DECODE))
        return replace(
            spec,
            prefill_tokens=share((one.prefill_tokens for one in having), sharers),
            step_tokens=share((one.step_tokens for one in having), sharers),
        )


def slots_wanted(backends: Iterable[WatchedBackend], phase: Phase) -> int:
    """Slots of one phase's replicas that serve or are being woken."""
    able = (b for b in backends if b.spec.phase is phase and (serves(b) or b.woken_s is not None))
    return sum(limits_of(b)[0].slots for b in able)
