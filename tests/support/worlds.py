"""A small world for tests about who may see what.

Alice and Bob are members of ``acme``, Carol of ``globex``; Olga is an operator, Adam an admin, Nora has no role at all.
Both tenants have an entitlement to the same pool and a key each. Whatever is Alice's, Carol must never see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import transaction

from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Backend, Entitlement, Membership, Pool, Price, Role, Slo, Tenant, Tier

if TYPE_CHECKING:
    from pytest_django import DjangoDbBlocker

PEOPLE = {
    "alice": (Role.MEMBER, "acme"),
    "bob": (Role.MEMBER, "acme"),
    "carol": (Role.MEMBER, "globex"),
    "olga": (Role.OPERATOR, None),
    "adam": (Role.ADMIN, None),
    "nora": (None, None),
}


@dataclass
class World:
    users: dict[str, Any] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    entitlements: dict[str, Entitlement] = field(default_factory=dict)  # by tenant
    keys: dict[str, services.Issued] = field(default_factory=dict)  # by tenant
    tokens: dict[str, services.Issued] = field(default_factory=dict)  # by user
    pool: Pool = None  # type: ignore[assignment]
    backend: Backend = None  # type: ignore[assignment]


def build() -> World:
    """Makes the world through the services, as the product would."""
    world = World()
    with services.change(actor=SYSTEM):
        world.pool = _save(Pool(slug="llama", model="meta/llama"))
        world.backend = _save(
            Backend(slug="gpu-1", pool=world.pool, url="http://10.0.0.1:8000", slots=32, kv_tokens=100_000)
        )
        tiers = {"acme": tier("premium"), "globex": tier("standard")}
        for slug in ("acme", "globex"):
            world.tenants[slug] = _save(Tenant(slug=slug))
            world.entitlements[slug] = _save(
                Entitlement(
                    slug=f"{slug}-llama",
                    tenant=world.tenants[slug],
                    pool=world.pool,
                    tier=tiers[slug],
                    concurrency=8,
                )
            )
            world.keys[slug] = services.issue_key(
                actor=SYSTEM, entitlement=world.entitlements[slug], name=f"{slug} key"
            )
        users = get_user_model()
        for name, (role, tenant) in PEOPLE.items():
            user = users(username=name)
            user.set_unusable_password()
            world.users[name] = _save(user)
            if role is not None:
                _save(Membership(user=user, role=role, tenant=world.tenants[tenant] if tenant else None))
            world.tokens[name] = services.issue_token(actor=SYSTEM, user=user, name="automation")
    for row in (*world.entitlements.values(), *world.users.values()):
        row.refresh_from_db()
    return world


@contextmanager
def kept(blocker: DjangoDbBlocker, *steps: Callable[[World], object]) -> Iterator[World]:
    """A world for all tests of a file, and what ``steps`` put into it. The tests' own transactions lie within this one,
    so each finds its rows as they were made; of the objects it needs a copy. Not for a file in which a test empties the
    database or wants an empty one."""
    with ExitStack() as rows:
        with blocker.unblock():
            rows.enter_context(transaction.atomic())
            world = build()
            for step in steps:
                step(world)
        try:
            yield world
        finally:
            with blocker.unblock():
                transaction.set_rollback(True)
                rows.close()


def tier(slug: str) -> Tier:
    """A shipped tier; made anew where a test's database was emptied of what migrations put there."""
    row = Tier.objects.filter(slug=slug).first()
    if row is not None:
        return row
    slo = Slo.objects.filter(slug="interactive").first() or _save(Slo(slug="interactive", ttft_s=1.0, tbt_s=0.1))
    service_class = {"premium": "guaranteed", "standard": "elastic", "batch": "spot"}[slug]
    return _save(Tier(slug=slug, slo=slo, service_class=service_class))


def _save(instance: Any) -> Any:
    return services.save(actor=SYSTEM, instance=instance)


def charged(price: Price) -> Price:
    """A price of the past, as if it had been made in its time: through the services it would be refused."""
    price.clean_fields()
    price.save()
    return price
