"""Versions of a pool's policy: who changed what, and the way back."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from tenants import services, tuning
from tenants.models import Author, PolicyVersion, Pool
from tests.support.tuning_world import ANN

pytestmark = pytest.mark.django_db


def test_whoever_changes_a_policy_makes_a_version_that_says_who_and_what(pool: Pool):
    services.set_policy(actor=ANN, pool=pool, policy="ewsjf", params={"partition": "1-9000", "urgency": 2.0})
    second, first = PolicyVersion.objects.filter(pool=pool)
    assert (first.number, second.number, second.parent) == (1, 2, first)
    assert (second.author, second.author_kind) == ("ann", Author.PERSON)
    assert second.changes == {"policy_params.urgency": [None, 2.0]}
    assert second.partition == "1-9000"


def test_a_version_is_never_changed(pool: Pool):
    version = tuning.version_now(pool)
    version.reason = "another"
    with pytest.raises(ValueError, match="never changed"):
        version.save()


def test_another_change_of_a_pool_is_no_version(pool: Pool):
    pool.queue_limit = 5
    services.save(actor=ANN, instance=pool)
    assert PolicyVersion.objects.count() == 1


def test_a_pool_older_than_its_versions_gets_the_one_before_with_the_next_change(pool: Pool):
    PolicyVersion.objects.all().delete()
    services.set_policy(actor=ANN, pool=pool, policy="fifo", params={})
    assert [(v.number, v.policy) for v in PolicyVersion.objects.filter(pool=pool)] == [(2, "fifo"), (1, "ewsjf")]


def test_one_call_goes_back_to_an_earlier_version_as_a_new_one(pool: Pool):
    services.set_policy(actor=ANN, pool=pool, policy="fifo", params={})
    pool = tuning.rollback(actor=ANN, pool=pool, number=1)
    assert (pool.policy, pool.policy_version, pool.policy_params) == ("ewsjf", 3, {"partition": "1-9000"})
    assert tuning.version_now(pool).restores == 1
    with pytest.raises(ValidationError, match="no version 9"):
        tuning.rollback(actor=ANN, pool=pool, number=9)
