"""How many lines may run on a pool, so that the people on it notice little of them.

An idle slot is not enough: each sequence in an engine's step makes the step longer for all others in it. While people
are there, so many lines run as would make the steps of all replicas longer by at most a share
(:func:`scheduling.core.admission.batch_account.lines_beside`), and they gather on few of the replicas
(:func:`scheduling.core.admission.batch_account.kept_for_people`); after a minute without anybody, as many as there are
idle slots.

Processors may be short where engines are not. This process gives way to all others on its machine, so that it is late
before they are: the later its own loop, the fewer lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from scheduling.core.admission.batch_account import kept_for_people, lines_beside
from scheduling.core.engine.step_time import StepTime
from scheduling.state.store import PoolStore
from scheduling.state.types import StateUnavailable

log = logging.getLogger(__name__)

PRESENT_S = 60.0  # people count as there for so long after one of their requests was seen
LOOK_S = 0.25  # between two looks for them
STEPS_S = 30.0  # between two readings of how long steps take
TICK_S = 0.02
LATE_S = 0.004  # that this process may wait for a processor; twice as late, half as many lines
LATE_WEIGHT = 0.02  # of one measurement, so that a second of them counts

StepsOf = Callable[[str], Sequence[StepTime]]


class Lateness:
    """How long this process waits for a processor, lately [s]."""

    def __init__(self) -> None:
        self.late_s = 0.0

    def saw(self, late_s: float) -> None:
        self.late_s += LATE_WEIGHT * (max(0.0, late_s) - self.late_s)

    @property
    def share(self) -> float:
        """Of the lines that could run elsewise."""
        return min(1.0, LATE_S / self.late_s) if self.late_s > 0 else 1.0


class PoolRoom:
    """One pool's room for lines."""

    def __init__(self, slowdown: float, lateness: Lateness, most: int) -> None:
        self._slowdown = slowdown
        self._lateness = lateness
        self._most = most  # lines of one account
        self._prompt = self._output = 0.0  # tokens of a line, on average; 0: none has been answered yet
        self._steps: Sequence[StepTime] = ()
        self._kept: frozenset[str] = frozenset()  # for people, as long as they are there
        self._slots = 0  # of the replicas that are ready
        self._seen_s: float | None = None  # when people were seen last; None: it was not looked yet
        self.read_s = float("-inf")  # when the steps were read last
        self.accounts: Counter[str] = Counter()  # batches that are worked on, by their account
        self.running = 0

    def learn(self, prompt: int, output: int) -> None:
        """A line had these lengths."""
        if not self._output:
            self._prompt, self._output = float(prompt), float(max(1, output))
            return
        self._prompt += 0.05 * (prompt - self._prompt)
        self._output += 0.05 * (max(1, output) - self._output)

    def steps_take(self, steps: Sequence[StepTime]) -> None:
        self._steps = steps

    def replicas_are(self, offers: Mapping[str, int], slots: int) -> None:
        """These are ready, and offer so much KV cache, and so many slots in all."""
        self._kept = kept_for_people(offers)
        self._slots = slots

    def kept(self, now: float) -> Collection[str]:
        """The replicas on which no line may begin now."""
        return self._kept if self._beside(now) else ()

    def _beside(self, now: float) -> bool:
        return self._seen_s is None or now - self._seen_s < PRESENT_S

    def looked(self, people: int | None, now: float) -> None:
        """So many requests of people run here; None: nobody could say, so that they may be there."""
        if people is None or people > 0 or self._seen_s is None:
            self._seen_s = now

    def most(self, now: float) -> int | None:
        """How many lines may run now; None: as many as there is idle capacity."""
        if not self._beside(now):
            share = self._lateness.share
            # Not of what runs: of that, each look would take its share again until one line was left.
            able = min(self._slots, self._most * max(1, len(self.accounts)))
            return None if share >= 1.0 else max(1, int(able * share))
        if not self._output:
            return max(1, len(self._steps))
        lines = sum(lines_beside(step, self._prompt, self._output, self._slowdown) for step in self._steps)
        return max(1, int(lines * self._lateness.share))

    def may_start(self, now: float) -> bool:
        most = self.most(now)
        return most is None or self.running < most


class Room:
    """The room of all pools on which this process runs lines. It outlives the tasks that do."""

    def __init__(self, steps_of: StepsOf, slowdown: float, most: int) -> None:
        """``most``: lines of one entitlement that run at once, however much is idle."""
        self._steps_of = steps_of
        self._slowdown = slowdown
        self._most = most
        self._lateness = Lateness()
        self._pools: dict[str, PoolRoom] = {}

    def begin(self) -> None:
        """Another task takes over: what ran in the last one is over, what was seen of people is not."""
        for room in self._pools.values():
            room.accounts.clear()
            room.running = 0

    def of(self, pool: str) -> PoolRoom:
        room = self._pools.get(pool)
        if room is None:
            room = self._pools[pool] = PoolRoom(self._slowdown, self._lateness, self._most)
        return room

    def kept(self, pool: str) -> Collection[str]:
        """The replicas of a pool on which no line may begin now."""
        return self.of(pool).kept(asyncio.get_running_loop().time())

    async def watch(self, store_of: Callable[[str], PoolStore]) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self._lateness.saw(now - due)
            if now >= look_at:
                look_at = now + LOOK_S
                worked_on = [(pool, room) for pool, room in self._pools.items() if room.accounts]
                await asyncio.gather(*(self._look(store_of(pool), room) for pool, room in worked_on))
                due_rooms = [(pool, room) for pool, room in worked_on if now - room.read_s >= STEPS_S]
                await asyncio.gather(*(self._read(pool, room) for pool, room in due_rooms))

    async def _look(self, store: PoolStore, room: PoolRoom) -> None:
        people: int | None = None
        try:
            seen = await store.look(sorted(room.accounts))
            people = seen.requests - sum(seen.running.values())
            ready = seen.backends
            room.replicas_are(
                {name: one.kv_tokens for name, one in ready.items()}, sum(b.slots for b in ready.values())
            )
        except StateUnavailable:
            pass
        room.looked(people, asyncio.get_running_loop().time())

    async def _read(self, pool: str, room: PoolRoom) -> None:
        room.read_s = asyncio.get_running_loop().time()
        try:
            room.steps_take(await asyncio.to_thread(self._steps_of, pool))
        except Exception as error:
            log.warning("how long steps of %s take could not be read (%s); batches go by the last", pool, error)
