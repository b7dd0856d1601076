"""One tenant at a hundred times its share beside twenty quiet ones, on virtual time, as a new pool is set up."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.core.capacity import headroom
from scheduling.core.capacity.headroom import Headroom
from scheduling.core.capacity.pool import automatic_headroom, most_headroom
from scheduling.core.percentiles import nearest_rank
from scheduling.core.policies.compose import make_policy
from scheduling.core.types import (
    BackendSpec,
    BackendView,
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    PoolSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.simulator.pools import Client, PoolModel, Service

QUIET, SLOTS, ALMOST_S = 20, 24, 0.005
SPOT, ELASTIC, GUARANTEED = ServiceClass.SPOT, ServiceClass.ELASTIC, ServiceClass.GUARANTEED


def entitled(name: str, service_class: ServiceClass, slots: int, over: OverLimit) -> EntitlementSpec:
    slo = Slo(ttlt_s=600.0) if service_class is SPOT else Slo(ttft_s=1.0, tbt_s=0.1)
    tier = TierSpec(
        service_class.value, service_class, 2 if service_class is SPOT else 0, 1.0, slo, over_limit=over,
        queue_limit=50, max_wait_s=60.0,
    )  # fmt: skip
    return EntitlementSpec(name, name, "pool", tier, EntitlementState.BOUND, 0.0, 0.0, 0, slots)


def p95_wait_s(
    noisy: ServiceClass | None,
    *,
    load: float = 0.25,
    prompt: int = 200,
    answer: tuple[int, int] = (8, 200),
    over: OverLimit = OverLimit.REFUSE,
    headroom: int | None = None,
    end_s: float = 60.0,
    begins_s: float = 0.0,
    credit: int = 0,
    seed: int = 3,
) -> float:
    """Of the quiet ones, who fill ``load`` of the slots together, from when the noise begins. ``headroom`` None: as a
    new pool has it. ``credit``: of each replica."""
    clients = [
        Client(
            entitled(f"quiet-{n:02}", GUARANTEED, 1, OverLimit.REFUSE), 0.0, end_s, load * SLOTS / QUIET, False, prompt,
            answer,
        )
        for n in range(QUIET)
    ]  # fmt: skip
    specs = [client.spec for client in clients]
    loud = entitled("noisy", noisy or SPOT, SLOTS if noisy is SPOT else 4, over)
    if noisy is not None:
        clients.append(Client(loud, begins_s, end_s, 100 * SLOTS / (QUIET + 1), False, prompt, answer, 0))
    most = 0
    if headroom is None:
        headroom, most = automatic_headroom(SLOTS, [*specs, loud]), most_headroom(SLOTS, [*specs, loud])
    backends = tuple(BackendSpec(f"b{n}", "pool", "", SLOTS // 2, 1 << 40, prefill_tokens=credit) for n in range(2))
    pool = PoolSpec("pool", "model", "model", backends, headroom_slots=headroom, headroom_most=most)
    model = PoolModel(pool, clients, Service(1 / 8000, 0.02), make_policy(pool.policy or "unified"), seed=seed)
    waits = [
        a.start_s - a.arrival_s
        for a in model.run(end_s).attempts
        if a.client.spec.id.startswith("quiet") and a.start_s is not None and a.arrival_s > max(end_s / 10, begins_s)
    ]
    assert len(waits) > 80
    return nearest_rank(sorted(waits), 0.95)


KINDS: dict[str, Any] = {
    "short": {"prompt": 50, "answer": (4, 40), "end_s": 25.0},
    "long prompts": {"prompt": 6000, "answer": (8, 100), "end_s": 60.0},
    "long answers": {"prompt": 200, "answer": (200, 600), "end_s": 400.0},
}


SAMPLE = [
    (SPOT, OverLimit.WAIT, "long prompts"),
    (ELASTIC, OverLimit.WAIT, "long answers"),
    (GUARANTEED, OverLimit.REFUSE, "long answers"),
]
CASES = [(noisy, over, kind) for noisy in (SPOT, ELASTIC, GUARANTEED) for over in OverLimit for kind in KINDS]


@pytest.mark.parametrize(
    ("noisy", "over", "kind"),
    [case if case in SAMPLE else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_noisy_neighbour_costs_quiet_tenants_at_most_a_fifth_of_their_wait(
    noisy: ServiceClass, over: OverLimit, kind: str
):
    alone, beside = p95_wait_s(None, **KINDS[kind]), p95_wait_s(noisy, over=over, **KINDS[kind])
    assert beside <= 1.2 * alone + ALMOST_S


BEGINS: dict[str, Any] = {**KINDS["long answers"], "begins_s": 200.0}
PREFILLS: dict[str, Any] = {"prompt": 1000, "answer": (100, 300), "end_s": 100.0, "begins_s": 30.0, "credit": 1024}
# an engine of 512 tokens a step begins with a credit of 256: each of its prompts is longer than two of them
SHORT_STEPS: dict[str, Any] = {**PREFILLS, "credit": 256}


@pytest.mark.parametrize("load", [0.25, 0.5])
@pytest.mark.parametrize("kind", [BEGINS, PREFILLS, SHORT_STEPS], ids=["slots", "prefill credit", "short steps"])
def test_from_the_first_moment_of_a_noise_they_wait_at_most_a_fifth_longer(kind: dict[str, Any], load: float):
    alone, beside = (p95_wait_s(each, load=load, over=OverLimit.WAIT, **kind) for each in (None, SPOT))
    assert beside <= 1.2 * alone + ALMOST_S


@pytest.mark.parametrize("load", [0.25, 0.5])
def test_without_a_credit_of_their_own_they_wait_for_its_prompts(monkeypatch: pytest.MonkeyPatch, load: float):
    monkeypatch.setattr(BackendView, "prefill_seen", lambda self, owner: self.prefill_used)
    alone, beside = (p95_wait_s(each, load=load, over=OverLimit.WAIT, seed=4, **PREFILLS) for each in (None, SPOT))
    assert beside > 1.2 * alone + ALMOST_S


@pytest.mark.parametrize("noisy", [SPOT, ELASTIC], ids=str)
def test_without_headroom_they_wait_for_its_requests_to_end(noisy: ServiceClass):
    alone, beside = (p95_wait_s(each, headroom=0, **KINDS["long answers"]) for each in (None, noisy))
    assert beside > 1.2 * alone + ALMOST_S


def share_that_waits(begins_s: list[float]) -> tuple[float, int]:
    """Of the requests of quiet ones who are there for a minute from each of these moments on, beside a noise without an
    end; and how many of the noise's ran."""
    end_s, answer = begins_s[-1] + 60.0, (200, 600)
    specs = [entitled(f"quiet-{n:02}", GUARANTEED, 1, OverLimit.REFUSE) for n in range(QUIET)]
    loud = entitled("noisy", SPOT, SLOTS, OverLimit.WAIT)
    clients = [
        Client(spec, at_s, at_s + 60.0, 0.25 * SLOTS / QUIET, False, 200, answer) for spec in specs for at_s in begins_s
    ]
    clients.append(Client(loud, 0.0, end_s, 100 * SLOTS / (QUIET + 1), False, 200, answer, 0))
    kept, most = automatic_headroom(SLOTS, [*specs, loud]), most_headroom(SLOTS, [*specs, loud])
    pool = PoolSpec(
        "pool", "model", "model", (BackendSpec("b", "pool", "", SLOTS, 1 << 40),), headroom_slots=kept,
        headroom_most=most,
    )  # fmt: skip
    model = PoolModel(pool, clients, Service(1 / 8000, 0.02), make_policy("unified"), seed=3)
    ran = [a for a in model.run(end_s).attempts if a.start_s is not None]
    waits = [a.start_s - a.arrival_s for a in ran if a.client.spec is not loud and a.arrival_s > 60.0 and a.start_s]
    return sum(wait > ALMOST_S for wait in waits) / len(waits), len(ran) - len(waits)


