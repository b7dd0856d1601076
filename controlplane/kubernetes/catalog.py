"""The operator's side of the catalog: custom resources in, rows and their states out. Runs in threads.

What a resource says is applied as ``manage.py apply`` applies a file: the same checks, messages and audit entries.
Nothing is ever deleted because it is not there; only a resource that is being deleted deletes its row.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError, transaction
from django.db.models import Model, ProtectedError, QuerySet

from controlplane.kubernetes import replicas
from controlplane.kubernetes.leases import Reservation
from controlplane.kubernetes.resources import AMOUNTS, RESOURCES, SECRET
from scheduling.core.capacity import pool as capacity
from tenants import ownership, promises, services
from tenants.audit import Actor, record
from tenants.connections import own_connection
from tenants.manifest.document import Desired, parse
from tenants.manifest.kinds import BY_NAME
from tenants.manifest.plan import apply, plan
from tenants.manifest.reader import ManifestError, Node
from tenants.models import Backend, Entitlement, Owner, Pool

log = logging.getLogger(__name__)

ONLY_HERE = {"TokenPool": (replicas.SPEC,), "ApiKey": (SECRET,)}  # fields of a spec that no file has
REPLICA_FIELDS = ("pool", "url", "slots", "kv_tokens")  # what the cluster says of a replica that was found
TRIES = 40  # transactions of one look, some tens of milliseconds each: nodes have their heartbeat between two looks
ORDER = {resource.kind: at for at, resource in enumerate(RESOURCES)}


@dataclass(frozen=True, slots=True)
class CustomResource:
    """A custom resource as it is in the cluster."""

    kind: str
    namespace: str
    name: str
    uid: str
    spec: Mapping[str, Any]

    @property
    def where(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    def node(self) -> Node:
        spec = {name: value for name, value in self.spec.items() if name not in ONLY_HERE.get(self.kind, ())}
        whole = {"kind": self.kind, "metadata": {"name": self.name}, "spec": spec}
        return _node(whole, self.where, "")


def _node(value: Any, where: str, path: str) -> Node:
    if isinstance(value, Mapping):
        inner = {key: _node(one, where, f"{path}.{key}" if path else str(key)) for key, one in value.items()}
        return Node(inner, where, 0, path)
    if isinstance(value, list):
        return Node([_node(one, where, f"{path}[{at}]") for at, one in enumerate(value)], where, 0, path)
    return Node(value, where, 0, path)


def actor_of(wanted: CustomResource) -> Actor:
    return Actor(f"{wanted.namespace}/{wanted.name}"[:150], ownership.KUBERNETES)


@own_connection
def reconcile(objects: Iterable[CustomResource], suspects: Collection[str] = ()) -> dict[str, str]:
    """Makes the catalog say what these resources say. By uid: empty, or why it cannot be.

    All at once if all fit, which is quick for many; else in parts, so that one fault holds up nobody else. ``suspects``
    (uids) were at fault before: each is tried alone, after all others. After :data:`TRIES` it ends: what it did not
    come to is not in the answer, and has to be asked again.
    """
    objects = sorted(objects, key=lambda resource: (ORDER[resource.kind], resource.namespace, resource.name))
    faults: dict[str, str] = {}
    again = [[resource] for resource in objects if resource.uid in suspects]
    if len(again) > TRIES // 2:
        random.shuffle(again)  # another time others come first
    batches = [[resource for resource in objects if resource.uid not in suspects], *again]
    for tried in range(TRIES):
        if not batches:
            break
        batch = batches.pop(0)
        faults |= _name_conflicts(batch)
        free = [resource for resource in batch if resource.uid not in faults]
        if not free:
            continue
        together = Actor("operator", ownership.KUBERNETES)
        try:
            _apply(free, together if len(free) > 1 else actor_of(free[0]))
        except RESOURCE_FAULTS as error:
            if len(free) > 1:
                batches = [*_parts(free, error, halve=tried > 0), *batches]
            else:
                faults[free[0].uid] = fault_text(error, free[0])
        else:
            faults |= {resource.uid: "" for resource in free}
    return faults


def _parts(resources: list[CustomResource], error: Exception, *, halve: bool) -> list[list[CustomResource]]:
    """Those that cannot be applied together, in parts: whom the fault names, mostly one, is tried alone after them."""
    said = error.faults if isinstance(error, ManifestError) else []
    named = {resource.uid for resource in resources if any(fault.startswith(f"{resource.where}:") for fault in said)}
    alone = [[resource] for resource in resources if resource.uid in named]
    others = [resource for resource in resources if resource.uid not in named]
    middle = len(others) // 2 if halve or not alone else 0
    return [part for part in (others[:middle], others[middle:], *alone) if part]


# What a resource can be at fault for: beside what the rules refuse, a value that they did not think of. A database that
# is away is nobody's.
RESOURCE_FAULTS = (
    ManifestError, ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError, DataError,
)  # fmt: skip


def fault_text(error: Exception, resource: CustomResource) -> str:
    if isinstance(error, ManifestError):
        return error_text(error)
    log.warning("%s cannot be applied", resource.where, exc_info=error)
    return f"it cannot be applied: {type(error).__name__}: {error}"[:300].replace("\0", "")


def _name_conflicts(objects: list[CustomResource]) -> dict[str, str]:
    """Resources whose name another one, elsewhere in the cluster, has in the catalog, and pools that list a backend of
    another pool: its replica would go with it."""
    owners = {(owner.kind, owner.name): owner for owner in Owner.objects.all()}
    pool_of = dict(Backend.objects.values_list("slug", "pool__slug")) if any(map(_listed, objects)) else {}
    faults = {}
    for resource in objects:
        owner = owners.get((resource.kind, resource.name))
        if owner is not None and owner.uid != resource.uid and owner.namespace != resource.namespace:
            faults[resource.uid] = f"the name {resource.name} belongs to {owner}: names are unique over all namespaces"
            continue
        foreign = [name for name in _listed(resource) if pool_of.get(name, resource.name) != resource.name]
        if foreign:
            of = ", ".join(f"{name} belongs to {_keeper(pool_of[name], owners)}" for name in foreign[:5])
            faults[resource.uid] = f"spec.backends: {of}: names of backends are unique over all pools"
    return faults


def _listed(resource: CustomResource) -> list[str]:
    """Names of a pool's backends, as far as its spec can be read."""
    backends = resource.spec.get("backends") if resource.kind == "TokenPool" else None
    names = [one.get("name") for one in backends if isinstance(one, Mapping)] if isinstance(backends, list) else []
    return [name for name in names if isinstance(name, str)]


