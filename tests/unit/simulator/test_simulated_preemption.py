"""Long prompts among short ones, behind the product's rules: who interrupts them, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import EntitlementSpec, EntitlementState, ServiceClass, Slo, TierSpec
from scheduling.simulator.admission import Admission
from scheduling.simulator.prefix_cache import prefixes_of
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import BLOCK_TOKENS, Belief, SimRequest, Tier, make_request
from tests.support.state_world import pool_spec

PREMIUM = Tier("premium", Slo(ttft_s=1.0), 0, 50.0, 1.0, ServiceClass.ELASTIC)
BATCH = Tier("batch", Slo(ttlt_s=600.0), 2, 1.0, 1.0, ServiceClass.ELASTIC)
BELIEF = Belief(40.0, 200, (40.0,), (1.0,))
DOCUMENTS = 12


def asked(*, named: bool, whole: bool = False, owner: bool = False) -> list[SimRequest]:
    """A minute: premium asks a short question three times a second, batch has a document of 40,000 tokens every five
    seconds, which takes a replica four. ``named``: prompts have blocks, by which caches know them."""
    draw, rows, blocks = Random(3), [], 0
    for n in range(DOCUMENTS):
        rows.append((5.0 * n, 40_000, BATCH))
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(3.0)) < 60.0:
        rows.append((at_s, draw.randint(50, 400), PREMIUM))
    requests = []
    for number, (at_s, tokens, tier) in enumerate(sorted(rows, key=lambda row: row[0])):
        made = make_request(number, at_s, tokens, 40, tier, BELIEF)
        if owner and tier is PREMIUM:
            made = replace(made, queued=replace(made.queued, service_class=ServiceClass.GUARANTEED, concurrency=100))
        if named:
            ids = tuple(range(blocks, blocks + tokens // BLOCK_TOKENS))
            blocks += len(ids)
            queued = replace(made.queued, prefixes=prefixes_of(ids, tokens))
            made = replace(made, queued=queued, blocks=ids)
        requests.append(replace(made, whole=whole and tier is BATCH))
    return requests


@dataclass
class Served:
    outcomes: list[Outcome]
    interruptions: int
    computed: int  # prompt tokens, by the engines
    replay: Replay

    @property
    def premium(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.tier == "premium"]

    @property
    def in_time(self) -> float:
        return sum(o.ttft_s <= 1.0 for o in self.premium) / len(self.premium)


def served(
    requests: list[SimRequest], *, resumes: bool = True, replicas: int = 1, specs: Sequence[EntitlementSpec] = ()
) -> Served:
    preset = load_preset("llama-3-8b-a100")
    replica = Replica(preset.step_time, 128, 421_000, 1024, None, "priority")
    setting = (lambda view: Admission(pool_spec(backends=()), specs, view)) if specs else None
    routing = make_routing("prefix_affinity")
    replay = Replay([replica] * replicas, make_ordering("unified"), routing, signal_s=0.005, admission=setting)
    for backend in replay.view.backends.values():
        backend.resumes = resumes
    outcomes = replay.run(requests)
    return Served(outcomes, replay.interruptions, sum(e.counters.prefill_tokens for e in replay.engines), replay)


def spec(name: str, tier: Tier, max_wait_s: float = 600.0) -> EntitlementSpec:
    contract = TierSpec(tier.name, tier.service_class, tier.rank, tier.weight, tier.slo, max_wait_s=max_wait_s)
    return EntitlementSpec(name, name, "p", contract, EntitlementState.BOUND, 0.0, 0.0, 0, 100)


SPECS = [spec("premium", PREMIUM), spec("batch", BATCH)]


@pytest.mark.parametrize("named", [True, False], ids=["blocks", "no blocks"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole answers", "streams"])
def test_short_questions_of_a_better_tier_do_not_wait_for_documents(named: bool, whole: bool) -> None:
    requests = asked(named=named, whole=whole)
    never, once = served(requests, resumes=False), served(requests)
    assert never.interruptions == 0
    assert never.in_time < 0.4, "the test would see it"
    assert once.in_time > 0.85
    assert 0 < once.interruptions <= 10 * DOCUMENTS


def test_a_moment_less_than_a_femtosecond_away_does_not_keep_the_replay_at_one_instant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3.4325 + 0.2 is more than 3.6325 by rounding, and no event is later than another by that."""
    first: list[float] = []

    def again(_prompts: object, now_s: float) -> float:
        first.append(now_s)
        assert first.count(first[0]) < 100, "it stands still"
        return 1e-16 if now_s == first[0] else 0.0

    monkeypatch.setattr("scheduling.simulator.interruptions.again_in_s", again)
    requests = asked(named=True)
    assert len(served(requests).outcomes) == len(requests)


def test_every_document_is_answered_and_hardly_anything_is_computed_twice() -> None:
    requests = asked(named=True)
    after = served(requests)
    assert len(after.outcomes) == len(requests)
    documents = [o for o in after.outcomes if o.tier == "batch"]
    assert len(documents) == DOCUMENTS
    assert all(o.output_tokens == 40 for o in documents)
    needed = sum(request.input_tokens for request in requests)
    assert needed <= after.computed <= 1.03 * needed
    (left,) = after.replay.view.backends.values()
    assert (left.running, left.kv_used, left.prefill_used, left.work_tokens) == (0, 0, 0, 0)


def test_what_is_interrupted_waits_under_its_entitlement() -> None:
    after = served(asked(named=True), specs=SPECS)
    assert after.interruptions > 0
    assert not any(o.refused for o in after.outcomes)
    admission = after.replay._admission
    assert admission is not None
    for name in ("premium", "batch"):
        share = admission.share(name)
        assert (share.running, share.waiting, share.kv) == (0, 0, 0)
    assert admission.waiting == 0


def test_what_is_interrupted_may_wait_for_as_long_as_when_it_came() -> None:
    """It ran when the longest wait that began with its arrival was over; and who waits for longer is told so."""
    requests = [r for r in asked(named=True) if r.queued.tier == "premium" or r.arrival_fs == 0]
    patient = served(requests, specs=[spec("premium", PREMIUM), spec("batch", BATCH, 1.5)])
    assert patient.interruptions > 3
    assert [o.refused for o in patient.outcomes if o.tier == "batch"] == [""]
    hasty = served(requests, specs=[spec("premium", PREMIUM), spec("batch", BATCH, 0.02)])
    assert len(hasty.outcomes) == len(requests)
    assert [o.refused for o in hasty.outcomes if o.tier == "batch"] == ["queue_timeout"]


def test_owners_who_go_beside_a_document_do_not_wait_for_it_inside_the_engine() -> None:
    requests = asked(named=True, owner=True)
    assert served(requests, resumes=False).in_time < 0.4
    assert served(requests).in_time > 0.9


def test_with_an_idle_replica_nothing_is_interrupted() -> None:
    assert served(asked(named=True), replicas=4).interruptions == 0


def test_an_interrupted_document_goes_on_where_it_was_begun() -> None:
    """Three replicas for documents of one and a half: one computes what another had begun only where it is lost."""
    requests = [replace(r, arrival_fs=r.arrival_fs // 3) for r in asked(named=True)]
    after = served(requests, replicas=2)
    assert after.interruptions > 0
    assert after.computed <= 1.03 * sum(request.input_tokens for request in requests)
