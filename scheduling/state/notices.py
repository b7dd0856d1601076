"""What a gateway hears on its channel."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.outcomes import Reason


@dataclass(frozen=True, slots=True)
class GrantNotice:
    """The notification a gateway hears on its channel: this request may run there now."""

    request_id: str
    attempt: int
    backend: str
    policy: str
    why: str
    prefill: int = 0  # as in an admission


@dataclass(frozen=True, slots=True)
class EvictionNotice:
    """Heard on the same channel: this preemptible request has lost its slot, and ends."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class SupersededNotice:
    """Heard on the same channel: a newer request of its entitlement has the place of this one, which has ended."""

    request_id: str
    attempt: int
    retry_ms: int  # when its client should come back


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """Heard on the same channel: this request is to be taken back from its replica, where so many tokens of its prompt
    are computed, and to wait again."""

    request_id: str
    attempt: int
    backend: str
    computed: int


@dataclass(frozen=True, slots=True)
class CancelNotice:
    """Heard on the same channel: an operator ends this request, waiting or running."""

    request_id: str


@dataclass(frozen=True, slots=True)
class CompletionNotice:
    """Heard on the same channel: somebody told another gateway of the end of a request that is held here."""

    request_id: str
    secret: str  # of its lease
    completion: bytes  # as it was told


@dataclass(frozen=True, slots=True)
class RefusalNotice:
    """What tells a gateway that a request of its waits for what will not come."""

    request_id: str
    attempt: int
    reason: Reason