def _keeper(pool: str, owners: Mapping[tuple[str, str], Owner]) -> str:
    owner = owners.get(("TokenPool", pool))
    return f"pool {pool}" if owner is None else str(owner)


def _apply(objects: list[CustomResource], actor: Actor) -> None:
    nodes = [resource.node() for resource in objects]
    with transaction.atomic():
        desired = {(row.kind.name, row.name): row for row in parse(nodes)}
        apply(plan(nodes), actor=actor)
        for resource in objects:
            _record_owner(resource, desired)


def _record_owner(resource: CustomResource, desired: Mapping[tuple[str, str], Desired]) -> None:
    """Notes which fields this resource sets, of its row and of rows inside it."""
    mine = desired[resource.kind, resource.name]
    rows = {(resource.kind, resource.name): mine}
    if resource.kind == "TokenPool":
        rows |= {
            key: specified
            for key, specified in desired.items()
            if specified.state.get("pool") == resource.name and key[0] == "Backend"
        }
    for (kind, name), specified in rows.items():
        names = sorted(rule.attribute for rule in specified.kind.fields if rule.path in specified.state)
        if kind == resource.kind:
            names += [name for name in ONLY_HERE.get(kind, ()) if name in resource.spec]
        Owner.objects.update_or_create(
            kind=kind, name=name, defaults={"namespace": resource.namespace, "uid": resource.uid, "attributes": names}
        )
    if resource.kind == "TokenPool":
        _remove_backends(resource, {name for kind, name in rows if kind == "Backend"})


def _remove_backends(resource: CustomResource, there: set[str]) -> None:
    """Backends that this pool's resource had and no longer has. Those that were found go by themselves
    (:func:`update_replicas`) while it says where to find them."""
    gone = Owner.objects.filter(kind="Backend", uid=resource.uid).exclude(name__in=there)
    if replicas.SPEC in resource.spec:
        gone = gone.exclude(name__in=Backend.objects.filter(managed=True).values("slug"))
    for owner in gone:
        _delete("Backend", owner.name, actor_of(resource))
        owner.delete()


