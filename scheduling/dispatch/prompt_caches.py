"""What the engines of a pool find in their prefix caches, beside what was expected of the same grants."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.core.cached_prompts import CacheTrust

MOST_TOKENS = 10_000_000  # of prompts between two looks at an engine; more no engine reads


class PromptCaches:
    """Of one term of leadership. Tokens are of prompts, counted by engines and by shared state since either began."""

    def __init__(self) -> None:
        self._trust = CacheTrust()
        self._seen: dict[str, tuple[float, float]] = {}  # found and asked by replica, as its engine last said
        self._told: tuple[int, int] | None = None  # expected and prompts, as shared state last said
        self._found = self._asked = 0.0  # since the last look

    def per_mille(self, uncounted: float) -> int:
        """Of what is expected to be cached of a prompt, how much does not count against a prefill credit."""
        return self._trust.per_mille_of(uncounted)

    def count(self, replica: str, found: float, asked: float) -> None:
        """An engine tells what it has found in its cache since it started, of the prompts that it was asked for."""
        before = self._seen.get(replica)
        self._seen[replica] = found, asked
        if before is not None and 0 <= found - before[0] <= asked - before[1] <= MOST_TOKENS:
            self._found += found - before[0]
            self._asked += asked - before[1]

    def look(self, expected: int, prompts: int) -> None:
        """About once a second: what shared state expected of all grants so far, and how long their prompts were."""
        before, self._told = self._told, (expected, prompts)
        if before is not None and expected > before[0]:
            self._trust.seen(expected - before[0], prompts - before[1], self._found, self._asked)
        self._found = self._asked = 0.0  # what nobody expected bears out nothing later

    def keep_only(self, replicas: Mapping[str, object]) -> None:
        """Forgets replicas that are gone."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in replicas}
