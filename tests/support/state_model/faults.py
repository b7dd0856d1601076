"""What nobody decides: time, notices about replicas, sums that go wrong, a state that is lost."""

from __future__ import annotations

import random

from scheduling.core.capacity.uncounted import Beginnings
from scheduling.state.types import (
    Attempts,
)
from tests.support.state_model.scripts import POINTS
from tests.support.state_model.sides import Sides


class FaultMoves(Sides):
    def suspect(self, at: str) -> None:
        self._both("suspect", False, at, "connection refused")  # a notification: twice rings twice

    def pause(self, at: str, refused: bool) -> None:
        self._both("pause", False, at, 1.5, "status 429", refused=refused)

    def report(self, at: str) -> None:
        self._both("report", False, {at: Attempts(3, 1, 0, 40, "status 500")})

    def pass_time(self, ms: int) -> None:
        before = self._expiring()
        self.now += ms
        self._set_clock()
        if gone := before - self._expiring():  # Redis would expire them by its own clock
            self._run(self._resp.call("DEL", *(self._prefix + key for key in gone)))
        self._compare("pass_time")

    def _expiring(self) -> set[str]:
        now = self.reference.dump()
        of = (("ended", now.ended), ("limit", now.limits), ("users", now.users))
        return {f"{kind}:{name}" for kind, names in of for name in names}

    def corrupt(self, holder: str, draws: random.Random | int) -> None:
        """Totals and pairs go wrong, as by a script that failed half-way; the leader's next look heals them. Which, is
        drawn anew from a seed when a stored move is made again."""
        rng = draws if isinstance(draws, random.Random) else random.Random(draws)
        if self.epochs[holder] != self.reference.meta.get("epoch"):
            self._both("rebuild", False, self.epochs[holder])
            return
        names = sorted(n for n in self.reference.totals if not n.endswith((":cap", ":base")))
        for name in ("run", "e:acme:run", "b:b9:work", "b:b1:pre", *rng.sample(names, min(3, len(names)))):
            wrong = rng.choice((-3, 1, 99, 10**12))
            self.reference.totals[name] = wrong
            self._run(self._resp.call("HSET", self._prefix + "totals", name, wrong))
        for entries, expiries, what in (
            (self.reference.held, self.reference.leases, "leases"),
            (self.reference.queue, self.reference.waiting, "waiting"),
        ):
            if entries and rng.random() < 0.3:
                lost = rng.choice(sorted(entries))
                del expiries[lost]
                self._run(self._resp.call("ZREM", self._prefix + what, lost))
            expiries["nobody"] = self.now
            self._run(self._resp.call("ZADD", self._prefix + what, self.now, "nobody"))
        if self.reference.preemptible and rng.random() < 0.3:
            lost = rng.choice(sorted(self.reference.preemptible))
            del self.reference.preemptible[lost]
            self._run(self._resp.call("ZREM", self._prefix + "preemptible", lost))
        for name in ("nobody:k:x", *rng.sample(sorted(self.reference.using), min(1, len(self.reference.using)))):
            self.reference.using[name] = wrong = rng.choice((-3, 1, 99))
            self._run(self._resp.call("HSET", self._prefix + "using", name, wrong))
        for at, there in self.reference.uncounted.items():
            held = {point: (n + rng.choice((-1, 0, 0, 1)), tokens) for point, (n, tokens) in there.held.items()}
            self.reference.uncounted[at] = Beginnings(held)
            for point, (n, tokens) in held.items():
                self._run(self._resp.call("HSET", self._prefix + "uncounted", f"{at} {point}", f"{n} {tokens}"))
        self.reference.weights["nobody"] = 3.0
        self._run(self._resp.call("ZADD", self._prefix + "weights", 3, "nobody"))
        assert self._run(self.server.view()).differences() == self.reference.view().differences() != []
        assert "e:acme:run" in self._both("rebuild", False, self.epochs[holder])
        assert self._run(self.server.view()).differences() == []
        assert self._both("rebuild", True, self.epochs[holder]) == [], "a sound state was written anew"

    def remove(self) -> None:
        """Takes all that it has out of Redis: nothing comes after it."""
        keys = self._run(self._resp.call("KEYS", self._pattern("*")))
        if keys:
            self._run(self._resp.call("DEL", *keys))

    def flush(self) -> None:
        """The whole state is lost, as by FLUSHALL, of this pool."""
        self.remove()
        self.reference.flush()
        self.reference.places.kept = POINTS
        self._read = {"events": "-", "ledger": "-"}
        self._ended_at.clear()
        self._lost.clear()
        self._set_clock()
        self._compare("flush")
