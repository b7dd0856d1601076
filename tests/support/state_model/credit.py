"""Moves that give prefill credit back. ``again`` repeats the call, as a caller does whose reply was lost."""

from __future__ import annotations

from tests.support.state_model.sides import Sides


class CreditMoves(Sides):
    def first_tokens(self, picks: list[tuple[int, int]], again: bool) -> None:
        items = [(f"r{n}", max(1, self.request_of(n).attempt + off)) for n, off in picks]
        held = {r: e.prefill for r, _ in items if (e := self.reference.held.get(r)) is not None}
        told = self._both("first_tokens", False, items)
        after = {r: e.prefill for r in held if (e := self.reference.held.get(r)) is not None}
        gone = sum(held[r] > 0 and after[r] == 0 for r in held)  # some of them by the first token of a later one
        assert min(gone, 1) <= told <= gone, "a first token gave back what was not held"
        if told:
            self.seen.add(("first_tokens", "given back"))
        if again:  # but for those that were handed the room of the others
            handed = {
                r
                for r, a in items
                if (e := self.reference.held.get(r)) and r not in held and e.attempt == a and e.prefill
            }
            assert self._both("first_tokens", False, items) == len(handed), "a first token told twice gave back twice"
        self._compare_told()

    def prefilled(self, holder: str, at: str, waiting: int, age_ms: int, hurry: float) -> None:
        before = self.reference.held
        holds = {name: e.prefill for name, e in before.items() if name in self.reference.prefills}
        done = self._both("prefilled", False, self.epochs[holder], at, waiting, age_ms / 1000.0, hurry=hurry)
        if done not in (0, "fenced"):
            gone = {n for n, had in holds.items() if (e := self.reference.held.get(n)) and had and not e.prefill}
            assert len(gone) == done, "an engine's word gave back what was not held"
            self.seen.add(("prefilled", "given back"))
        self._compare_told()
