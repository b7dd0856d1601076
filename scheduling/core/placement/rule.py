"""Where a request runs, by what is outstanding there and by what of its prompt is likely to be cached there.

One rule for everybody: the ``admit`` script (``choose`` in ``scripts/shared/placement.lua``, which says it in Lua), its
reference model, the leader's router and the simulator. A prompt is known by *points*: chained hashes of its beginning,
each of all that is before it, as an engine's prefix cache has them for its blocks. An index says of a point on which
replicas prompts with that beginning ran last. With each point goes how many tokens are before it (:func:`located`). The
deepest point that names a replica says what is expected to be cached there (:func:`expected`), and so what it is worth
to run there, in tokens of outstanding work (:func:`worth`).

**The rule.** Of the replicas with room whose outstanding work is at most ``skew`` tokens above the least (or as much as
the mean, where that is more): the one with the smallest outstanding work, less what it is worth to run there. Work
counts by how long it takes (:attr:`BackendView.load_tokens`): on a replica of half the speed, twice. Ties:
fewest running, then rendezvous hashing of the first point, so that prompts which nobody knows spread over idle replicas
and every gateway sends the same beginning to the same one. A request without points: the least outstanding work, then
fewest running, then name.

A prefix that is asked for more than one replica can take spills over to the next, is cached there too, and from then
on both are equal but for their work: what all share does not unbalance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduling.core.types import FULL_SPEED, BackendView

GAIN: Final = 48  # outstanding tokens that a cached token of a conversation that goes on is worth at most
HALF_GAIN_TOKENS: Final = 4096  # half of that where so many are cached
FIRST_GAIN: Final = 4  # and that a cached token of any other prompt is worth
SKEW_TOKENS: Final = 98_304  # outstanding tokens that a replica may have above the least loaded, unless configured
POINTS_KEPT: Final = 16_384  # of one generation of the index; there are two
PLACES_KEPT: Final = 4  # replicas of a point, the last first
NAME_CHARS: Final = 12  # of a point's hash, in hex: 48 bits
POINT_CHARS: Final = NAME_CHARS + 5  # and its tokens, in hex
TOKEN_BYTES: Final = 5  # of a text, to a token: more than most have
MAX_DEPTH: Final = 0xFFFFF  # tokens before a point
MAX_WORTH: Final = 0xFFFFF  # of what is cached, however much it is
MAX_SKEW: Final = 1 << 52  # numbers of scripts lose their last bit above 2^53
SLOWEST: Final = 10  # per mille of the fastest replica that one counts as at least: measuring may go wrong

Point = tuple[str, int]  # name, and how many of the prompt's tokens are before it


def write_points(skew: float, points: Iterable[Point], goes_on: bool = True) -> str:
    """``QueuedRequest.prefixes``: ``<skew, hex>:`` and ``POINT_CHARS`` for each point. The last bit of the skew names
    the rule for the worth of cached tokens (:func:`worth`): 0 in a conversation that goes on."""
    known = int(min(skew, MAX_SKEW)) & ~1 | (not goes_on)
    return f"{known:x}:" + "".join(f"{n}{min(tokens, MAX_DEPTH):05x}" for n, tokens in points)


def worth(cached: int, goes_on: bool) -> int:
    """How many tokens of outstanding work more a replica may have for so many cached ones.

    More than are cached, as replicas work on all that is outstanding together, and a miss costs twice: what is computed
    again takes the place of what others would have found. A conversation that goes on, and what may be one, finds most
    of itself on one replica only, and the more so the longer it is. A prompt that begins a conversation shares its
    beginning with others (a system message, a document), and what is shared is soon cached everywhere: such prompts
    spread. The constants were measured: docs/results/placement.md.
    """
    value = GAIN * cached * cached // (cached + HALF_GAIN_TOKENS) if goes_on else FIRST_GAIN * cached
    return min(value, MAX_WORTH)


def located(depths: Sequence[tuple[str, int]], whole: int, tokens: int) -> list[Point]:
    """Points from how deep they stand in a prompt of ``whole`` bytes and of so many ``tokens``.

    What is behind a point has at least a token for ``TOKEN_BYTES`` of it, however few the whole prompt has for its
    length: what is before it may be blank, or nothing that a template shows.
    """
    return [
        (name, max(0, min(depth * tokens // whole, tokens - (whole - depth) // TOKEN_BYTES))) for name, depth in depths
    ]


def expected(points: Sequence[Point], at: int) -> int:
    """Tokens expected to be cached where a prompt with this point ran, but none with the next one: half of what is
    between the two."""
    return (points[at][1] + points[min(at + 1, len(points) - 1)][1]) // 2


def read_points(text: str) -> tuple[int, list[Point]]:
    """``(skew, points)``; raises ValueError for anything that ``write_points`` did not write."""
    skew, _, rest = text.partition(":")
    starts = range(0, len(rest), POINT_CHARS)
    return int(skew, 16), [
        (rest[at : at + NAME_CHARS], int(rest[at + NAME_CHARS : at + POINT_CHARS], 16)) for at in starts
    ]


def points_up_to(text: str, tokens: int) -> str:
    """``QueuedRequest.prefixes`` without the points before which more than so many tokens are."""
    skew, points = read_points(text) if text else (0, [])
    kept = [point for point in points if point[1] <= tokens]
    return write_points(skew, kept, not skew & 1) if kept else ""


@dataclass(frozen=True, slots=True)
class Warmth:
    """What is believed to be cached of one prompt."""

    skew: float
    seed: str  # the prompt's first point
    worth: Mapping[str, int] = field(default_factory=dict)  # to run there [tokens of outstanding work], by replica
    points: Mapping[str, Point] = field(default_factory=dict)  # the deepest that is known there, by replica
    expected: Mapping[str, int] = field(default_factory=dict)  # to be cached there [tokens], by replica

    def cached(self, replica: str) -> int:
        """Tokens of the prompt that are expected to be cached there."""
        return self.expected.get(replica, 0)

    @property
    def most_cached(self) -> int:
        """Likewise, where the most are."""
        return max(self.expected.values(), default=0)


def place(fit: Sequence[BackendView], warmth: Warmth | None = None) -> BackendView | None:
    """The replica by the rule above, of those that have room (``fit``)."""
    if not fit:
        return None
    if warmth is None:
        return min(fit, key=lambda b: (b.load_tokens, b.running, b.id))
    load = [b.load_tokens for b in fit]
    most = min(load) + max(warmth.skew, sum(load) / len(load))
    ranked = [(b.load_tokens - warmth.worth.get(b.id, 0), b.running, b) for b in fit if b.load_tokens <= most]
    score, running, _ = min(ranked, key=lambda r: r[:2])
    equal = [b for s, n, b in ranked if s == score and n == running]
    return equal[0] if len(equal) == 1 else min(equal, key=lambda b: rendezvous(warmth.seed, b.id))


def relative_speed(tokens_per_s: float, of_all: Collection[float]) -> int:
    """A replica's speed, per mille of the fastest, from what those of its pool were measured to process [tokens/s].
    All count as equally fast where one of them was not measured (0)."""
    if min(of_all, default=0.0) <= 0 or not math.isfinite(max(of_all)):
        return FULL_SPEED
    return max(SLOWEST, min(FULL_SPEED, round(FULL_SPEED * tokens_per_s / max(of_all))))


def rendezvous(seed: str, name: str) -> str:
    """The smallest over all replicas is the one for a seed: whoever computes it agrees, and a replica that comes or
    goes moves only its own share (Thaler and Ravishankar 1998). SHA-1 because Redis has it; it keeps no secret."""
    return hashlib.sha1(f"{seed}{name}".encode(), usedforsecurity=False).hexdigest()


class PrefixIndex:
    """Which replicas ran prompts with a point, the last first. Bounded: when a generation is full the one before it is
    forgotten; what is used moves into the new one."""

    def __init__(self, kept: int = POINTS_KEPT) -> None:
        self.kept = kept
        self.now: dict[str, str] = {}  # replicas of a point, a space between them
        self.before: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.now) + len(self.before)

    def warmth(self, prefixes: str) -> Warmth | None:
        """What ``QueuedRequest.prefixes`` says is cached where; None for a request without points."""
        if not prefixes:
            return None
        skew, points = read_points(prefixes)
        found: dict[str, int] = {}
        for at, (name, _) in enumerate(points):  # the deepest comes last
            found.update(dict.fromkeys((self.now.get(name) or self.before.get(name) or "").split(), at))
        tokens = {replica: expected(points, at) for replica, at in found.items()}
        return Warmth(
            skew,
            points[0][0],
            {replica: worth(cached, not skew & 1) for replica, cached in tokens.items()},
            {replica: points[at] for replica, at in found.items()},
            tokens,
        )

    def ran(self, prefixes: str, replica: str) -> None:
        """A request with these points was granted there."""
        if prefixes:
            for name, _ in read_points(prefixes)[1]:
                replicas = (self.now.get(name) or self.before.get(name) or "").split()
                self.now[name] = " ".join([replica, *(k for k in replicas if k != replica)][:PLACES_KEPT])
            self._turn()

    def learn(self, places: Mapping[str, str]) -> None:
        """What another index says of points."""
        self.now.update(places)
        self._turn()

    def _turn(self) -> None:
        if len(self.now) > self.kept:
            self.now, self.before = {}, self.now
