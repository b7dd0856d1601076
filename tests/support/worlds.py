"""A small world for tests about who may see what.

Alice and Bob are members of ``acme``, Carol of ``globex``; Olga is an operator, Adam an admin, Nora has no role at all.
Both tenants have an entitlement to the same pool and a key each. Whatever is Alice's, Carol must never see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from tenants import services
from tenants.audit import SYSTEM
from tenants.models import (
    AccessToken,
    ApiKey,
    AuditEntry,
    AuditHead,
    Backend,
    CatalogVersion,
    Entitlement,
    Membership,
    PolicyVersion,
    Pool,
    Price,
    Role,
    Slo,
    Tenant,
    Tier,
)

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
    """The world as the services make it. They do so once in :data:`FRESH_S` in a process, with 421 queries. Whoever
    finds the database as it was then gets the same rows again, their numbers and secrets included, by one statement for
    each table."""
    if not connection.in_atomic_block or abs(timezone.now().timestamp() - time.clock_gettime(time.CLOCK_REALTIME)) > 1:
        return _build()  # somebody has the signals of a commit, or a clock of his own
    before = _Found.now()
    if before is None:
        return _build()
    if not _first or not _first[0].fresh(timezone.now()):
        _first.clear()
        world = _build()
        _first.append(_Rows.of(world, before))
        return world
    return _first[0].again() if before == _first[0].before else _build()


@dataclass(frozen=True)
class _Found:
    """What the services would have built on."""

    version: tuple[object, ...]
    audit: tuple[object, ...]
    tiers: tuple[object, ...]

    @classmethod
    def now(cls) -> _Found | None:
        """None: there is something already, or what migrations put there is gone."""
        for model in (AuditEntry, get_user_model(), Tenant, Pool):
            if model._base_manager.exists():
                return None
        found = cls(
            tuple(CatalogVersion.objects.values_list()),
            tuple(AuditHead.objects.values_list()),
            tuple(Tier.objects.order_by("pk").values_list()),
        )
        shipped = Tier.objects.filter(slug__in=("premium", "standard")).count() == 2
        return found if found.version and shipped else None


@dataclass(frozen=True)
class _Rows:
    """A world that was built, as the database and the tests have it."""

    before: _Found
    statements: list[tuple[str, list[Any]]]
    world: World

    @classmethod
    def of(cls, world: World, before: _Found) -> _Rows:
        found = {CatalogVersion: before.version, AuditHead: before.audit}
        return cls(before, [_statement(model, bool(found.get(model))) for model in WRITTEN], deepcopy(world))

    def fresh(self, now: datetime) -> bool:
        """Whether it could have been made at ``now``: a pool of an earlier hour has charged already."""
        made = self.world.pool.created_at
        return now - made <= timedelta(seconds=FRESH_S) and (made.date(), made.hour) == (now.date(), now.hour)

    def again(self) -> World:
        with connection.cursor() as cursor:
            for statement, values in self.statements:
                cursor.execute(statement, values)
        return deepcopy(self.world)


def _statement(model: type[Model], stood: bool) -> tuple[str, list[Any]]:
    """What writes all rows that ``model`` has now, or the only one anew if one ``stood`` there before."""
    quote, columns = connection.ops.quote_name, [field.column for field in model._meta.concrete_fields]
    names, table = ", ".join(map(quote, columns)), quote(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {table} ORDER BY {quote(model._meta.pk.column)}")
        rows = cursor.fetchall()
    if stood:
        [row] = rows
        return f"UPDATE {table} SET {', '.join(f'{quote(column)} = %s' for column in columns)}", list(row)
    places = ", ".join([f"({', '.join(['%s'] * len(columns))})"] * len(rows))
    return f"INSERT INTO {table} ({names}) VALUES {places}", [value for row in rows for value in row]


WRITTEN: tuple[type[Model], ...] = (  # by building, each before what refers to it
    get_user_model(), Tenant, Pool, Backend, Entitlement, Membership, ApiKey, AccessToken, PolicyVersion, AuditEntry,
    AuditHead, CatalogVersion,
)  # fmt: skip
FRESH_S = 120.0  # of age: some tests mind when a key or an entitlement was made
_first: list[_Rows] = []


def _build() -> World:
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
