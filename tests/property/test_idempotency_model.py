"""Law: the scripts of ``Idempotency-Key`` and their Python reference model agree, and a key is never run twice at once.

Random walks over claim, hold, settle and release by two gateways, each call also made twice, as after a lost reply;
with time passing, a gateway that does not listen, and the state flushed. The broken variants at the end show that the
walks would notice: each is the real script with one protection taken out.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from scheduling.core.outcomes import Reason
from scheduling.state.idempotency import (
    CLAIM_MS,
    Claim,
    ClaimStatus,
    IdempotencyStore,
    KeepLimits,
    Ticket,
    load_idempotency_scripts,
    prefix_of,
)
from scheduling.state.resp import RespConnection
from scheduling.state.script import REDIS_CLOCK, Script
from scheduling.state.types import gateway_channel
from tests.reference.idempotency import ReferenceIdempotency
from tests.support.state_model import TEST_CLOCK, Ears, model_connection, variant

GATEWAYS = ("gw-idem-1", "gw-idem-2")
LIMITS = KeepLimits(kept_ms=60_000, keys=6, bytes=100)
KEYS = 9
_worlds = itertools.count(1)


def timed() -> dict[str, Script]:
    return {name: variant(s, REDIS_CLOCK, TEST_CLOCK) for name, s in load_idempotency_scripts().items()}


class World:
    """One tenant's keys on both sides. Raises AssertionError as soon as they differ or a law is broken."""

    def __init__(
        self, run: Callable[[Awaitable[Any]], Any], resp: RespConnection, scripts: dict[str, Script], ears: Ears
    ) -> None:
        self.tenant = f"model-{next(_worlds)}"
        self._run, self._resp, self._ears = run, resp, ears
        self.prefix = prefix_of(self.tenant).decode()
        self.now = 1_700_000_000_000
        self.stores = {g: IdempotencyStore(resp, g, LIMITS, scripts) for g in GATEWAYS}
        self.reference = ReferenceIdempotency(LIMITS, lambda: self.now, lambda g: gateway_channel(g) in ears.listening)
        self.holders: dict[str, tuple[str, int]] = {}  # key -> who was told to run it last, until when
        self.seen: set[str] = set()
        ears.listen({*map(gateway_channel, GATEWAYS)})
        self._clock()

    def ticket(self, key: int, body: int, request: int) -> Ticket:
        return Ticket(self.tenant, f"k{key}", f"print{body}", f"req_{key}_{request}")

    def claim(self, gateway: str, t: Ticket, again: bool) -> None:
        for _ in range(1 + again):
            mine, theirs = self.reference.claim(gateway, t), self._run(self.stores[gateway].claim(t))
            self._same("claim", mine, theirs)
            self.seen.add(f"{theirs.status}{' silent' * (not theirs.heard)}{' answer' * bool(theirs.answer)}")
            self._law(t, theirs)

    def _law(self, t: Ticket, claim: Claim) -> None:
        """Whoever is told to run is alone until its hold is over, it is released or the state is lost."""
        holder, until = self.holders.get(t.key, ("", 0))
        if claim.status is ClaimStatus.MINE:
            assert holder in ("", t.request_id) or until <= self.now, f"{t.key} runs twice"
            self.holders[t.key] = (t.request_id, self.now + CLAIM_MS if holder != t.request_id else until)

    def hold(self, gateway: str, tickets: list[Ticket], again: bool) -> None:
        for _ in range(1 + again):
            mine = self.reference.hold(gateway, tickets)
            theirs = self._run(self.stores[gateway].hold(self.tenant, tickets))
            self._same("hold", mine, theirs)
            for t, status in zip(tickets, theirs, strict=True):
                self.seen.add(f"hold {status}")
                if status == "held":
                    holder, until = self.holders.get(t.key, ("", 0))
                    assert holder in ("", t.request_id) or until <= self.now, f"{t.key} was taken from its holder"
                    self.holders[t.key] = (t.request_id, self.now + CLAIM_MS)

    def settle(self, gateway: str, t: Ticket, answer: bytes, again: bool) -> None:
        for _ in range(1 + again):
            mine = self.reference.settle(gateway, t, Reason.STOP, answer)
            theirs = self._run(self.stores[gateway].settle(t, Reason.STOP, answer))
            self._same("settle", mine, theirs)
            self.seen.add(f"settle {theirs}")
            if theirs:
                self.holders.pop(t.key, None)

    def release(self, t: Ticket, again: bool) -> None:
        for _ in range(1 + again):
            mine, theirs = self.reference.release(t), self._run(self.stores[GATEWAYS[0]].release(t))
            self._same("release", mine, theirs)
            self.seen.add(f"release {theirs}")
            if theirs:
                self.holders.pop(t.key, None)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self._clock()

    def flush(self) -> None:
        keys = self._run(self._resp.call("KEYS", self.prefix.replace("{", "[{]").replace("}", "[}]") + "*"))
        self._run(self._resp.call("DEL", *keys))
        self.reference.flush()
        self.holders.clear()
        self._clock()

    def listen(self, gateways: set[str]) -> None:
        self._ears.listen({*map(gateway_channel, gateways)})

    def _clock(self) -> None:
        self._run(self._resp.call("SET", self.prefix + "test_now", self.now))

    def _same(self, move: str, mine: Any, theirs: Any) -> None:
        assert theirs == mine, f"{move}: the server answers {theirs}, the reference model {mine}"
        self._run(self._compare(move))

    async def _compare(self, move: str) -> None:
        call, p = self._resp.call, self.prefix
        entries, answers, size, *sets = await asyncio.gather(
            call("HGETALL", p + "entries"),
            call("HGETALL", p + "answers"),
            call("GET", p + "bytes"),
            *(call("ZRANGE", p + name, 0, -1, "WITHSCORES") for name in ("running", "done", "kept")),
        )
        known = {k.decode(): v.decode() for k, v in zip(entries[::2], entries[1::2], strict=True)}
        kept = {k.decode(): v for k, v in zip(answers[::2], answers[1::2], strict=True)}
        running, done, order = [{k.decode(): int(v) for k, v in zip(s[::2], s[1::2], strict=True)} for s in sets]
        reference = self.reference.entries
        assert known == {k: e.words() for k, e in reference.items()}, f"after {move}"
        assert kept == {k: e.answer for k, e in reference.items() if e.answer}, f"after {move}"
        assert running == {k: e.ends_ms for k, e in reference.items() if e.reason is None}, f"after {move}"
        assert done == {k: e.ends_ms for k, e in reference.items() if e.reason is not None}, f"after {move}"
        assert order == {k: e.ends_ms for k, e in reference.items() if e.answer}, f"after {move}"
        assert int(size or 0) == sum(map(len, kept.values())) <= LIMITS.bytes, f"after {move}: the sum is wrong"
        assert len(done) <= LIMITS.keys
        lives = await asyncio.gather(*(call("PTTL", p + n) for n in ("entries", "running", "done", "kept", "answers")))
        assert all(ms == -2 or 0 < ms <= LIMITS.kept_ms + CLAIM_MS for ms in lives), "something would stay for ever"


