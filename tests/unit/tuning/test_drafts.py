"""Any change of a pool is drafted, checked, replayed, tried and kept or taken back by one way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.tuning import drafts as judged
from controlplane.tuning import loop
from tenants import services, tuning
from tenants.models import Backend, CatalogVersion, Entitlement, Pool, Slo, Tenant, Tier, Trial, TrialState
from tests.support.tuning_world import ANN, FAST, traffic, tuned

pytestmark = pytest.mark.django_db


@pytest.fixture
def share(pool: Pool) -> Entitlement:
    for backend in pool.backends.all():  # room for a larger one
        backend.slots = 16
        services.save(actor=ANN, instance=backend)
    tier = Tier.objects.filter(slug="premium").first() or services.save(
        actor=ANN, instance=Tier(slug="premium", slo=Slo.objects.filter(slug="quick").first() or _slo())
    )
    tenant = Tenant.objects.filter(slug="acme").first() or services.save(actor=ANN, instance=Tenant(slug="acme"))
    row = Entitlement(slug="acme-premium", tenant=tenant, pool=pool, tier=tier, concurrency=4)
    return services.save(actor=ANN, instance=row)


def _slo() -> Slo:
    return services.save(actor=ANN, instance=Slo(slug="quick", ttft_s=1.0, tbt_s=0.1))


def draft(pool: Pool, *, window: tuning.Window | None = None, **setting: Any) -> Trial:
    return tuning.propose_setting(actor=ANN, pool=pool, setting=setting, reason="what if", window=window)


def of(kind: str, name: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "values": values}


def test_a_draft_changes_nothing_until_it_is_started_and_gives_all_of_it_back(pool: Pool, share: Entitlement) -> None:
    backend = pool.backends.first()
    assert backend is not None
    version, weight = CatalogVersion.objects.get().version, share.tier.weight
    trial = draft(
        pool,
        policy="fifo", policy_params={}, modifiers={"fair": {}}, room={"prefill_credit": 512},
        objects=[
            of("entitlement", share.slug, concurrency=9), of("tier", share.tier.slug, weight=weight + 7),
            of("backend", backend.slug, slots=backend.slots + 1),
        ],
    )  # fmt: skip
    pool.refresh_from_db()
    share.refresh_from_db()
    assert (pool.policy, share.concurrency, CatalogVersion.objects.get().version) == ("ewsjf", 4, version)

    tuning.start_canary(actor=ANN, trial=trial, reason="try it", for_s=600)
    pool.refresh_from_db()
    share.refresh_from_db()
    assert (pool.policy, pool.modifiers, pool.prefill_credit) == ("fifo", {"fair": {}}, 512)
    assert (share.concurrency, share.tier.weight) == (9, weight + 7)
    assert Backend.objects.get(pk=backend.pk).slots == backend.slots + 1
    trial.refresh_from_db()
    assert trial.canary_until - trial.canary_at == timedelta(minutes=10)

    tuning.close(actor=ANN, trial=trial, state=TrialState.ROLLED_BACK, reason="enough")
    pool.refresh_from_db()
    share = Entitlement.objects.get(pk=share.pk)
    assert (pool.policy, pool.modifiers, pool.prefill_credit) == ("ewsjf", {}, None)
    assert (share.concurrency, share.tier.weight) == (4, weight)
    assert Backend.objects.get(pk=backend.pk).slots == backend.slots


def test_a_draft_of_shares_alone_is_kept_without_a_new_policy_version(pool: Pool, share: Entitlement) -> None:
    trial = draft(pool, objects=[of("entitlement", share.slug, concurrency=6)])
    tuning.start_canary(actor=ANN, trial=trial, reason="try it")
    assert loop.tend("llama") == "watched"
    assert tuning.close(actor=ANN, trial=trial, state=TrialState.PROMOTED, reason="kept")
    share.refresh_from_db()
    pool.refresh_from_db()
    assert (share.concurrency, pool.policy_version) == (6, 1)


def test_what_somebody_changed_during_a_trial_stays_as_that_person_left_it(pool: Pool, share: Entitlement) -> None:
    trial = draft(pool, objects=[of("entitlement", share.slug, concurrency=6, kv_tokens=1000)])
    tuning.start_canary(actor=ANN, trial=trial, reason="try it")
    share.refresh_from_db()
    share.concurrency = 2
    services.save(actor=ANN, instance=share)
    tuning.rollback(actor=ANN, pool=pool, number=1)
    share.refresh_from_db()
    trial.refresh_from_db()
    assert (share.concurrency, share.kv_tokens) == (2, 0)
    assert "entitlement acme-premium: concurrency was changed meanwhile" in trial.reason


def test_a_draft_whose_objects_were_changed_since_cannot_be_started(pool: Pool, share: Entitlement) -> None:
    trial = draft(pool, objects=[of("entitlement", share.slug, concurrency=6)])
    share.concurrency = 5
    services.save(actor=ANN, instance=share)
    with pytest.raises(ValidationError, match="concurrency was changed since"):
        tuning.start_canary(actor=ANN, trial=trial, reason="try it")
    share.refresh_from_db()
    assert share.concurrency == 5


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"policy": "no-such"}, "no-such"),
        ({"policy_params": {"no_such": 1}}, "no_such"),
        ({"modifiers": {"no-such": {}}}, "no-such"),
        ({"routing": "no-such"}, "no-such"),
        ({}, "Nothing would change"),
        ({"room": {"prefill_credit": None}}, "Nothing would change"),
        ({"objects": [of("entitlement", "no-such", concurrency=1)]}, "has no entitlement 'no-such'"),
        ({"objects": [of("entitlement", "acme-premium", tenant="globex")]}, "tenant cannot be tried"),
        ({"objects": [of("entitlement", "acme-premium", concurrency="many")]}, "must be an integer"),
        ({"objects": [of("entitlement", "acme-premium", concurrency=0)]}, "greater than or equal to 1"),
        ({"objects": [of("key", "acme-premium", concurrency=1)]}, "'key' cannot be tried"),
        ({"objects": [of("entitlement", "acme-premium", concurrency=n) for n in (5, 6)]}, "named twice"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_with_the_reason(
    setting: dict[str, Any], said: str, pool: Pool, share: Entitlement
) -> None:
    with pytest.raises(ValidationError) as refused:
        draft(pool, **setting)
    assert said in str(refused.value)
    assert not Trial.objects.exists()
    share.refresh_from_db()
    assert share.concurrency == 4


def test_a_draft_under_which_a_share_could_not_be_kept_is_refused_with_its_reason(
    pool: Pool, share: Entitlement
) -> None:
    share.tier.service_class = "guaranteed"
    services.save(actor=ANN, instance=share.tier)
    assert Entitlement.objects.get(pk=share.pk).state == "bound"
    with pytest.raises(ValidationError, match="acme-premium would be degraded: needs 9000 slots, the pool has"):
        draft(pool, objects=[of("entitlement", share.slug, concurrency=9000)])
    assert not Trial.objects.exists()
    assert Entitlement.objects.get(pk=share.pk).concurrency == 4


def test_a_draft_is_replayed_on_the_window_that_was_chosen_and_waits_for_its_author(
    pool: Pool, share: Entitlement
) -> None:
    tuned(pool, "off")
    yesterday = timezone.now() - timedelta(days=1)
    traffic(200, yesterday)
    window = (yesterday - timedelta(minutes=10), yesterday + timedelta(seconds=1))
    trial = draft(pool, window=window, objects=[of("tier", share.tier.slug, weight=share.tier.weight + 7)])
    assert loop.tend("llama") == "proposed"
    trial.refresh_from_db()
    assert trial.requests == 200
    assert trial.gate["hurts"] is False
    was, now = trial.gate["attainment"]["premium"]
    assert was == now, "with one tier its weight changes nothing"
    assert (trial.window_from, trial.window_until) == window


def test_a_draft_on_a_window_without_traffic_is_rejected_and_says_so(pool: Pool) -> None:
    tuned(pool, "off")
    now = timezone.now()
    trial = draft(pool, window=(now - timedelta(hours=2), now - timedelta(hours=1)), policy="fifo", policy_params={})
    assert loop.tend("llama") == "rejected"
    trial.refresh_from_db()
    assert trial.reason == f"the chosen window has fewer than {FAST['least_requests']} requests"


def test_a_draft_with_fewer_slots_that_makes_a_tier_late_is_rejected_before_it_serves(pool: Pool) -> None:
    tuned(pool, "off")
    backend = pool.backends.first()
    assert backend is not None
    traffic(400, timezone.now(), rate=8.0)
    trial = draft(pool, objects=[of("backend", backend.slug, slots=1)])
    assert loop.tend("llama") == "rejected"
    trial.refresh_from_db()
    assert trial.gate["hurts"] is True
    assert Backend.objects.get(pk=backend.pk).slots == backend.slots, "the replay leaves nothing behind"


def test_a_draft_that_fits_no_more_is_rejected_with_the_reason(pool: Pool, share: Entitlement) -> None:
    tuned(pool, "off")
    traffic(200, timezone.now())
    trial = draft(pool, objects=[of("entitlement", share.slug, concurrency=6)])
    share.concurrency = 5
    services.save(actor=ANN, instance=share)
    found = judged.judge(pool, trial, pool.tuning.loop, timezone.now() - timedelta(hours=1), timezone.now())
    assert found is not None
    assert found["hurts"]
    assert "it does not fit any more" in found["reason"]
