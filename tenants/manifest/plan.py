"""The difference between a file and the catalog, and making it so."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import Model, ProtectedError

from tenants import services
from tenants.audit import Actor
from tenants.manifest.document import Desired, parse
from tenants.manifest.kinds import API_KEY, BACKEND, KINDS, MEMBERSHIP, POOL, Kind
from tenants.manifest.reader import ManifestError, Node
from tenants.models import ApiKey, Backend, Budget, BudgetScope

_Found = dict[tuple[type[Model], str], Model]  # rows that were looked up, by kind and name


class _TakenBack(Exception):
    """Rolls a trial back."""


@dataclass(slots=True)
class Change:
    """One object that would be made, changed or deleted."""

    verb: str  # create | change | delete
    kind: Kind
    name: str
    values: list[tuple[str, Any, Any]] = field(default_factory=list)  # path, before, after
    desired: Desired | None = None
    row: Model | None = None  # as it was when the plan was made


@dataclass(slots=True)
class Plan:
    changes: list[Change]
    notes: list[str]  # what cannot be done from a file, or is hardly meant


def _is_of_a_missing_key(one: Desired) -> bool:
    """Whether this is a budget of a key that only another installation has."""
    if one.kind.model is not Budget or one.state.get("scope") != BudgetScope.KEY:
        return False
    return not ApiKey.objects.filter(public_id=one.state.get("subject", "")).exists()


def _left_to_defaults(one: Desired) -> list[str]:
    """Figures of a new backend that the console reads from its engine, and a file, which asks nobody, does not say."""
    if one.kind.model is not Backend:
        return []
    figures = {"slots": "slots", "kvTokens": "kv_tokens"}
    new = Backend()
    missing = {path: getattr(new, name) for path, name in figures.items() if path not in one.state}
    if not missing:
        return []
    taken = " and ".join(f"{path} will be {default:,}" for path, default in missing.items())
    return [one.fault(f"{taken}, whatever its engine has: say how many")]


def plan(items: list[Node], *, prune: bool = False) -> Plan:
    """What applying these objects would change, in the order in which it would be done.

    With ``prune``, objects that the file does not have are deleted, of those kinds that it has at all; never keys,
    which go with their entitlement.

    Raises:
        ManifestError: with every fault of the file.
    """
    desired = parse(items)
    result = Plan([], [note for one in desired for note in one.ignored])
    faults: list[str] = []
    doomed: list[Change] = []
    for kind in KINDS:
        current = kind.current()
        mine = [one for one in desired if one.kind is kind]
        for one in mine:
            row = current.get(one.name)
            if row is None and kind is API_KEY:
                result.notes.append(
                    one.fault("this key is not here, and a file holds no secret; make a new one and give it out")
                )
            elif row is None and _is_of_a_missing_key(one):
                result.notes.append(
                    one.fault("its key is not here, and a file holds no secret; make a budget of a new key")
                )
            elif row is None:
                faults += _missing(one)
                values = [(path, None, value) for path, value in one.state.items()]
                result.changes.append(Change("create", kind, one.name, values, one))
                result.notes += _left_to_defaults(one)
            else:
                state = kind.state(row)
                values = [(path, state[path], value) for path, value in one.state.items() if state[path] != value]
                if values:
                    result.changes.append(Change("change", kind, one.name, values, one, row))
        if prune and kind is not API_KEY and _speaks_of(kind, desired):
            names = {one.name for one in mine}
            doomed += [
                Change("delete", kind, name, row=row) for name, row in sorted(current.items()) if name not in names
            ]
    if faults:
        raise ManifestError(faults)
    result.changes += reversed(doomed)
    return result


def apply(wanted: Plan, *, actor: Actor, keep: bool = True) -> None:
    """Does what a plan says, all of it or nothing. ``keep=False`` tries it and takes it back.

    Raises:
        ManifestError: by line, with each value that the catalog refuses; without one, when they refuse the whole.
    """
    found: _Found = {}
    try:
        with suppress(_TakenBack), services.change(actor=actor) as current:
            _do_all(wanted.changes, actor, found)
            if not keep:
                services.judge(actor=actor, current=current)
                raise _TakenBack
    except ValidationError as error:
        raise ManifestError(error.messages) from error


def _do_all(changes: list[Change], actor: Actor, found: _Found) -> None:
    """Goes on after a refusal, so that a file's faults are told together: without what needs a row that was refused."""
    faults: list[str] = []
    refused: set[tuple[type[Model], Any]] = set()
    for change in changes:
        name = (change.kind.model, change.name)
        try:
            if not refused.isdisjoint(_needed(change)):
                refused.add(name)
            elif change.verb != "delete" or not faults:  # what still needs it may be what was refused
                _do(change, actor, found)
        except ManifestError as error:
            faults += error.faults
            refused.add(name)
    if faults:
        raise ManifestError(faults)


