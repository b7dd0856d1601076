"""What experiments of our own conclude from their clients' requests, and that their drawings can be made."""

from __future__ import annotations

from dataclasses import asdict, replace
from xml.etree import ElementTree

import pytest

from controlplane.experiments.clients import Sent
from controlplane.experiments.drawings import drawings
from controlplane.experiments.figures import summary
from controlplane.experiments.isolation import EVICTION, NOISY, OUTAGE, herd, noise, taken_back
from controlplane.experiments.plan import Experiment
from controlplane.experiments.pools import POOLS_1, POOLS_2
from controlplane.experiments.run import result
from controlplane.experiments.samples import Sample


def served(name, sent_s, queue_s=0.0, ttft_s=0.2, reason="", lasts_s=4.0):
    return Sent(name, sent_s, 200, reason, ttft_s=queue_s + ttft_s, done_s=sent_s + lasts_s, queue_s=queue_s)


def refused(name, sent_s, retry_s, reason="low_priority"):
    return Sent(name, sent_s, 429, reason, done_s=sent_s, retry_s=retry_s)


def test_noise_is_what_quiet_tenants_wait_longer_than_alone():
    rows = [served("quiet-01", 10.0 + n, queue_s=0.1) for n in range(20)]
    rows += [served("quiet-02", 100.0 + n, queue_s=0.3) for n in range(20)]
    rows += [served("spot-noisy", 100.0, queue_s=9.0)]
    found = noise(NOISY, rows, [])
    assert (found["alone"]["queue_p95_s"], found["noisy"]["queue_p95_s"]) == (0.1, 0.3)
    assert found["queue_p95_ratio"] == pytest.approx(3.0)


@pytest.mark.parametrize(("noisy_s", "ratio"), [(0.0, 1.0), (0.2, "inf")])
def test_who_did_not_wait_alone_must_not_wait_beside_the_noise(noisy_s, ratio):
    rows = [served("quiet-01", 10.0), served("quiet-01", 100.0, queue_s=noisy_s)]
    assert noise(NOISY, rows, [])["queue_p95_ratio"] == ratio


def test_a_herd_is_told_by_what_was_refused_and_when_it_came_back():
    rows = [refused("spot-herd", 60.0 + n / 10, 0.30 + n / 100) for n in range(10)]
    rows += [refused("guaranteed-a", 70.0, 1.0, "concurrency")]
    rows += [served("spot-herd", 121.0 + n / 100) for n in range(50)]
    found = herd(OUTAGE, rows, [Sample(100.0, 0, 8, 0, 8), Sample(123.5, 0, 8, 2, 16)])
    assert found["guaranteed_refused"] == {"concurrency": 1}
    assert sum(found["retry_after_histogram"].values()) == 11
    assert (found["sent_per_s_after_max"], found["ready_again_s"]) == (50, 3.5)


def test_evictions_are_timed_from_the_owner_s_arrival_and_overtaking_is_counted():
    rows = [served("dedicated-owner", 10.0), served("preemptible-low", 8.0, reason="evicted", lasts_s=2.25)]
    rows += [served("dedicated-owner", 60.0, queue_s=1.0)]
    rows += [served("elastic-lent", 57.0, queue_s=2.0), served("elastic-lent", 58.0, queue_s=5.0)]
    found = taken_back(EVICTION, rows, [])
    assert (found["evicted"], found["evicted_ends_max_s"]) == (1, pytest.approx(0.25))
    assert (found["owner_wait_max_s"], found["overtaken_max"]) == (1.0, 0)
    rows.append(served("elastic-lent", 57.0, queue_s=3.5))  # it got its slot half a second after the owner asked
    assert taken_back(EVICTION, rows, [])["overtaken_max"] == 1


def test_what_was_kept_can_be_drawn():
    def kept(experiment: Experiment, *, admission: bool = True):
        rows = [served(m.name, p.starts_s + 1.0) for m in experiment.members for p in experiment.phases]
        rows += [refused(experiment.members[-1].name, experiment.phases[-2].starts_s + 2.0, 0.3)]
        shares = {m.name: {"running": 1, "weight": 20.0, "debt": 0.1} for m in experiment.members}
        samples = [Sample(float(at), 1, 4, 0, 16, shares, 200.0) for at in range(0, int(experiment.length_s), 10)]
        found = result(experiment, rows, samples, admission=admission, seed=0)
        assert found["phases"] == summary(experiment, rows, samples)["phases"]
        assert found["requests"] == [asdict(row) for row in rows]
        return found

    made = drawings([
        kept(POOLS_1), kept(POOLS_1, admission=False), kept(POOLS_2), kept(NOISY),
        kept(replace(NOISY, headroom_slots=0)), kept(OUTAGE), kept(EVICTION),
    ])  # fmt: skip
    assert set(made) == {
        "token-pools-2-queue", "token-pools-3-latency", "token-pools-4-slots", "token-pools-5-priority",
        "token-pools-6-service", "noisy-neighbour", "outage",
    }  # fmt: skip
    for drawing in made.values():
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
