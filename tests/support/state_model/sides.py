"""One pool on both sides, and how they are compared."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from scheduling.core.admission.key_limits import Limited, Scope, write_limits
from scheduling.core.admission.rule import MAX_TOLD_MS
from scheduling.core.placement.rule import write_points
from scheduling.core.types import (
    EntitlementSpec,
    Estimate,
    PoolSpec,
    QueuedRequest,
)
from scheduling.state.resp import RespConnection
from scheduling.state.script import Script
from scheduling.state.store import NO_CAP, PoolStore
from scheduling.state.types import (
    EJECTED_CHANNEL,
    Admission,
    AdmissionStatus,
    Fenced,
    RequestFacts,
    gateway_channel,
    leader_channel,
)
from tests.reference.memory import Dump
from tests.reference.pool import ReferencePool
from tests.support.state_model.dump import DUMP, read_dump
from tests.support.state_model.laws import Laws
from tests.support.state_model.listeners import Ears
from tests.support.state_model.members import (
    ADAPTERS,
    CAPS,
    DEADLINES_S,
    ENTITLEMENTS,
    GATEWAYS,
    HOLDERS,
    KEY_LIMITS,
    PACES_US,
    POOL,
    SPARING,
    USER_LIMITS,
    WHOLE,
)
from tests.support.state_model.scripts import AGAIN, LONG, POINTS, USERS
from tests.support.state_world import FACTS, estimate, request

_worlds = itertools.count(1)


class Sides(Laws):
    """One pool on both sides. Raises AssertionError as soon as they differ or a law is broken."""

    def __init__(
        self, run: Callable[[Awaitable[Any]], Any], resp: RespConnection, scripts: dict[str, Script], ears: Ears
    ) -> None:
        self.pool_id = f"model-{next(_worlds)}"
        self._run = run
        self._resp = resp
        self._prefix = f"qm:{{{self.pool_id}}}:"
        self.now = 1_700_000_000_000
        self.server = PoolStore(resp, self.pool_id, scripts=scripts)
        self.reference = ReferencePool(self.pool_id, lambda: self.now, self._published, self._listens)
        self.reference.places.kept = POINTS
        self.reference.users_tracked = USERS
        self.reference.long_tokens = LONG
        self.reference.least_again = AGAIN
        self._ears = ears
        self._told: list[tuple[str, bytes]] = []  # what the reference model published and Redis has yet to deliver
        self.listen(set(GATEWAYS))
        self.floor = 0  # what the database would remember
        self.epochs = dict.fromkeys(HOLDERS, 0)  # what each leader believes
        self._read = {"events": "-", "ledger": "-"}  # how far the streams were compared
        self._ended_at: dict[str, int] = {}
        self._lost: set[str] = set()  # swept, and not put right
        self.seen: set[tuple[str, str]] = set()  # (move, answer) that came up
        self._set_clock()
        self._last = self.reference.dump()

    # --- who and what

    def spec_of(self, n: int) -> EntitlementSpec:
        return ENTITLEMENTS[n % len(ENTITLEMENTS)]

    def cap_of(self, n: int) -> int:
        return CAPS[self.spec_of(n).id] or NO_CAP

    @property
    def led(self) -> bool:
        return self.reference._decided(self.now)

    def roomy(self) -> list[str]:
        """Replicas with a free slot."""
        return [
            b for b, (slots, *_) in self.reference.ready.items() if self.reference.totals.get(f"b:{b}:run", 0) < slots
        ]

    def facts_of(self, n: int) -> RequestFacts:
        """Some answers are whole: nobody sees their first token. Some keys have limits, and users of them."""
        facts = WHOLE if n % 4 == 0 else FACTS
        return dataclasses.replace(facts, limits=self.limits_of(n))

    def limits_of(self, n: int) -> str:
        """Two keys of an entitlement, six users of each; half of the requests have no limits."""
        at, scopes = self.spec_of(n).id, list[Scope]()
        if n % 4 == 1:
            scopes.append(Scope(f"{at}:k:key{n % 2}", KEY_LIMITS[n % 3]))
        if n % 8 in (1, 3):
            scopes.append(Scope(f"{at}:uk:key{n % 2}:{n // 8 % 6}", USER_LIMITS[n % 3]))
        if n % 16 == 3:
            scopes.append(Scope(f"{at}:up:team:{n // 8 % 6}", USER_LIMITS[0]))
        return write_limits(Limited(self.estimate_of(n).cost_tokens, tuple(scopes)))

    def pool_of(self, n: int) -> PoolSpec:
        """Some requests meet the pool with headroom, some without: a setting may change at any time."""
        return SPARING if n % 7 == 0 else POOL

    def estimate_of(self, n: int) -> Estimate:
        """Of whole answers every third is none: its prompt is only read."""
        return estimate(40 + 17 * (n % 5), 0 if n % 12 == 8 else 30 + 11 * (n % 7))

    def prefixes_of(self, n: int) -> str:
        """Prompts begin with one of three system messages, some go on alike; every fifth is too short to tell."""
        tokens = self.estimate_of(n).input_tokens
        points = [(f"{n % 3:012x}", tokens // 4), (f"{n % 9 + 16:012x}", tokens // 2), (f"{n + 256:012x}", tokens)]
        return "" if n % 5 == 0 else write_points(60 if n % 2 else 10**6, points, goes_on=n % 4 > 1)

    def told_of(self, n: int) -> tuple[str, int]:
        """What a leader believes to be cached of a prompt: nothing of every third."""
        return (f"{n % 3:012x}", (1, 20, 70, 400)[n % 4]) if n % 3 else ("", 0)

    def sequences_of(self, n: int) -> int:
        """Most requests have one answer, some several."""
        return 16 if n % 29 == 14 else {4: 2, 7: 3}.get(n % 13, 1)

    def request_of(self, n: int, attempt: int | None = None) -> QueuedRequest:
        name = f"r{n}"
        e = self.reference.held.get(name) or self.reference.queue.get(name)
        current = e.attempt if e else 1
        return request(
            name, self.spec_of(n), self.estimate_of(n), gateway=GATEWAYS[n % 2], seq=e.seq if e else n,
            attempt=current if attempt is None else attempt, prefixes=self.prefixes_of(n), rank=n // 4 % 3,
            adapter=ADAPTERS[n // 8 % 2] if n % 8 == 5 else "", sequences=self.sequences_of(n),
            pace_us=PACES_US[n % 3], ttft_deadline_s=DEADLINES_S[n // 9 % 4],
        )  # fmt: skip

    # --- both sides

    def _server_dump(self) -> Dump:
        read = self._read
        words = (DUMP, 1, self._prefix, self._pattern(""), read["events"], read["ledger"])
        return read_dump(self._run(self._resp.call("EVAL", *words)), read)

    def listen(self, gateways: Collection[str], holders: Collection[str] = ()) -> None:
        """From now on these gateways, and no others, hear of their grants; ``holders`` are seen to live."""
        self._ears.listen({*map(gateway_channel, gateways), *map(leader_channel, holders)})

    def _numbered(self, n: int) -> tuple[int, QueuedRequest]:
        return n, self.request_of(n)

    def _listens(self, channel: str) -> bool:
        return channel in self._ears.listening

    def _published(self, channel: str, payload: bytes) -> bool:
        heard = channel in (EJECTED_CHANNEL, *self._ears.listening)
        if heard:
            self._told.append((channel, payload))
        return heard

    def _compare_told(self) -> None:
        told, self._told = self._told, []
        heard = self._ears.heard(len(told))
        assert heard == told, f"gateways heard {heard}, the reference model told them {told}"

    def _pattern(self, tail: str) -> str:
        return self._prefix.replace("{", "[{]").replace("}", "[}]") + tail

    def _set_clock(self) -> None:
        self._run(self._resp.call("SET", self._prefix + "test_now", self.now))

    def _call(self, name: str, *args: Any, **named: Any) -> tuple[Any, Any]:
        answers: list[Any] = []
        for call in (getattr(self.reference, name), lambda *a, **n: self._run(getattr(self.server, name)(*a, **n))):
            try:
                answers.append(call(*args, **named))
            except Fenced:
                answers.append("fenced")
        return answers[0], answers[1]

    def _both(self, name: str, again: bool, *args: Any, repeats: bool = True, **named: Any) -> Any:
        before, led = self._last, self.led
        mine, theirs = self._call(name, *args, **named)
        assert theirs == mine, f"{name}{args}: the server answers {theirs}, the reference model {mine}"
        self._compare(name)
        self.seen |= {(name, a) for a in _kinds(mine)}
        if mine == "fenced":
            assert self._last == before, f"{name} changed something though it was fenced"
        if again and repeats:
            after = self._last
            mine, theirs = self._call(name, *args, **named)
            assert theirs == mine, f"{name}{args} again: the server answers {theirs}, the reference model {mine}"
            self._compare(name)
            assert _but_told(self._last) == _but_told(after), f"{name}{args} called again changed something"
            assert self._last == after or _refused(mine), f"{name}{args} called again told somebody to come back"
        if _refused(mine) and led:  # while nobody leads, slots are handed out before it is refused
            self._check_refusal(before, args[0].id, mine)
        return mine

    def _check_refusal(self, before: Dump, ent: str, answer: Admission) -> None:
        """A refusal changes nothing but what the next refused client of the entitlement is told."""
        assert _but_told(self._last) == _but_told(before), "a refusal changed something"
        old, new = before.buckets, self._last.buckets
        changed = {name for name in new if name.endswith(":told") and new[name] != old.get(name)}
        assert changed <= {f"{ent}:told"}, "a refusal told clients of others to come back"
        scopes = {s for s, now in self._last.limits.items() if now.get("told") != before.limits.get(s, {}).get("told")}
        told = answer.over is not None and answer.retry_s is not None
        # told twice in one millisecond, where requests take none
        again = not scopes and any(now.get("told") == self.now for now in self._last.limits.values())
        assert len(scopes) == told or (told and again), "not whom the limit refused"
        assert not (scopes and changed), "a limit of one key told the others of its entitlement to come back"
        for scope in scopes:
            old_ms = before.limits.get(scope, {}).get("told", 0)
            assert old_ms < self._last.limits[scope]["told"] <= self.now + MAX_TOLD_MS, (
                "a limit's clients come together"
            )
        for name in changed:
            assert old.get(name, 0) < new[name] <= self.now + MAX_TOLD_MS, "clients were told to come back together"

    def _compare(self, move: str) -> None:
        reference = self.reference.dump()
        server = self._server_dump()
        for f in dataclasses.fields(Dump):
            mine, theirs = getattr(reference, f.name), getattr(server, f.name)
            assert theirs == mine, f"after {move}: {f.name} is {theirs} on the server and {mine} in the reference model"
        self.check_laws(move, self._last, server)
        # Streams are compared piece by piece; the reference model's are dropped once they were equal.
        self._last = dataclasses.replace(server, events=(), ledger=())
        self.reference.events.clear()
        self.reference.ledger.clear()


def _refused(answer: Any) -> bool:
    return isinstance(answer, Admission) and answer.status is AdmissionStatus.REFUSED


def _but_told(dump: Dump) -> Dump:
    """A dump without when refused clients were told to come back."""
    kept = {name: value for name, value in dump.buckets.items() if not name.endswith(":told")}
    levels = {scope: {k: v for k, v in now.items() if k != "told"} for scope, now in dump.limits.items()}
    levels = {scope: now for scope, now in levels.items() if now}
    return dataclasses.replace(dump, buckets=kept, limits=levels, events=(), ledger=())


def _kinds(answer: Any) -> set[str]:
    """The words by which an answer is told from others."""
    if isinstance(answer, list):
        return set().union(*map(_kinds, answer)) if answer else {"nothing"}
    reason = getattr(answer, "reason", None)
    status = getattr(answer, "status", answer)
    return {f"{status} {reason}" if reason is not None else str(status)}
