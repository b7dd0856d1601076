"""Clients order their own requests, and nobody else's.

Question: an entitlement's turn has come: which of its requests takes it?
Formula: the policy, with everything around it, orders *places*: each waiting request brings one, with the figures of
its contract and none of its client's hints. When a place's turn has come, the request that stands there goes, unless
another one of the same entitlement is wanted sooner by its client (a lower ``client_priority``, or with the same one a
hinted deadline before the other's), needs no more (``needs_no_more``) and has room: then that one goes, and the two
change places. Who gave a turn away takes the next one that it can of those with no hint, so that all move one turn
back. The order of places, which is all that other entitlements ever meet, is the same with hints and without, and by no
turn has an entitlement taken more than it would have taken without them.
Inputs: ``client_priority``, ``hint_deadline_s``; KV, prompt and expected output.
Cost: O(log n) per call, and at most ``LOOK_PAST`` requests looked at in a turn; where nobody hints it is the queue
inside.

It stands outermost, in :class:`scheduling.core.scheduler.loop.Scheduler`, so that it holds for every policy and
modifier.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import inf

from scheduling.core.deadline import ordering_deadline_s
from scheduling.core.policies.contracts import QueuePart, RequestQueue, Shares, counts_service, parts_of, shares_of
from scheduling.core.policies.queues.keyed import LOOK_PAST
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest, ServiceClass

RAN_KEPT = 32_768  # requests that left from another's place and may come back or be settled

# client priority, hinted deadline, number of the turn that it gave away first, arrival, arrival number, id: who is
# wanted sooner comes first
_Wish = tuple[int, float, float, float, int, str]


def needs_no_more(request: QueuedRequest, than: QueuedRequest) -> bool:
    """Whether ``request`` needs no more room than ``than``, what is cached aside, and is expected to use no more of
    anything."""
    return (
        request.kv_tokens <= than.kv_tokens
        and request.input_tokens <= than.input_tokens
        and request.output_tokens <= than.output_tokens
        and not request.exclude_backend
        and request.service_class is than.service_class
        and request.concurrency == than.concurrency
        and not (request.prefilled or request.generated or than.prefilled or than.generated)
    )


class HintedTurns:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` around another, in which places wait under ids of
    requests."""

    def __init__(self, inside: RequestQueue) -> None:
        self._inside = inside
        self._waiting: dict[str, QueuedRequest] = {}
        self._wish_of: dict[str, _Wish] = {}
        self._wishes: dict[str, list[_Wish]] = {}  # by entitlement, sorted
        self._given = 0  # turns given away
        self._hinted = 0  # of those that wait
        self._at: dict[str, tuple[QueuedRequest, QueuedRequest]] = {}  # id of a place that changed hands: it, who waits
        self._place_of: dict[str, str] = {}  # request id -> id of the place, for those in ``_at``
        self._left_from: dict[str, QueuedRequest] = {}  # granted request -> the place, where it was not its own
        self._left_by: dict[str, str] = {}  # and the other way round
        self._last: tuple[str, QueuedRequest, bool] | None = None  # selected last, its place, whether by a hint
        self._round: Round | None = None  # it was asked in last
        self._asked: Round | None = None  # what the queue inside is asked in: about who stands at its places

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._waiting.values())

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        return parts_of(self._inside, "", now_s)

    def explain(self, request: QueuedRequest) -> str:
        note = f", client priority {request.client_priority}" if request.client_priority else ""
        if self._last is not None and self._last[0] == request.id:
            _, place, hinted = self._last
            return self._inside.explain(place) + note + (", by its client's hint" if hinted else "")
        name = self._place_of.get(request.id)
        return self._inside.explain(request if name is None else self._at[name][0]) + note

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        # One that comes back takes the place it left from: what was counted for it was counted there.
        left = self._forget_run(request.id)
        name = request.id if left is None else left.id
        while name in self._at or (name in self._waiting and name not in self._place_of):
            name += "~"  # another one stands at the place of that name
        place = request
        if name != request.id:
            begun = request.prefilled or request.generated
            place = replace(request if left is None or begun else left, id=name)
            self._at[name] = (place, request)
            self._place_of[request.id] = name
        self._waiting[request.id] = request
        self._hinted += _is_hinted(request)
        self._want(request, inf)
        self._inside.push(place, now_s)

    def discard(self, request_id: str) -> bool:
        request = self._waiting.get(request_id)
        if request is None:
            return False
        name = self._place_of.pop(request_id, request_id)
        self._at.pop(name, None)
        self._drop(request)
        return self._inside.discard(name)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        asked = self._asked
        if asked is None or round_ is not self._round:
            self._round = round_
            asked = self._asked = self._about_who_stands_there(round_) if self._hinted or self._at else round_
        place = self._inside.select(asked, now_s)
        if place is None:
            return None
        reordered = asked is not round_ and bool(self._hinted or self._at)
        stands = self._at.pop(place.id, None)
        owner = self._waiting[place.id] if stands is None else stands[1]
        chosen = self._wanted(owner, round_) if reordered else owner
        self._place_of.pop(owner.id, None)
        if chosen is not owner:
            name = self._place_of.pop(chosen.id, chosen.id)
            given = self._at.get(name)
            self._at[name] = (chosen if given is None else given[0], owner)
            self._place_of[owner.id] = name
            self._given += 1
            before = self._want_no_more(owner)
            self._want(owner, min(before[2], self._given))
        self._drop(chosen)
        if chosen.id != place.id:
            self._remember_run(chosen.id, place)
        self._last = (chosen.id, place, chosen is not owner)
        return chosen

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        left = self._forget_run(request_id)
        name = request_id if left is None else left.id
        # Where another one left from the place of that name, what is counted there is not this one's.
        if not counts_service(self._inside) or name in self._left_by:
            return False
        return self._inside.settle(name, input_tokens, output_tokens)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        yield from shares_of(self._inside, service_class)

    def refill(self, inside: RequestQueue, now_s: float) -> None:
        """Moves everything that waits into an empty queue in another order; who has whose place stays."""
        self._inside = inside
        self._round = self._asked = self._last = None
        self._left_from.clear()
        self._left_by.clear()
        for request in self._waiting.values():
            name = self._place_of.get(request.id)
            inside.push(request if name is None else self._at[name][0], now_s)

    def _about_who_stands_there(self, round_: Round) -> Round:
        at, fits = self._at, round_.fits

        def who_stands_fits(place: QueuedRequest) -> bool:
            stands = at.get(place.id)
            return fits(place if stands is None else stands[1])

        return round_.asking(who_stands_fits)

    def _wanted(self, owner: QueuedRequest, round_: Round) -> QueuedRequest:
        """The request that takes the turn of ``owner``: one of the same entitlement that needs no more room, and has
        it: of what ``owner`` needs, some may be cached where it has room."""
        mine = self._wish_of[owner.id]
        for wish in islice(self._wishes[owner.entitlement], LOOK_PAST):
            other = self._waiting[wish[-1]]
            if other is owner or wish[0] > mine[0] or (wish[0] == mine[0] and wish[1] == wish[2] == inf):
                break
            if _goes_before(wish, other, mine, owner) and needs_no_more(other, than=owner) and round_.has_room(other):
                return other
        return owner

    def _want(self, request: QueuedRequest, given: float) -> None:
        hint = inf if request.hint_deadline_s is None else request.hint_deadline_s
        wish = (request.client_priority, hint, given, request.arrival_s, request.seq, request.id)
        self._wish_of[request.id] = wish
        insort(self._wishes.setdefault(request.entitlement, []), wish)

    def _want_no_more(self, request: QueuedRequest) -> _Wish:
        wish = self._wish_of.pop(request.id)
        wishes = self._wishes[request.entitlement]
        del wishes[bisect_left(wishes, wish)]
        if not wishes:
            del self._wishes[request.entitlement]
        return wish

    def _drop(self, request: QueuedRequest) -> None:
        """It waits no longer."""
        del self._waiting[request.id]
        self._hinted -= _is_hinted(request)
        self._want_no_more(request)

    def _remember_run(self, request_id: str, place: QueuedRequest) -> None:
        self._left_from[request_id] = place
        self._left_by[place.id] = request_id
        if len(self._left_from) > RAN_KEPT:
            self._forget_run(next(iter(self._left_from)))

    def _forget_run(self, request_id: str) -> QueuedRequest | None:
        """The place that a granted request left from, where it was not its own."""
        place = self._left_from.pop(request_id, None)
        if place is not None:
            self._left_by.pop(place.id, None)
        return place


def _is_hinted(request: QueuedRequest) -> bool:
    return request.client_priority != 0 or request.hint_deadline_s is not None


def _goes_before(wish: _Wish, request: QueuedRequest, mine: _Wish, owner: QueuedRequest) -> bool:
    """Whether its client wants ``request`` before ``owner``, whose turn it is by the policy."""
    if wish[0] != mine[0]:
        return wish[0] < mine[0]
    hinted_s, mine_s = wish[1], mine[1]
    if hinted_s < inf:
        return hinted_s < (mine_s if mine_s < inf else ordering_deadline_s(owner))
    if mine_s < inf:
        return wish[2] < inf and ordering_deadline_s(request) <= mine_s
    return wish[2] < mine[2]  # it gave a turn away earlier
