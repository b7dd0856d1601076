"""What does an engine work on in its next step, and who gives way when its cache is full?

The answers of a scheduler that stands inside an engine, where ``scheduling.simulator`` and the vLLM plugin ask for
them: prompts in the policy's order, one after the other, over those that are begun and those that wait; an arrival may
make the prompt in progress give way between two chunks (QoServe 3.4: prefills only, and only if their own deadline
holds, ``core/policies/relegation.py``); what runs is ranked by what is left of it (SageSched 3.3).
How many prompt tokens a step takes is ``core/inside_engine/chunking.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from scheduling.core.inside_engine.order import HasDue
from scheduling.core.policies.contracts import Key, OrderingPolicy, RequestQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest

LOOK = 16  # waiting requests that one step plans for beside prompts that are begun

_FIELDS = tuple(field.name for field in fields(QueuedRequest))
_values_of = attrgetter(*_FIELDS)
_PREFILLED, _GENERATED = _FIELDS.index("prefilled"), _FIELDS.index("generated")


def progressed(queued: QueuedRequest, prefilled: int, generated: int) -> QueuedRequest:
    """The request with its progress, as policies see it; the same object where that is unchanged. Half the time of
    ``dataclasses.replace``, since engines ask at every arrival."""
    if queued.prefilled == prefilled and queued.generated == generated:
        return queued
    values = list(_values_of(queued))
    values[_PREFILLED], values[_GENERATED] = prefilled, generated
    return QueuedRequest(*values)


def place_among_running(policy: OrderingPolicy) -> Callable[[QueuedRequest], Key]:
    """Where a running request stands by a policy, smallest first: its key where the policy has one for each request,
    else rank and the moment it is due, else rank and arrival."""
    key: Any = getattr(policy, "key", None)
    if key is not None:
        place: Callable[[QueuedRequest], Key] = key
        return place
    if isinstance(policy, HasDue):
        due_s = policy.due_s
        return lambda request: (request.rank, due_s(request))
    return lambda request: (request.rank, request.arrival_s)


@dataclass(frozen=True, slots=True)
class Begun:
    """A prompt of which a part is computed; it holds its slot and its KV cache."""

    request: QueuedRequest
    context: int  # tokens computed
    left: int  # tokens to compute


@dataclass(slots=True)
class Shares:
    """Who gets how many of a step's prompt tokens, in that order."""

    room: int
    tokens: list[tuple[str, int]]
    current: str = ""  # whose prompt the step ends within
    waits: bool = False  # something that waits goes before what is begun
    blocked: bool = False  # ... and has no room


def hand_out(
    queue: RequestQueue,
    begun: Sequence[Begun],
    current: Begun | None,
    fits: Callable[[QueuedRequest], bool],
    room_at: Callable[[int], int],
    round_: Round,
    now_s: float,
) -> Shares:
    """Prompt tokens of the next step. ``queue`` is the policy's with what waits, as it is again afterwards.

    ``current`` goes on first; the others of ``begun`` and what waits take turns by the policy. ``fits`` books the slot
    and the KV cache of what waits, or says that there are none: then nobody passes it over, but what is begun goes on,
    the latest first. ``room_at`` says how many tokens the step takes, its first prompt having so many in the cache.
    """
    shares = Shares(0, [])
    others = {each.request.id: each for each in begun if each is not current}
    if current is not None:
        shares.room = room = room_at(current.context)
        room = _take(shares, current.request.id, current.left, room)
        if room <= 0 or not others:
            return shares
    else:
        room = -1
    for each in others.values():
        queue.push(each.request, now_s)
    looked: list[QueuedRequest] = []
    while room != 0 and len(looked) < LOOK:
        request = queue.select(round_, now_s)
        if request is None:
            break
        waiting = others.pop(request.id, None)
        if waiting is None:
            looked.append(request)
            if not fits(request):
                shares.blocked = True
                break
            shares.waits = True
            context, left = request.prefilled, request.input_tokens + request.generated - request.prefilled
        else:
            context, left = waiting.context, waiting.left
        if room < 0:
            shares.room = room = room_at(context)
        room = _take(shares, request.id, left, room)
    for each in reversed(others.values()):
        queue.discard(each.request.id)
        if room < 0:
            shares.room = room = room_at(each.context)
        if room > 0 and shares.blocked:
            room = _take(shares, each.request.id, each.left, room)
    for request in looked:
        queue.push(request, now_s)
    return shares


def _take(shares: Shares, name: str, left: int, room: int) -> int:
    taken = min(left, room)
    if taken > 0:
        shares.tokens.append((name, taken))
    if taken < left and not shares.current:
        shares.current = name
    return max(0, room - taken)


def last_first(running: Iterable[tuple[Key, int, str]], most: int = 1) -> list[str]:
    """The ``most`` requests that a full cache preempts, first victim first: the last by the policy, of equals the one
    admitted last. ``running``: place, order of admission (unique), id."""
    # Not heapq.nlargest: 80 us for 256 rows, of which sorting takes 8.
    return [max(running)[2]] if most == 1 else [name for _, _, name in sorted(running, reverse=True)[:most]]