def test_who_comes_back_within_five_minutes_finds_the_room_that_it_needed(monkeypatch: pytest.MonkeyPatch):
    """Why headroom stays when those it is for have gone, though others wait: docs/internals/decisions/admission.md."""
    again = [n * 210.0 for n in range(4)]  # away for 150 s each time
    remembered, lent = share_that_waits(again)
    monkeypatch.setattr(headroom, "MEMORY_S", 60.0)
    forgotten, more = share_that_waits(again)
    assert remembered < 0.7 * forgotten
    assert lent < more, "what that costs those who have no baseline"


def test_no_more_stays_free_than_owners_can_still_use():
    kept, now_s = Headroom(), 0.0

    def after(seconds: int, running: int, waiting: int = 0) -> int:
        nonlocal now_s
        for _ in range(seconds):
            now_s += 1.0
            kept.seen(now_s, running, waiting, 3.0, 32)
        return kept.slots(9, 27, 55)

    assert after(3, 0) == 9
    assert after(3, 28) == 27, "they came just now"
    assert after(10, 28) == 9, "four more may come; the others have the rest"
    assert after(1, 20) == 12, "some ended, and may be back in a moment"
    assert after(1, 0) == 27, "for five minutes they find the room that they needed"
    assert after(10, 4, waiting=24) == 27, "who waits has none yet"


def test_headroom_is_a_share_of_what_replicas_offer_where_that_is_less_than_configured():
    kept = Headroom()
    assert [kept.slots(43, 128, offered) for offered in (None, 256, 48, 8, 2)] == [43, 43, 8, 1, 0]
    kept.resume(0.0, 100)
    assert [kept.slots(43, 128, offered) for offered in (None, 256, 48, 8, 2)] == [100, 100, 24, 4, 1]


def test_automatic_headroom_is_for_those_who_have_baselines_beside_others():
    guaranteed = entitled("a", GUARANTEED, 2, OverLimit.REFUSE)
    elastic = entitled("b", ELASTIC, 2, OverLimit.REFUSE)
    spot = entitled("c", SPOT, 20, OverLimit.REFUSE)
    assert automatic_headroom(24, [guaranteed, elastic, spot]) == 4
    assert automatic_headroom(24, [guaranteed, spot]) == 2  # never more than all baselines
    assert automatic_headroom(24, [spot, spot]) == 0
    assert automatic_headroom(24, [elastic]) == 0  # nobody else to keep it for
    assert automatic_headroom(24, [guaranteed, guaranteed]) == 0  # nobody who takes what is not his
    assert [automatic_headroom(slots, [guaranteed, elastic, spot]) for slots in (0, 1, 2, 3, 8)] == [0, 0, 0, 1, 1]
