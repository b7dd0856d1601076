"""After how long the clients of a key leave, where they do not say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.core.estimate.client_timeout import ClientTimeout
from scheduling.core.outcomes import Reason
from scheduling.gateway.entry.guard import CLIENT_TIMEOUT, LONGEST_TIMEOUT_S
from scheduling.gateway.stages import Identified, Submitted

KEYS_KEPT = 1_000  # whose clients left last


class ClientTimeouts:
    """What one gateway has seen, by key and whether a stream was asked for: whoever waits for a stream waits for its
    first bytes only."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, bool], ClientTimeout] = {}

    def hints(self, identified: Identified, stream: bool) -> Mapping[bytes, float] | None:
        """What the client of a request says of when it wishes the answer [s], or has shown by leaving."""
        said = identified.hints
        if not self._of or (said is not None and CLIENT_TIMEOUT in said):
            return said
        known = self._of.get((identified.access.key.id, stream))
        limit_s = None if known is None else known.limit_s(identified.call.received_s)
        if limit_s is None or limit_s >= LONGEST_TIMEOUT_S:
            return said
        return {**(said or {}), CLIENT_TIMEOUT: limit_s}

    def ended(self, identified: Identified, reason: Reason) -> None:
        """Learns from how long the client of a request that ends waited."""
        submitted = identified.call.submitted
        if submitted is None:
            return
        if reason is Reason.CLIENT_LEFT and not identified.call.responding:
            now_s = identified.call.now_s()
            self._known(_group(submitted)).left(_age_s(submitted, now_s), now_s)
        elif self._of and (known := self._of.get(_group(submitted))) is not None:
            _waited(known, submitted)

    def look(self, open_requests: Iterable[Submitted]) -> None:
        """Learns from those that still wait."""
        if self._of:
            for submitted in open_requests:
                if not submitted.call.responding and (known := self._of.get(_group(submitted))) is not None:
                    _waited(known, submitted)

    def _known(self, group: tuple[str, bool]) -> ClientTimeout:
        """Moves the group to those that were used last."""
        known = self._of.pop(group, None) or ClientTimeout()
        self._of[group] = known
        if len(self._of) > KEYS_KEPT:
            del self._of[next(iter(self._of))]
        return known


def _group(submitted: Submitted) -> tuple[str, bool]:
    return submitted.identified.access.key.id, submitted.estimated.prepared.stream


def _age_s(submitted: Submitted, at_s: float) -> float:
    return at_s - submitted.call.received_s


def _waited(known: ClientTimeout, submitted: Submitted) -> None:
    now_s = submitted.call.now_s()
    begun_s = submitted.first_token_s if submitted.estimated.prepared.stream else None
    known.waited(_age_s(submitted, now_s if begun_s is None else begun_s), now_s)
