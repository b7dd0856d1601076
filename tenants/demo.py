"""The demo's catalog for an embedded instance: a pool, three tenants with a key each, three people who may look.

Called at every start. What a person changed meanwhile stays: only engines follow the arguments, and entitlements that
still have the size given here follow the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal

from django.contrib.auth import get_user_model
from django.utils import timezone

from scheduling.engines.kinds import kind_of
from tenants import keys, services, tuning
from tenants.audit import Actor
from tenants.models import (
    AccessToken,
    ApiKey,
    Backend,
    Budget,
    Entitlement,
    Membership,
    Pool,
    Price,
    Role,
    Tenant,
    Tier,
    TuningMode,
)
from tenants.models.capacity import PrefixCache

ACTOR = Actor("demo", "system")
STARTED_BY_US = "Started by `make up`."


@dataclass(frozen=True, slots=True)
class DemoEngine:
    id: str
    url: str
    slots: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class DemoKeys:
    """Keys in clear text, by tier. The caller keeps them; the database has only digests."""

    premium: str
    standard: str
    batch: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Customer:
    slug: str
    description: str
    tier: str
    share: float  # of the pool's slots, as concurrency

    def concurrency(self, slots: int) -> int:
        return max(1, int(slots * self.share))


_CUSTOMERS = (
    _Customer("acme", "Its product talks to people.", "premium", 0.4),
    _Customer("globex", "Its staff ask questions.", "standard", 0.4),
    _Customer("initech", "It summarises documents at night.", "batch", 1.0),
)
# The whole strategic loop within ten minutes of a first start: such a pool begins with queues by prompt length, which
# know nothing of tiers, so there is something to find.
BEGINS_WITH = "ewsjf"
TUNED = {
    "every_s": 120, "window_s": 480, "interval_s": 90, "trials": 16, "pairs": 5, "least_requests": 240,
    "most_requests": 900,
}  # fmt: skip
# What the demo's load costs within minutes is seen under Usage; the budget only raises an alert.
PRICE = {"per_million_input": Decimal("0.10"), "per_million_output": Decimal("0.40")}
BUDGET = ("acme", Decimal(25))
_PEOPLE = (("admin", Role.ADMIN, None), ("operator", Role.OPERATOR, None), ("member", Role.MEMBER, "acme"))


def ensure_demo(
    pool_id: str,
    model: str,
    backends: Sequence[tuple[str, str, int, int]],
    upstream_model: str | None = None,
    *,
    description: str = "The demo's model.",
    passwords: Mapping[str, str],
    remembered: Mapping[str, str] | None = None,
    max_model_len: int = 8192,
    engine: str = "",
    caches: bool = False,
    show_tuning: bool = False,
    priced: bool = False,
    api_key: str = "",
) -> DemoKeys:
    """Makes the demo's catalog, or brings them up to date.

    Args:
        backends: (id, url, slots, KV tokens) of each engine.
        passwords: for ``admin``, ``operator`` and ``member``. They are set when a user is made, and when nothing is
            remembered; a password that a person changed meanwhile stays.
        remembered: keys by tier as an earlier call returned them; they are kept while they work.
        engine: the kind of the engines; empty keeps that of a pool which is there.
        caches: the engines have prefix caches: a new pool places prompts by them, as every new pool does.
        show_tuning: a new pool begins with queues by length and automatic tuning at short intervals, so that all of
            the strategic loop is seen within minutes. Otherwise it begins as every new pool does.
        priced: a new pool has prices and the first customer a budget, so that Usage shows money.
        api_key: what the engines want; empty keeps what a backend has.

    Returns:
        The keys, in clear text.
    """
    engines = [DemoEngine(*backend) for backend in backends]
    with services.change(actor=ACTOR, reporting=True):  # it must start with whatever engines there are
        new = not Pool.objects.filter(slug=pool_id).exists()
        shows = show_tuning and new
        first = {"description": description} | ({"policy": BEGINS_WITH} if shows else {})
        first |= {} if caches else {"routing": "least_work"}
        pool = _pool(pool_id, model, upstream_model or "", max_model_len, engine, first)
        if priced and new:
            services.save(actor=ACTOR, instance=Price(pool=pool, **PRICE))
        if shows:
            tuning.set_tuning(actor=ACTOR, pool=pool, mode=TuningMode.AUTOMATIC, settings=TUNED)
        slots_before = _slots(pool)
        _engines(pool, engines, api_key)
        texts = {}
        for customer in _CUSTOMERS:
            entitlement = _entitlement(customer, pool, slots_before, sum(engine.slots for engine in engines))
            texts[customer.tier] = _key(entitlement, (remembered or {}).get(customer.tier, ""))
        if priced and new:
            _budget(*BUDGET)
        for username, role, tenant in _PEOPLE:
            _person(username, role, tenant, passwords[username], reset=remembered is None)
    return DemoKeys(**texts)


def ensure_token(username: str, remembered: str = "") -> str:
    """An access token of this user, in clear text: the remembered one while it works, or else a new one."""
    credential = keys.parse(remembered)
    if credential is not None:
        row = AccessToken.active_at(timezone.now()).filter(public_id=credential.public_id).first()
        if row is not None and row.user.get_username() == username and keys.matches(credential, row.digest):
            return remembered
    user = get_user_model()._default_manager.get(username=username)
    return services.issue_token(actor=ACTOR, user=user, name="demo").credential.text


def _pool(
    slug: str, model: str, upstream_model: str, max_model_len: int, engine: str, first: Mapping[str, str]
) -> Pool:
    largest = max(1, max_model_len // 2)
    pool = Pool.objects.filter(slug=slug).first() or Pool(
        slug=slug,
        **first,
        max_output_tokens=min(4096, largest),
        default_output_tokens=min(512, largest),
    )
    pool.model, pool.upstream_model, pool.max_model_len = model, upstream_model, max_model_len
    pool.engine = engine or pool.engine
    if engine and not kind_of(engine).takes_cache_salt:
        pool.prefix_cache = PrefixCache.UNSALTED  # all that such engines can do
    pool.max_output_tokens = min(pool.max_output_tokens, max_model_len)
    pool.default_output_tokens = min(pool.default_output_tokens, pool.max_output_tokens)
    return services.save(actor=ACTOR, instance=pool)


def _slots(pool: Pool) -> int:
    return sum(pool.backends.filter(managed=False).values_list("slots", flat=True))  # a scaling driver's come and go


def _engines(pool: Pool, engines: Sequence[DemoEngine], api_key: str) -> None:
    """Engines get new ports at every start, and their number may change: ours go and come, others stay."""
    wanted = {engine.id: engine for engine in engines}
    for row in pool.backends.filter(description=STARTED_BY_US):
        if row.slug not in wanted or wanted[row.slug].url != row.url:
            services.delete(actor=ACTOR, instance=row)
    for engine in engines:
        row = Backend.objects.filter(slug=engine.id).first() or Backend(slug=engine.id, description=STARTED_BY_US)
        row.pool, row.url, row.slots, row.kv_tokens = pool, engine.url, engine.slots, engine.kv_tokens
        row.api_key = api_key or row.api_key
        services.save(actor=ACTOR, instance=row)


def _entitlement(customer: _Customer, pool: Pool, slots_before: int, slots: int) -> Entitlement:
    tenant = Tenant.objects.filter(slug=customer.slug).first() or services.save(
        actor=ACTOR, instance=Tenant(slug=customer.slug, description=customer.description)
    )
    slug = f"{customer.slug}-{pool.slug}"[:63].rstrip("-")
    entitlement = Entitlement.objects.filter(slug=slug).first()
    if entitlement is None:
        entitlement = Entitlement(
            slug=slug, tenant=tenant, pool=pool, tier=Tier.objects.get(slug=customer.tier), description=""
        )
    elif entitlement.concurrency != customer.concurrency(slots_before):
        return entitlement  # a person chose this size
    entitlement.concurrency = customer.concurrency(slots)
    return services.save(actor=ACTOR, instance=entitlement)


def _budget(slug: str, a_month: Decimal) -> None:
    tenant = Tenant.objects.get(slug=slug)
    if not Budget.objects.filter(tenant=tenant).exists():
        services.save(actor=ACTOR, instance=Budget(tenant=tenant, soft_amount=a_month, alert_at=[80]))


def _key(entitlement: Entitlement, remembered: str) -> str:
    credential = keys.parse(remembered)
    if credential is not None:
        row = ApiKey.objects.filter(public_id=credential.public_id).first()
        if row is None:  # the database was made anew, the file was kept
            return services.issue_key(
                actor=ACTOR, entitlement=entitlement, name="demo", credential=credential
            ).credential.text
        if keys.matches(credential, row.digest) and row.status_at(timezone.now()) == "active":
            return remembered
    return services.issue_key(actor=ACTOR, entitlement=entitlement, name="demo").credential.text


def _person(username: str, role: Role, tenant: str | None, password: str, *, reset: bool) -> None:
    users = get_user_model()
    user = users.objects.filter(username=username).first()
    if user is None or reset:
        user = user or users(username=username, is_superuser=role == Role.ADMIN)
        user.set_password(password)
        services.save(actor=ACTOR, instance=user)
    organisation = Tenant.objects.get(slug=tenant) if tenant else None
    if not Membership.objects.filter(user=user, tenant=organisation).exists():
        services.save(actor=ACTOR, instance=Membership(user=user, tenant=organisation, role=role))
