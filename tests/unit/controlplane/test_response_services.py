"""Kept responses in the database: whose they are, how many, how long, and that who reads the table reads nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.responses import services
from controlplane.responses.models import StoredResponse
from scheduling.gateway.answers.stored import Kept, Owner
from tenants.models import Project, Tenant

pytestmark = pytest.mark.django_db
SECRET = b"s" * 32
ACME, TEAM, OTHER = Owner("acme", ""), Owner("acme", "team"), Owner("other", "")


def bounded(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    from dataclasses import replace

    env = replace(settings.ENV, **changes)
    monkeypatch.setattr(services, "_env", lambda: env)


def keep(number: int, owner: Owner = ACME, text: bytes = b"") -> bool:
    kept = Kept(b'[{"content":"%b"}]' % text, b'{"id":"resp_%d"}' % number)
    return services.keep(SECRET, owner, f"resp_{number}", kept, lambda: False)


def names() -> list[str]:
    return sorted(StoredResponse.objects.values_list("public_id", flat=True))


def test_a_response_is_its_projects_alone_and_cannot_be_read_in_the_table() -> None:
    assert keep(1, TEAM, b"a secret plan")
    kept = services.load([SECRET], TEAM, "resp_1")
    assert kept == Kept(b'[{"content":"a secret plan"}]', b'{"id":"resp_1"}')
    for owner in (ACME, OTHER, Owner("other", "team")):
        assert services.load([SECRET], owner, "resp_1") is None
        assert not services.delete(owner, "resp_1")
    assert services.load([b"t" * 32], TEAM, "resp_1") is None, "the secret of another deployment"
    row = StoredResponse.objects.get()
    assert b"secret" not in bytes(row.sealed)
    StoredResponse.objects.update(tenant="other", project="")
    assert services.load([SECRET], OTHER, "resp_1") is None, "a row that was made another's opens for nobody"


def test_the_oldest_go_where_a_tenant_has_as_many_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, responses_per_tenant=3)
    for number in range(5):
        keep(number)
    keep(9, OTHER)
    assert names() == ["resp_2", "resp_3", "resp_4", "resp_9"]


def test_the_oldest_go_where_a_tenant_has_as_many_bytes_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    text = random.Random(1).randbytes(400).hex().encode()
    assert keep(0, text=text)
    size = StoredResponse.objects.get().bytes
    bounded(monkeypatch, responses_bytes=int(size * 2.5))
    for number in range(1, 4):
        keep(number, text=text)
    assert names() == ["resp_2", "resp_3"]
    assert not keep(7, text=random.Random(1).randbytes(4000).hex().encode()), "larger than all that may be kept"
    assert names() == ["resp_2", "resp_3"], "and nothing went for it"


def test_what_nobody_waits_for_any_more_is_not_kept() -> None:
    asked = iter([False, True])
    with pytest.raises(services.GivenUp):
        services.keep(SECRET, ACME, "resp_1", Kept(b"[]", b"{}"), lambda: next(asked))
    assert names() == []


def test_what_has_expired_is_not_found_and_goes() -> None:
    keep(1)
    keep(2)
    StoredResponse.objects.filter(public_id="resp_1").update(expires_at=timezone.now() - timedelta(seconds=1))
    assert services.load([SECRET], ACME, "resp_1") is None
    assert not services.delete(ACME, "resp_1")
    services.tidy()
    assert names() == ["resp_2"]
    assert services.delete(ACME, "resp_2")
    assert names() == []


@pytest.mark.parametrize("scope", ["tenant", "project"])
def test_who_takes_the_name_of_one_that_is_gone_has_none_of_its_responses(scope: str) -> None:
    tenant = Tenant.objects.create(slug="acme")

    def made() -> Tenant | Project:
        return Project.objects.create(slug="team", tenant=tenant) if scope == "project" else tenant

    gone = made()
    keep(1, TEAM)
    keep(2, OTHER)
    gone.delete()
    assert services.load(SECRET, TEAM, "resp_1") is None
    keep(3, TEAM)  # it was on its way
    if scope == "project":
        made()
    else:
        Tenant.objects.create(slug="acme")
    assert services.load(SECRET, TEAM, "resp_3") is None
    services.tidy()
    assert names() == ["resp_2"]
