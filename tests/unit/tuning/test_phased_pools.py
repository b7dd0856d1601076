"""A pool with prefill and decode apart, as what-if runs, trials and their gate simulate it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.lab import runs
from controlplane.tuning import replicas
from scheduling.core.types import Phase
from tenants.models import Backend, Pool
from tests.support.tuning_world import traffic, trusted

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def phased(pool: Pool, *phases: Phase) -> Pool:
    """The pool with these backends instead of its own; those that do both have 8 slots, the others 16 and 4."""
    slots = {Phase.BOTH: 8, Phase.DECODE: 16, Phase.PREFILL: 4}
    pool.backends.all().delete()
    for number, phase in enumerate(phases):
        Backend.objects.create(
            slug=f"part-{number}", pool=pool, url=f"http://10.0.1.{number}:8000", slots=slots[phase],
            kv_tokens=100_000, phase=phase,
        )  # fmt: skip
    return Pool.objects.get(pk=pool.pk)


def test_prompts_are_computed_by_prefill_replicas_and_only_the_others_are_room(pool: Pool) -> None:
    now = timezone.now()
    traffic(100, now)
    found = replicas.traffic_of(phased(pool, Phase.PREFILL, Phase.DECODE, Phase.BOTH), now - HOUR, now)
    assert found is not None
    assert [one.phase for one in found.replicas] == [Phase.DECODE, Phase.BOTH, Phase.PREFILL]
    assert len(found.own_credits) == 3
    replay = found.replay(replicas.serving_of(pool))
    assert [backend.slots for backend in replay.view.backends.values()] == [16, 8]
    outcomes = replay.run(found.requests())
    assert len(outcomes) == len(found.requests())
    assert replay.engines[2].counters.output_tokens > 0, "one token of each prompt"
    assert replay.engines[0].counters.prefill_tokens == replay.engines[2].counters.output_tokens


@pytest.mark.parametrize("lone", [Phase.PREFILL, Phase.DECODE])
def test_a_replica_without_its_other_phase_serves_nothing_there_either(pool: Pool, lone: Phase) -> None:
    now = timezone.now()
    traffic(50, now)
    found = replicas.traffic_of(phased(pool, lone, Phase.BOTH), now - HOUR, now)
    assert found is not None
    assert [one.phase for one in found.replicas] == [Phase.BOTH]
    assert replicas.traffic_of(phased(pool, lone), now - HOUR, now) is None, "no backend serves"


def test_its_simulated_figures_are_no_reason_to_change_what_serves(pool: Pool) -> None:
    now = timezone.now()
    traffic(400, now)
    trusted(pool, at=now)
    assert replicas.doubt("llama", 0.25, now) == ""
    apart = phased(pool, Phase.PREFILL, Phase.DECODE)
    assert "prefill and decode are apart" in replicas.doubt("llama", 0.25, now)
    assert replicas.recalibrate(apart, now - HOUR, now) is None


def test_a_what_if_run_with_another_number_of_replicas_is_refused(pool: Pool) -> None:
    now = timezone.now()
    traffic(100, now)
    phased(pool, Phase.PREFILL, Phase.DECODE)
    recording = runs.keep_window(pool=pool, since=now - timedelta(hours=1), until=None, name="an hour", author="ann")
    asked = {"name": "x", "recording": recording, "pool": pool, "author": "ann"}
    with pytest.raises(runs.LabError, match="prefill and decode are apart"):
        runs.ask(spec=runs.RunSpec(("now",), replicas=4), **asked)
    assert runs.ask(spec=runs.RunSpec(("now",)), **asked).pk
