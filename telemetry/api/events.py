"""``/api/v1/events``: what happened, by people and by itself, as one stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api.common import Telemetry
from telemetry.models import Alert, PoolEvent, ScalingDecision
from tenants.access import scope_of
from tenants.api.inputs import Moment
from tenants.models import AuditEntry, Backend, Entitlement, PolicyVersion, Trial, TrialState

MOST_EVENTS = 300  # events of one answer, the newest
LONGEST = timedelta(days=31)
KINDS = ("leader", "backend", "policy", "state", "trial", "alert", "resolved", "scaling", "change")
_QUIET = frozenset({"alert"})  # kinds of audit entries that stand in the stream by themselves
_SHOWN = 3  # changed fields named in a line
_LONGEST_VALUE = 60
# What people did, as a line says it; other actions are named as the audit log has them.
_DID = {
    "accept": "accepted", "add passkey": "added a passkey to", "calibrate": "calibrated", "canary": "put live",
    "cancel": "cancelled", "cancel request": "cancelled", "change": "changed", "create": "created", "delete": "deleted",
    "disable": "disabled", "disable second factor": "disabled the second factor of", "drain": "drained",
    "enable": "enabled", "enable second factor": "set up a second factor for", "end": "ended",
    "end session": "ended a session of", "end sessions": "ended the sessions of", "export": "exported",
    "invite": "invited", "issue": "issued", "lease": "changed the lease of", "password": "changed the password of",
    "pause": "paused", "policy": "changed the policy of", "propose": "proposed", "refuse": "was refused",
    "refuse copied passkey": "refused a copied passkey of", "release": "released",
    "remove passkey": "removed a passkey of", "rename passkey": "renamed a passkey of",
    "renew recovery codes": "renewed the recovery codes of", "reset estimates": "reset the estimates of",
    "reset second factor": "reset the second factor of", "resume": "resumed", "retain": "removed old entries of",
    "retire": "retired", "return": "let back in", "revoke": "revoked", "rotate": "rotated",
    "state": "changed the state of", "study": "stopped", "trial": "decided", "undrain": "undrained",
    "use recovery code": "used a recovery code of",
}  # fmt: skip
# Of themselves: the object says no more. By whether it was refused.
_ALONE = {("log in", False): "logged in", ("log in", True): "failed to log in", ("log out", False): "logged out"}
_NAMES = {"apikey": "API key", "accesstoken": "access token", "slo": "SLO", "grouprule": "group rule"}
_UNTOLD = frozenset({"policy_version", "state_reason", "reason"})  # the first is a count, the others may be empty

Event = dict[str, Any]


class EventsQuery(serializers.Serializer[Any]):
    pool = serializers.CharField(required=False, help_text="Of this pool, and what belongs to none, without sign-ins.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {
            "from": Moment(required=False, help_text="At or after; default an hour before 'to'."),
            "to": Moment(required=False, help_text="Before; default now."),
        }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("to", timezone.now())
        attrs.setdefault("from", attrs["to"] - timedelta(hours=1))
        if not attrs["from"] < attrs["to"] <= attrs["from"] + LONGEST:
            raise serializers.ValidationError({"from": "Must be before 'to', by at most 31 days."})
        return attrs


class EventSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=KINDS)
    pool = serializers.CharField(help_text="Empty: of no single pool.")
    tenant = serializers.CharField()
    subject = serializers.CharField(help_text="The replica, alert, version or object.")
    line = serializers.CharField()
    severity = serializers.CharField(help_text="Of alerts; else empty.")
    actor = serializers.CharField(help_text="Who did it; empty: it happened.")


class EventsSerializer(serializers.Serializer[Any]):
    to = serializers.DateTimeField()
    events = EventSerializer(many=True, help_text="Newest first.")
    whole = serializers.BooleanField(help_text="False: there were more than are listed.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.DateTimeField()} | super().get_fields()


class EventsView(Telemetry, APIView):
    """For operators and admins; for members it does not exist."""

    @extend_schema(
        summary="What happened: leaders, replicas, policies, trials, alerts, scaling and changes by people",
        parameters=[EventsQuery], responses=EventsSerializer,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        if not scope_of(request).sees_all:
            raise Http404
        query = EventsQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        since, until, pool = given["from"], given["to"], given.get("pool", "")
        events = happened(since, until, pool)
        shown = {"from": since, "to": until, "events": events[:MOST_EVENTS], "whole": len(events) <= MOST_EVENTS}
        return Response(EventsSerializer(shown).data)


def _event(at: datetime, kind: str, line: str, **more: str) -> Event:
    return {
        "at": at,
        "kind": kind,
        "line": line,
        "pool": "",
        "tenant": "",
        "subject": "",
        "severity": "",
        "actor": "",
    } | more


def happened(since: datetime, until: datetime, pool: str) -> list[Event]:
    """Newest first; one more than :data:`MOST_EVENTS` where there were more."""
    return sorted(_all(since, until, pool), key=lambda event: event["at"], reverse=True)


def _all(since: datetime, until: datetime, pool: str) -> Iterator[Event]:
    """At most one more than :data:`MOST_EVENTS` of each source."""
    most, span = MOST_EVENTS + 1, {"at__gte": since, "at__lt": until}
    of_pool = Q(pool__in=["", pool]) if pool else Q()
    of_pool_row = Q(pool__slug=pool) if pool else Q()
    for event in PoolEvent.objects.filter(of_pool, **span)[:most]:
        yield _event(event.at, event.kind, event.line, pool=event.pool, subject=event.subject)
    for alert in Alert.objects.filter(of_pool, **span)[:most]:
        who = {"pool": alert.pool, "tenant": alert.tenant, "subject": str(alert.pk), "severity": alert.severity}
        yield _event(alert.at, "alert", alert.line, **who)
    ended = Alert.objects.filter(of_pool, resolved_at__gte=since, resolved_at__lt=until).order_by("-resolved_at")
    for alert in ended[:most]:
        if alert.resolved_at is not None:
            who = {"pool": alert.pool, "tenant": alert.tenant, "subject": str(alert.pk)}
            yield _event(alert.resolved_at, "resolved", f"Over: {alert.line} {alert.resolution}"[:400], **who)
    for version in PolicyVersion.objects.filter(of_pool_row, **span).select_related("pool").order_by("-at")[:most]:
        line = f"Policy {version.policy}@{version.number}" + (f": {version.reason}" if version.reason else "")
        yield _event(version.at, "policy", line, pool=version.pool.slug, actor=version.author)
    yield from _trials(since, until, of_pool_row, most)
    for decision in ScalingDecision.objects.filter(of_pool, **span)[:most]:
        line = f"{decision.from_replicas} -> {decision.to_replicas} replicas, {decision.outcome}: {decision.reason}"
        yield _event(decision.at, "scaling", line, pool=decision.pool)
    for entry in (
        AuditEntry.objects.filter(**span)
        .select_related("tenant")
        .exclude(kind__in=_QUIET)
        .exclude(action="health")
        .exclude(_of_another(pool))[:most]
    ):
        named = {"tenant": entry.tenant.slug if entry.tenant else "", "actor": entry.actor, "subject": entry.object_id}
        yield _event(entry.at, "change", _line_of(entry), **named)


def _of_another(pool: str) -> Q:
    """Changes of what belongs to other pools, and sign-ins."""
    if not pool:
        return Q(pk__in=[])
    theirs = ~Q(object_id=pool), ~Q(object_id__startswith=f"{pool} "), ~Q(object_id__startswith=f"{pool}@")
    own = Q(kind__in=("pool", "tuning", "study", "trial", "price"))
    others = {
        "backend": Backend.objects.exclude(pool__slug=pool).values("slug"),
        "entitlement": Entitlement.objects.exclude(pool__slug=pool).values("slug"),
    }
    found = Q(action__in=[action for action, _ in _ALONE]) | own & theirs[0] & theirs[1] & theirs[2]
    for kind, slugs in others.items():
        found |= Q(kind=kind, object_id__in=slugs)
    return found


def _trials(since: datetime, until: datetime, of_pool: Q, most: int) -> Iterator[Event]:
    live = Q(canary_at__gte=since, canary_at__lt=until) | Q(ended_at__gte=since, ended_at__lt=until)
    for trial in Trial.objects.filter(of_pool, live, canary_at__isnull=False).select_related("pool")[:most]:
        why = f", {trial.reason}" if trial.reason else ""
        ends = "The trial was rolled back" if trial.state == TrialState.ROLLED_BACK else f"The trial was {trial.state}"
        begins = "A trial went live" + ("" if trial.ended_at else why)  # then the reason is that of its end
        for at, line in ((trial.canary_at, begins), (trial.ended_at, ends + why)):
            if at is not None and since <= at < until:
                yield _event(at, "trial", line, pool=trial.pool.slug, subject=str(trial.pk))


def _line_of(entry: AuditEntry) -> str:
    """ "olga changed backend engine-1: draining off -> on"."""
    if alone := _ALONE.get((entry.action, entry.outcome == "refused")):
        return f"{entry.actor} {alone}"
    did = _DID.get(entry.action, f"did '{entry.action}' to")
    # A request of the API is named by its method and path.
    kind = "" if entry.kind == "request" and " " in entry.object_id else f"{_NAMES.get(entry.kind, entry.kind)} "
    line = f"{entry.actor} {did} {kind}{entry.object_id}"
    after = entry.after if isinstance(entry.after, dict) else {}
    before = entry.before if isinstance(entry.before, dict) else {}
    changed = [
        f"{name.replace('_', ' ')} {_value(old, name)} -> {_value(new, name)}"
        for name, old, new in _differences(before, after)
    ]
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return (f"{line}: {', '.join(changed[:_SHOWN])}{more}" if changed else line)[:400]


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of each field that differs; of a field with members, of each member."""
    for name, new in after.items():
        if name not in before or before[name] == new or name in _UNTOLD:
            continue
        old = before[name]
        if isinstance(old or {}, dict) and isinstance(new or {}, dict):
            was, now = old or {}, new or {}
            for member in was | now:
                if was.get(member) != now.get(member):
                    yield member, was.get(member), now.get(member)
        else:
            yield name, old, new


def _value(value: Any, name: str = "") -> str:
    """A field's value as people read it; what is long is in the audit log."""
    if name == "partition" and isinstance(value, str) and value:
        queues = value.count(",") + 1
        return f"{queues} queue{'' if queues == 1 else 's'}"
    if value is None or value in ("", {}, []):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    said = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return said if len(said) <= _LONGEST_VALUE else f"{said[: _LONGEST_VALUE - 1]}…"