def _needed(change: Change) -> list[tuple[type[Model], Any]]:
    """The rows that it names."""
    state = {} if change.desired is None else change.desired.state
    return [(rule.ref, state[rule.path]) for rule in change.kind.fields if rule.ref and rule.path in state]


def _do(change: Change, actor: Actor, found: _Found) -> None:
    where = change.desired.fault if change.desired else lambda message, attribute="": message
    try:
        row = _fresh(change, actor) if change.row is None else _now(change.row, where)
        if change.verb == "delete":
            services.delete(actor=actor, instance=row)
            return
        for rule in change.kind.fields:
            person = change.kind is MEMBERSHIP and rule.attribute == "user"  # set when the row was made
            if change.desired is not None and rule.path in change.desired.state and not person:
                value = rule.store(change.desired.state[rule.path])
                if rule.ref is not None:
                    value = _row(rule.ref, value, where, rule.attribute, found)
                setattr(row, rule.attribute, value)
        services.save(actor=actor, instance=row)
    except ValidationError as error:
        by_field = error.message_dict if hasattr(error, "error_dict") else {NON_FIELD_ERRORS: error.messages}
        raise ManifestError(
            [
                where(message, "" if name == NON_FIELD_ERRORS else name)
                for name, messages in by_field.items()
                for message in messages
            ]
        ) from error
    except ProtectedError as error:
        needed = ", ".join(sorted({f"{row._meta.verbose_name} {row}" for row in error.protected_objects}))
        raise ManifestError([f"{change.kind.name} {change.name} cannot be deleted: needed by {needed}"]) from error


def _now(row: Model, where: Any) -> Model:
    """The row as it is under the lock."""
    current = type(row)._default_manager.filter(pk=row.pk).first()
    if current is None:
        raise ManifestError([where("somebody deleted this a moment ago; run apply again")])
    return current


def _fresh(change: Change, actor: Actor) -> Model:
    if change.kind.key == "str" and change.kind is not MEMBERSHIP:
        return change.kind.model()
    if change.kind is not MEMBERSHIP:
        return change.kind.model(**{change.kind.key: change.name})
    users = get_user_model()
    username = cast(Desired, change.desired).state["user"]
    user = users._default_manager.filter(username=username).first()
    if user is None:  # cannot sign in until an admin sets a password
        user = users(username=username)
        user.set_unusable_password()
        user = services.save(actor=actor, instance=user)
    return MEMBERSHIP.model(user=user)


def _row(model: type[Model], name: str | None, where: Any, attribute: str, found: _Found) -> Model | None:
    """The row with this name, looked up once. Kinds are applied in the order of their dependencies and deleted in
    reverse, so a named row exists by then."""
    if name is None:
        return None
    row = found.get((model, name)) or model._default_manager.filter(slug=name).first()
    if row is None:
        raise ManifestError([where(f"there is no {model._meta.verbose_name} {name!r}", attribute)])
    found[model, name] = row
    return row


def _missing(one: Desired) -> list[str]:
    return [
        one.node.fault(f"{one.kind.name} {one.name}: {rule.path} is missing")
        for rule in one.kind.fields
        if rule.required and rule.path not in one.state
    ]


def _speaks_of(kind: Kind, desired: list[Desired]) -> bool:
    """Whether a file that lacks an object of this kind means to delete it."""
    return any(one.kind is (POOL if kind is BACKEND else kind) for one in desired)
