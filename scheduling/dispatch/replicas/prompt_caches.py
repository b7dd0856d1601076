"""What the engines of a pool find in their prefix caches, compared with what was expected of the same grants."""

from __future__ import annotations

from collections.abc import Collection

from scheduling.core.placement.cached_prompts import CacheTrust

MOST_TOKENS = 10_000_000  # of prompts between two looks at an engine; more no engine reads
TRUST_STEP = 10  # per mille
TOKENS_STEP = 256


class PromptCaches:
    """Of one term of leadership, by replica. Tokens are of prompts, counted by engines and by shared state since either
    began."""

    def __init__(self) -> None:
        self._trust: dict[str, CacheTrust] = {}
        self._seen: dict[str, tuple[float, float]] = {}  # found and asked, as each engine last said
        self._told: dict[str, tuple[int, int]] = {}  # expected and prompts, as shared state last said
        self._new: dict[str, tuple[float, float]] = {}  # found and asked since the last look
        self._due: dict[str, float] = {}  # prompts of which something was expected and whose ends were not counted

    def per_mille(self, replica: str) -> int:
        """The share of a prompt's expected cache hit on the replica that is believed [per mille]; 0: not known."""
        trust = self._trust.get(replica)
        return 0 if trust is None else trust.per_mille

    def bound(self, replica: str, most: float) -> tuple[int, int]:
        """That, and how many such tokens may be in flight and not count, of ``most``: both as coarse as they are told,
        so that a small change is none."""
        trust = self.per_mille(replica)
        return trust - trust % TRUST_STEP, int(min(most, MOST_TOKENS)) // TOKENS_STEP * TOKENS_STEP

    def count(self, replica: str, found: float, asked: float) -> None:
        """Takes an engine's counters of cached and asked prompt tokens since its start. A counter that fell means that
        the engine started again, with an empty cache."""
        before = self._seen.get(replica)
        self._seen[replica] = found, asked
        if before is None:
            return
        more, of = found - before[0], asked - before[1]
        if more < 0 or of < 0:
            self._trust.pop(replica, None)
            self._new.pop(replica, None)
            self._due.pop(replica, None)
        elif more <= of <= MOST_TOKENS:
            new = self._new.get(replica, (0.0, 0.0))
            self._new[replica] = new[0] + more, new[1] + of

    def look(self, replica: str, expected: int, prompts: int) -> None:
        """About once a second: what shared state expected of all grants there so far, and how long their prompts
        were."""
        before = self._told.get(replica)
        self._told[replica] = expected, prompts
        found, asked = self._new.pop(replica, (0.0, 0.0))
        due = self._due.get(replica, 0.0)
        if before is not None and expected > before[0]:
            trust, more = self._trust.setdefault(replica, CacheTrust()), prompts - before[1]
            trust.seen(expected - before[0], more, found, asked)
            due += more
        elif due > 0:  # beyond that nobody expected anything, and it bears out nothing later
            self._trust[replica].ended(found, asked)
        self._due[replica] = min(MOST_TOKENS, max(0.0, due - asked))

    def keep_only(self, replicas: Collection[str]) -> None:
        """Forgets replicas that are gone."""
        for known in (self._trust, self._seen, self._told, self._new, self._due):
            for name in known.keys() - set(replicas):
                known.pop(name, None)