def error_text(error: ManifestError) -> str:
    return "; ".join(fault.replace(":0: ", ": ") for fault in error.faults)[:1000]


@own_connection
def remove(resource: CustomResource) -> str:
    """Deletes the row of a resource that is being deleted. Empty, or why it has to stay for now."""
    owner = Owner.objects.filter(kind=resource.kind, name=resource.name).first()
    if owner is None or owner.uid != resource.uid:
        return ""  # never ours: it was refused, or another resource has taken the name
    try:
        with transaction.atomic():
            if resource.kind == "TokenPool":
                for backend in Owner.objects.filter(kind="Backend", uid=resource.uid):
                    _delete("Backend", backend.name, actor_of(resource))
                    backend.delete()
            _delete(resource.kind, resource.name, actor_of(resource))
            owner.delete()
    except ProtectedError as error:
        needed = sorted({f"{row._meta.verbose_name} {row}" for row in error.protected_objects})
        return f"still needed by {', '.join(needed)[:800]}"
    except ValidationError as error:
        return "; ".join(error.messages)[:1000]
    return ""


def _delete(kind: str, name: str, actor: Actor) -> None:
    model: type[Model] = BY_NAME[kind].model
    row = model._default_manager.filter(slug=name).first()
    if row is not None:
        services.delete(actor=actor, instance=row)


@dataclass(frozen=True, slots=True)
class CatalogReplica:
    """A replica that was found and is in the catalog."""

    backend: str
    url: str
    drained_here: bool  # it drains only because the cluster asked for it


@dataclass(frozen=True, slots=True)
class NewReplica:
    """A replica that is to be one of the pool's, with what its engine says of itself."""

    name: str
    url: str
    figures: Mapping[str, int]


@own_connection
def catalog_replicas(resource: CustomResource) -> tuple[Pool, list[CatalogReplica]] | None:
    """The pool of a resource and the replicas that were found for it; None where there is no such pool yet."""
    pool = Pool.objects.filter(slug=resource.name).first()
    if pool is None or not Owner.objects.filter(kind="TokenPool", name=resource.name, uid=resource.uid).exists():
        return None
    owners = {o.name: o for o in Owner.objects.filter(kind="Backend", uid=resource.uid)}
    rows = Backend.objects.filter(pool=pool, managed=True, slug__in=owners)
    return pool, [CatalogReplica(row.slug, row.url, "draining" in owners[row.slug].attributes) for row in rows]


@own_connection
def update_replicas(
    resource: CustomResource,
    *,
    add: Iterable[NewReplica],
    drain: Iterable[str],
    resume: Iterable[str],
    remove: Iterable[str],
) -> dict[str, str]:
    """Writes what was found; ``drain``, ``resume`` and ``remove`` name backends. By URL, why one could not be added."""
    actor = actor_of(resource)
    for name in remove:
        with transaction.atomic():
            _delete("Backend", name, actor)
            Owner.objects.filter(kind="Backend", name=name, uid=resource.uid).delete()
    for names, draining in ((drain, True), (resume, False)):
        for name in names:
            _set_draining(resource, name, draining, actor)
    faults = {}
    for new in add:
        try:
            _add(resource, new, actor)
        except ValidationError as error:
            faults[new.url] = "; ".join(error.messages)
    return faults


def _set_draining(resource: CustomResource, name: str, draining: bool, actor: Actor) -> None:
    """While the cluster keeps a backend draining, nobody else says whether it does."""
    with transaction.atomic():
        owner = Owner.objects.select_for_update().filter(kind="Backend", name=name, uid=resource.uid).first()
        backend = Backend.objects.filter(slug=name).first()
        if owner is None or backend is None:
            return
        services.drain_backend(actor=actor, backend=backend, draining=draining)
        owner.attributes = [*REPLICA_FIELDS, "draining"] if draining else list(REPLICA_FIELDS)
        owner.save(update_fields=["attributes"])