def walk(world: World, seed: int, moves: int) -> None:
    rng = random.Random(seed)
    for _ in range(moves):
        gateway, again = rng.choice(GATEWAYS), rng.random() < 0.3
        t = world.ticket(rng.randrange(KEYS), int(rng.random() < 0.1), rng.randrange(3))
        [move] = rng.choices(
            ("claim", "hold", "settle", "release", "time", "flush", "listen"), (40, 15, 20, 10, 12, 1, 4)
        )
        match move:
            case "claim":
                world.claim(gateway, t, again)
            case "hold":
                more = {u.key: u for u in (world.ticket(rng.randrange(KEYS), 0, rng.randrange(3)) for _ in range(3))}
                world.hold(gateway, list(more.values()), again)
            case "settle":
                world.settle(gateway, t, b"x" * rng.choice((0, 10, 30, 60, 101)), again)
            case "release":
                world.release(t, again)
            case "time":
                world.pass_time(rng.choice((10, 1000, 3000, 9_999, 10_000, 30_000, 61_000)))
            case "flush":
                world.flush()
            case "listen":
                world.listen(set(rng.sample(GATEWAYS, rng.randrange(3))))


Make = Callable[..., World]


@pytest.fixture
def make_world(redis_url: str) -> Iterator[Make]:
    with model_connection(redis_url) as (run, resp, ears):
        yield lambda scripts=None: World(run, resp, scripts or timed(), ears)


@pytest.mark.parametrize("seed", range(4))
def test_scripts_and_reference_model_agree_after_every_one_of_five_hundred_random_moves(
    make_world: Make, seed: int
) -> None:
    walk(make_world(), seed, 500)


def test_the_walks_come_across_every_answer(make_world: Make) -> None:
    seen: set[str] = set()
    for seed in range(50, 54):
        world = make_world()
        walk(world, seed, 400)
        seen |= world.seen
    assert seen >= {"mine", "running", "running silent", "done", "done answer", "other", "hold held", "hold done",
                    "hold lost", "settle True", "settle False", "release True", "release False"}  # fmt: skip


def test_an_expired_hold_is_free_and_a_renewed_one_is_not(make_world: Make) -> None:
    world = make_world()
    first, second = world.ticket(0, 0, 1), world.ticket(0, 0, 2)
    world.claim(GATEWAYS[0], first, False)
    for _ in range(5):
        world.pass_time(CLAIM_MS - 1)
        world.hold(GATEWAYS[0], [first], False)
    world.claim(GATEWAYS[1], second, False)
    assert world.seen == {"mine", "hold held", "running"}
    world.pass_time(CLAIM_MS)
    assert world._run(world.stores[GATEWAYS[1]].claim(second)).status == "mine"


BAD = {
    "a body is not compared": ("claim", "x.print ~= print", "false"),
    "a running key is given again": ("claim", "x.request ~= request", "false"),
    "an expired hold stays": ("claim", "if ends <= now then", "if false then"),
    "a hold is taken from its holder": ("hold", "x and x.request ~= request", "false"),
    "another's key is settled": ("settle", "if x and x.request ~= request then return 'lost' end", ""),
    "answers are not counted": ("settle", "call('INCRBY', BYTES, #answer)", ""),
    "answers are not bounded": ("settle", "(tonumber(call('GET', BYTES)) or 0) <= max_bytes", "true"),
    "keys are not bounded": ("settle", "call('ZCARD', DONE) <= max_keys", "true"),
    "another's key is released": ("release", "x.request ~= ARGV[2]", "false"),
    "a dropped answer is still counted": ("release", "call('DECRBY', BYTES, size) <= 0", "false"),
}


@pytest.mark.parametrize("bad", BAD)
def test_the_walks_notice_a_script_without_one_of_its_protections(make_world: Make, bad: str) -> None:
    name, old, new = BAD[bad]
    scripts = timed()
    scripts[name] = variant(scripts[name], old, new)

    def walks() -> None:
        for seed in range(10):
            walk(make_world(scripts), seed, 300)

    with pytest.raises(AssertionError):
        walks()
