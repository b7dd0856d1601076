"""What clients wish for their requests (``priority``, a tighter SLO) orders them within their entitlement, and leaves
what everybody else gets alone: under every policy, inside every set of modifiers."""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.queues import turns
from scheduling.core.policies.registry import make_routing, modifiers, orderings
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import (
    EntitlementSpec,
    EntitlementState,
    Estimate,
    KeySpec,
    PoolSpec,
    QueuedRequest,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import TTFT_HINT, TTLT_HINT
from scheduling.gateway.estimate.estimates import make_queued
from scheduling.gateway.headers import Limits
from tests.support.preparing import prepare
from tests.support.scheduling_world import backend_view, pool_view

SETS = [names for size in range(len(modifiers()) + 1) for names in combinations(modifiers(), size)]
every_composition = pytest.mark.parametrize(
    ("policy", "around"),
    [(policy, names) for policy in sorted(orderings()) for names in SETS],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "alone",
)

STANDARD = TierSpec("standard", ServiceClass.ELASTIC, 1, 30.0, Slo(ttft_s=20.0, tbt_s=1.0))
BATCH = TierSpec("batch", ServiceClass.SPOT, 2, 20.0, Slo(ttlt_s=600.0))
POOL = PoolSpec("p", "demo", "demo", ())
HINTS = {TTFT_HINT: 0.001, TTLT_HINT: 0.001}


@dataclass(frozen=True)
class Sent:
    """One request as its client sent it."""

    number: int
    tenant: str
    tier: TierSpec
    at_s: float
    input_tokens: int
    output_tokens: int
    priority: int = 0
    hints: bool = False

    def queued(self) -> QueuedRequest:
        """What its gateway makes of it."""
        body = {"model": "demo", "prompt": "x", "priority": self.priority, "max_tokens": self.output_tokens}
        entitlement = EntitlementSpec(
            f"{self.tenant}-p", self.tenant, "p", self.tier, EntitlementState.BOUND, 0.0, 0.0, 0, 6
        )
        access = Access(KeySpec("k", b"", entitlement.id), entitlement, POOL, Limits(entitlement, 8192), None)
        both = self.input_tokens + self.output_tokens
        estimate = Estimate(self.input_tokens, self.output_tokens, float(self.output_tokens), both, both)
        request = make_queued(
            f"req_{self.number:06d}", self.at_s, access, prepare(json.dumps(body).encode(), False, POOL), estimate,
            HINTS if self.hints else None, "gw-1",
        )  # fmt: skip
        return replace(request, seq=self.number, expires_s=None)


def traffic(seed: int, *, alike: bool, count: int = 100) -> Iterator[Sent]:
    """Three tenants, two of one tier; ``alike``: the requests of one tenant all have one size. Two of them hint."""
    rng = random.Random(seed)
    at_s = 1000.0
    sizes = {"acme": (200, 100), "globex": (300, 60), "initech": (40, 400)}
    for number in range(count):
        at_s += rng.uniform(0.0, 1.0)
        tenant = rng.choice(sorted(sizes))
        size = sizes[tenant] if alike else (rng.choice((20, 200, 2000)), rng.choice((16, 128, 600)))
        hinting = tenant != "globex"
        yield Sent(
            number, tenant, BATCH if tenant == "initech" else STANDARD, at_s, *size,
            rng.choice((0, 0, -1000, -5, 7)) if hinting else 0, hinting and rng.random() < 0.3,
        )  # fmt: skip


def plain(sent: Sent) -> Sent:
    return replace(sent, priority=0, hints=False)


def scheduler_of(policy: str, around: tuple[str, ...], rights: bool = False) -> Scheduler:
    made = make_policy(policy, None, {name: {} for name in around})
    return Scheduler(made, make_routing("least_work"), rights=rights)


def served(scheduler: Scheduler, requests: list[QueuedRequest]) -> list[tuple[float, QueuedRequest]]:
    """Grants with their times, in a pool of four slots in which a token of output takes 10 ms; what ran is settled,
    and one grant in ten comes to nothing: the request waits again."""
    view = pool_view(backend_view("b1", slots=2, kv_tokens=10**9), backend_view("b2", slots=2, kv_tokens=10**9))
    rng = random.Random(9)
    arrivals = sorted(requests, key=lambda request: request.arrival_s)
    ends: list[tuple[float, int, str, QueuedRequest]] = []
    grants: list[tuple[float, QueuedRequest]] = []
    now_s = 0.0

    def free(backend: str, request: QueuedRequest) -> None:
        view.backends[backend].running -= 1
        view.backends[backend].kv_used -= request.kv_tokens
        view.backends[backend].work_tokens -= request.input_tokens + request.output_tokens
        view.running_by_entitlement[request.entitlement] -= 1

    while arrivals or len(scheduler) or ends:
        due = [arrivals[0].arrival_s] if arrivals else []
        now_s = min([*due, ends[0][0]] if ends else due or [now_s])
        while arrivals and arrivals[0].arrival_s <= now_s:
            scheduler.offer(arrivals.pop(0), now_s)
        while ends and ends[0][0] <= now_s:
            _, _, backend, request = heapq.heappop(ends)
            free(backend, request)
            scheduler.settle(request.id, request.input_tokens, request.output_bound // 2)
        for grant in scheduler.step(view, now_s):
            request = grant.request
            grants.append((now_s, request))
            if rng.random() < 0.1:
                free(grant.backend, request)
                scheduler.offer(request, now_s)
            else:
                heapq.heappush(ends, (now_s + request.output_bound / 100, len(grants), grant.backend, request))
    return grants


def turns_of(grants: list[tuple[float, QueuedRequest]]) -> list[tuple[float, str]]:
    return [(round(at_s, 6), request.entitlement) for at_s, request in grants]


@every_composition
def test_hints_change_no_turn_and_no_time_of_any_entitlement(policy: str, around: tuple[str, ...]):
    sent = list(traffic(1, alike=True))
    without = served(scheduler_of(policy, around), [plain(s).queued() for s in sent])
    hinted = served(scheduler_of(policy, around), [s.queued() for s in sent])
    assert turns_of(hinted) == turns_of(without)
    quiet = [request.id for _, request in hinted if request.entitlement == "globex-p"]
    assert quiet == [request.id for _, request in without if request.entitlement == "globex-p"]
    assert [r.id for _, r in hinted] != [r.id for _, r in without], "hints order within the entitlement"


@every_composition
def test_by_no_turn_has_an_entitlement_taken_more_than_it_would_have_without_hints(
    policy: str, around: tuple[str, ...]
):
    sent = list(traffic(2, alike=False))
    without = drained(scheduler_of(policy, around), [plain(s).queued() for s in sent])
    hinted = drained(scheduler_of(policy, around), [s.queued() for s in sent])
    assert [r.entitlement for r in hinted] == [r.entitlement for r in without]
    assert sorted(r.id for r in hinted) == sorted(r.id for r in without)
    assert more_than(without, hinted) == []


def drained(scheduler: Scheduler, requests: list[QueuedRequest]) -> list[QueuedRequest]:
    """All that waits, a slot at a time: whose turn it is does not depend on how long anything runs."""
    for request in requests:
        scheduler.offer(request, request.arrival_s)
    out = []
    while len(scheduler):
        view = pool_view(backend_view(slots=1, kv_tokens=10**9))
        out += [grant.request for grant in scheduler.step(view, 1200.0)]
    return out


def more_than(without: list[QueuedRequest], hinted: list[QueuedRequest]) -> list[str]:
    """Who had taken more by some turn, and of what."""
    measures: dict[str, Callable[[QueuedRequest], float]] = {
        "kv": lambda r: r.kv_tokens,
        "input": lambda r: r.input_tokens,
        "output": lambda r: r.output_tokens,
    }
    found = []
    for name, measure in measures.items():
        taken: dict[str, float] = defaultdict(float)
        for before, after in zip(without, hinted, strict=True):
            taken[before.entitlement] += measure(after) - measure(before)
            if taken[before.entitlement] > 0:
                found.append(f"{before.entitlement}: {name}")
    return found


@pytest.mark.parametrize("policy", ["fifo", "priority", "edf"])
def test_requests_that_change_places_whatever_they_need_are_caught(policy: str, monkeypatch: pytest.MonkeyPatch):
    """The broken variant: a small request that gives its early turn to a large one."""
    monkeypatch.setattr(turns, "needs_no_more", lambda request, than: True)
    sent = list(traffic(2, alike=False))
    without = drained(scheduler_of(policy, ()), [plain(s).queued() for s in sent])
    assert more_than(without, drained(scheduler_of(policy, ()), [s.queued() for s in sent])) != []


@pytest.mark.parametrize("policy", ["edf", "hybrid", "unified"])
def test_a_hint_that_is_taken_for_a_deadline_is_caught(policy: str):
    """The broken variant, as it was: the tighter target in place of the contract's."""
    sent = list(traffic(1, alike=True))
    wrong = [
        replace(r, ttft_deadline_s=r.hint_deadline_s) if r.hint_deadline_s and r.ttft_deadline_s else r
        for r in (s.queued() for s in sent)
    ]
    without = served(scheduler_of(policy, ()), [plain(s).queued() for s in sent])
    assert turns_of(served(scheduler_of(policy, ()), wrong)) != turns_of(without)


@every_composition
def test_what_its_client_wants_soonest_takes_the_first_turn_of_its_entitlement(policy: str, around: tuple[str, ...]):
    alike = [Sent(n, "acme", STANDARD, 1000.0 + n, 100, 100) for n in range(9)]
    alike[6] = replace(alike[6], priority=-3)
    alike[4] = replace(alike[4], hints=True)
    out = [r.id for r in drained(scheduler_of(policy, around), [s.queued() for s in alike])]
    assert out[:2] == ["req_000006", "req_000004"]


def test_a_new_policy_version_does_not_give_back_a_turn_that_was_given_away():
    scheduler = scheduler_of("fifo", ())
    sent = [
        Sent(0, "acme", STANDARD, 1000.0, 100, 100),
        Sent(1, "globex", STANDARD, 1001.0, 100, 100),
        Sent(2, "acme", STANDARD, 1002.0, 100, 100, priority=-1),
    ]
    for each in sent:
        scheduler.offer(each.queued(), each.at_s)
    first = scheduler.step(pool_view(backend_view(slots=1)), 1003.0)
    assert [grant.request.id for grant in first] == ["req_000002"]
    scheduler.swap(make_policy("edf"), make_routing("least_work"), 1003.0)
    assert [r.id for r in drained(scheduler, [])] == ["req_000001", "req_000000"]


def test_one_that_comes_back_finds_its_place_though_another_waits_under_its_name():
    scheduler = scheduler_of("fifo", ("fair",))
    sent = [Sent(n, "acme", STANDARD, 1000.0 + n, 100, 100, priority=-n) for n in range(3)]
    for each in sent:
        scheduler.offer(each.queued(), each.at_s)
    out: list[str] = []
    for _ in range(4):
        (grant,) = scheduler.step(pool_view(backend_view(slots=1)), 1010.0)
        out.append(grant.request.id)
        if len(out) < 3:
            scheduler.offer(grant.request, 1010.0)  # the state refused it
    assert out == ["req_000002", "req_000002", "req_000002", "req_000001"]
    assert Counter(r.id for r in scheduler) == {"req_000000": 1}
    assert scheduler.withdraw("req_000000")
    assert len(scheduler) == 0