def _add(resource: CustomResource, new: NewReplica, actor: Actor) -> None:
    with transaction.atomic():
        name = replicas.backend_name(new.name)
        if Backend.objects.filter(slug=name).exists():  # another namespace may have a pod of this name
            name = replicas.backend_name(f"{new.name}-{resource.namespace}-{resource.name}")
        backend = Backend(
            slug=name,
            pool=Pool.objects.get(slug=resource.name),
            url=new.url,
            managed=True,
            description=f"Found by TokenPool {resource.namespace}/{resource.name}."[:200],
            **new.figures,
        )
        services.save(actor=actor, instance=backend)
        Owner.objects.update_or_create(
            kind="Backend",
            name=name,
            defaults={"namespace": resource.namespace, "uid": resource.uid, "attributes": list(REPLICA_FIELDS)},
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the catalog knows now, for statuses, nodes and leases."""

    pools: dict[str, dict[str, Any]]  # by name: the status of its resource
    entitlements: dict[str, dict[str, Any]]
    node_amounts: dict[str, capacity.Amounts]  # by pool: what answers
    reservations: dict[str, Reservation]  # by entitlement


@own_connection
def snapshot() -> Snapshot:
    """States of all pools and entitlements, read in three queries."""
    pools, amounts, reservations, states = {}, {}, {}, {}
    rows = list(Entitlement.objects.select_related("tier", "pool"))
    by_pool: dict[int, list[Entitlement]] = {}
    for row in rows:
        by_pool.setdefault(row.pool_id, []).append(row)
    for pool in Pool.objects.prefetch_related("backends"):
        backends = list(pool.backends.all())
        silent = [backend for backend in backends if backend.silent_since is not None]
        whole = capacity.of_pool(backend.spec() for backend in backends)
        live = capacity.of_pool(backend.spec() for backend in backends if backend not in silent)
        reserved = capacity.Amounts()
        for row in by_pool.get(pool.pk, []):
            if row.tier.service_class in capacity.RESERVING and row.state == "bound":
                reserved += _amounts(row)
        _, amounts[pool.slug] = promises.there(pool)
        pools[pool.slug] = {
            "backends": "asleep" if promises.asleep(pool) else f"{len(backends) - len(silent)}/{len(backends)}",
            "capacity": _as_json(whole),
            "answering": _as_json(live),
            "reserved": _as_json(reserved),
        }
    for row in rows:
        states[row.slug] = {"state": row.state, "reason": row.state_reason, "lease": row.lease}
        reservations[row.slug] = Reservation(row.slug, row.pool.slug, row.tier.service_class, _amounts(row), row.lease)
    return Snapshot(pools, states, amounts, reservations)


def _amounts(row: Entitlement) -> capacity.Amounts:
    return capacity.Amounts(row.concurrency, row.kv_tokens, row.tokens_per_s)


def _as_json(amounts: capacity.Amounts) -> dict[str, float]:
    return {AMOUNTS[name]: value for name, value in amounts.as_dict().items()}


@own_connection
def set_leases(verdicts: Mapping[str, tuple[str, str]]) -> None:
    """What the scheduler says of leases: ``services.set_leases``."""
    services.set_leases(verdicts)


@own_connection
def forget_leases() -> None:
    """Where no leases are kept, the catalog alone judges capacity: what a scheduler said before counts no more."""
    _forget_leases(Entitlement.objects.exclude(lease=""))


def _forget_leases(rows: QuerySet[Entitlement]) -> None:
    if names := list(rows.exclude(lease="").values_list("slug", flat=True)):
        services.set_leases(dict.fromkeys(names, ("", "")))


@own_connection
def release(namespaces: Iterable[str], actor: Actor) -> list[str]:
    """Ends the ownership of rows by resources of these namespaces, of all if none is named. The rows stay, and people
    may change them. Returns the resources."""
    owners = Owner.objects.filter(namespace__in=list(namespaces)) if namespaces else Owner.objects.all()
    with transaction.atomic():
        let_go = list(owners)
        for owner in let_go:
            kind = BY_NAME[owner.kind]
            row = kind.model._default_manager.filter(**{kind.key: owner.name}).first()
            if row is not None:
                before, after = {"kept_by": str(owner)}, {"kept_by": ""}
                record(actor=actor, action="release", instance=row, before=before, after=after)
            owner.delete()
        shares = [owner.name for owner in let_go if owner.kind == "TokenEntitlement"]
        _forget_leases(Entitlement.objects.filter(slug__in=shares))
    return [str(owner) for owner in let_go]
