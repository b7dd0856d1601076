"""Moves of leaders. ``again`` repeats the call, as a caller does whose reply was lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from scheduling.core.rights import RIGHTS
from scheduling.core.types import (
    FULL_SPEED,
    BackendSpec,
    Standing,
)
from scheduling.state.types import (
    EvictItem,
    GrantItem,
)
from tests.support.state_model.members import TOKENS_US, TURNAROUNDS
from tests.support.state_model.sides import Sides
from tests.support.state_world import backend


class LeaderMoves(Sides):
    def elect(self, holder: str, first: bool, again: bool) -> None:
        election = self._both("elect", again, holder, max(self.floor, self.epochs[holder]), first)
        if election.leader:
            assert election.epoch >= self.floor, "an epoch went back"
            self.epochs[holder] = election.epoch
            self.floor = max(self.floor, election.epoch)

    def resign(self, holder: str, again: bool) -> None:
        self._both("resign", again, holder)

    def set_ready(
        self, holder: str, at: str, slots: int | None, again: bool, ejected: bool = False, credit: int = 0,
        step: int = 0, longest: int = 0, speed: int = FULL_SPEED, resumes: bool = False,
    ) -> None:  # fmt: skip
        spec: BackendSpec | None = None
        if slots is not None:
            spec = backend(at, slots, (120 if at == "b2" else 250) * slots)
            spec = dataclasses.replace(
                spec,
                prefill_tokens=credit,
                step_tokens=step,
                longest=longest,
                speed=speed,
                resumes=resumes,
                token_us=TOKENS_US[speed],
            )
        self._both("set_ready", again, self.epochs[holder], at, spec, ejected=ejected)
        self._compare_told()

    def set_adapters(self, holder: str, homes: dict[str, tuple[bool, Collection[str]]], again: bool) -> None:
        told = {name: (may_load, set(at)) for name, (may_load, at) in homes.items()}
        self._both("set_adapters", again, self.epochs[holder], told)

    def grant(self, holder: str, picks: list[tuple[int, str, int]], again: bool) -> None:
        items = [
            GrantItem(
                f"r{n}",
                max(1, self.request_of(n).attempt + off),
                at,
                self.cap_of(n),
                "fifo@1",
                "first of 2",
                *self.told_of(n + len(picks)),
            )
            for n, at, off in picks
        ]
        self._both("grant", again, self.epochs[holder], items, turnaround_s=TURNAROUNDS[len(picks) % 5])
        self._compare_told()

    def evict(self, holder: str, picks: list[tuple[int, str, int]], again: bool) -> None:
        items = [
            EvictItem(f"r{n}", max(1, self.request_of(n).attempt + off), self.cap_of(n), exclude, "fifo@1", "reserved")
            for n, exclude, off in picks
            if RIGHTS[self.spec_of(n).tier.service_class].evicts
        ]
        if not items:
            return
        self._both("evict", again, self.epochs[holder], items, repeats=False)
        self._compare_told()

    def set_standing(self, holder: str, weights: dict[str, float], gone: list[str], again: bool) -> None:
        found = {name: Standing(w, round(w / 1000 - 0.2, 3), 0.125) for name, w in weights.items()}
        self._both("set_standing", again, self.epochs[holder], found, gone)

    def set_stuck(self, holder: str, count: int, again: bool, kept: int | None = None) -> None:
        self._both("set_stuck", again, self.epochs[holder], count, kept)

    def set_cached(self, holder: str, backend: str, trust: int, most: int, again: bool) -> None:
        self._both("set_cached", again, self.epochs[holder], backend, trust, most)

    def set_waking(self, holder: str, ms: int, again: bool) -> None:
        self._both("set_waking", again, self.epochs[holder], ms)

    def look(self, names: list[str]) -> None:
        """What decisions see is what everybody sees: ``look`` is a part of ``view``."""
        seen = self._both("look", True, names)
        long = self._both("long_prompts", True)
        assert all(prompt.held > 0 for prompt in long), "a long prompt has a first token"
        whole = self.reference.view()
        ready = {name: b for name, b in whole.backends.items() if b.ready}
        for name, b in seen.backends.items():  # what is predicted to be prefilled counts no more
            held = ready[name].prefill_used
            assert b.prefill_used <= held, "more counts than is held"
            owned = min(ready[name].prefill_owned, b.prefill_used)
            ready[name] = dataclasses.replace(
                ready[name], prefill_used=b.prefill_used, falls_ms=b.falls_ms, prefill_owned=owned,
                beginnings=b.beginnings, expected_tokens=0, prompt_tokens=0,
            )  # fmt: skip
            uncounted = sum(tokens for _, tokens in b.beginnings.values())
            assert uncounted == self.reference.totals.get(f"b:{name}:unc", 0)
            if b.prefill_used < held:
                self.seen.add(("look", "predicted"))
        assert seen.backends == ready
        assert (seen.now_ms, seen.rebuilding_ms) == (whole.now_ms, whole.rebuilding_ms)
        running = {name: e.running for name, e in whole.entitlements.items()}
        assert seen.running == {name: running.get(name, 0) for name in names}

    def sweep(self, holder: str, again: bool) -> None:
        self._both("sweep", again, self.epochs[holder])
