"""What a person proposes is tried like what the loop proposes."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.tuning import loop, proposals
from tenants import tuning
from tenants.models import Pool, Trial, TrialState
from tests.support.tuning_world import ANN, traffic, tuned

pytestmark = pytest.mark.django_db


def asked(pool: Pool, **params: float | str) -> Trial:
    return tuning.propose(actor=ANN, pool=pool, params={**pool.policy_params, **params}, reason="what if")


def test_what_a_person_proposes_is_tried_on_recent_traffic_in_any_mode(pool: Pool):
    tuned(pool, "off")
    trial = asked(pool, partition="1-300,1900-4100", urgency=0.01, urgency_slope=-10.0, base=100.0)
    assert loop.tend("llama") == "off", "there is nothing to try it on yet"
    traffic(600, timezone.now(), rate=7.0)
    assert loop.tend("llama") == "rejected"
    trial.refresh_from_db()
    assert "starves premium, long" in trial.reason
    assert trial.gate["waits"]
    with pytest.raises(ValidationError, match="only a proposed one"):
        tuning.start_canary(actor=ANN, trial=trial, reason="anyway")
    assert loop.tend("llama") == "off"


def test_what_a_person_proposes_and_wins_waits_for_that_person(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    tuned(pool)
    monkeypatch.setattr(proposals, "gate", lambda *_: (True, "it wins", {"passed": True}))
    traffic(300, timezone.now())
    trial = asked(pool, urgency=2.0)
    assert loop.tend("llama") == "proposed"
    trial.refresh_from_db()
    assert (trial.state, trial.reason) == (TrialState.PROPOSED, "it wins")
    pool.refresh_from_db()
    assert pool.policy_version == 1, "whoever proposed it starts it"
