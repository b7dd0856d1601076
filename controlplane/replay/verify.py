"""Whether the ledger tells the same story as the clients: request by request, then in sums.

A request without an id (its connection broke before an answer came) cannot be looked up and is counted apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from controlplane.replay.report import Sent

LOOK_S = 1.0  # between two looks at the ledger, which is written in bulk

Row = Mapping[str, Any]  # of the ledger, as the management API shows it

FIGURES = ("completed", "refused", "failed", "cancelled", "input_tokens", "output_tokens")


@dataclass(slots=True)
class Comparison:
    """``sent`` requests with an id, how many the ledger has, and the first ``MOST_DIFFERENCES`` differences."""

    sent: int = 0
    found: int = 0
    without_id: int = 0
    client: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))
    ledger: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))
    differences: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return self.sent == self.found and self.client == self.ledger and not self.differences

    def as_json(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


MOST_DIFFERENCES = 20


def compare(rows: Iterable[Sent], read: Callable[[], Mapping[str, Row]], patience_s: float = 15.0) -> Comparison:
    """Waits until the ledger holds every request that got an id, then compares. ``read`` gives its rows by request id.

    Tokens are compared for completed requests; for the others only how they ended.
    """
    rows = list(rows)
    sent = {row.request_id: row for row in rows if row.request_id}
    result = Comparison(sent=len(sent), without_id=len(rows) - len(sent))
    deadline = time.monotonic() + patience_s
    while True:
        entries = {name: row for name, row in read().items() if name in sent}
        if len(entries) == len(sent) or time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    result.found = len(entries)
    for request_id, row in sent.items():
        _count(result.client, row.outcome, row.input_tokens, row.output_tokens)
        entry = entries.get(request_id)
        if entry is None:
            _note(result, f"{request_id}: not in the ledger, the client saw {row.outcome} ({row.reason})")
            continue
        outcome = entry["outcome"]
        tokens = (entry["input_tokens"], entry["output_tokens"]) if outcome == "completed" else (0, 0)
        _count(result.ledger, outcome, *tokens)
        if outcome != row.outcome or tokens != (row.input_tokens, row.output_tokens):
            _note(
                result,
                f"{request_id}: the client saw {row.outcome} {row.input_tokens}+{row.output_tokens}, "
                f"the ledger says {outcome} ({entry['reason']}) {tokens[0]}+{tokens[1]}",
            )
    return result


def _count(figures: dict[str, int], outcome: str, input_tokens: int, output_tokens: int) -> None:
    figures[outcome] += 1
    figures["input_tokens"] += input_tokens
    figures["output_tokens"] += output_tokens


def _note(result: Comparison, difference: str) -> None:
    if len(result.differences) < MOST_DIFFERENCES:
        result.differences.append(difference)
