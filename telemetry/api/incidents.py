"""``/api/v1/alerts/<id>/incident``: an alert with what went before it, what it did, and what can be done; and
``/api/v1/alert-rules/rehearsal``: how often a rule would have fired."""

from __future__ import annotations

import time
from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.alerts import incident, rehearsal
from telemetry.alerts.conditions import OF_TENANT_ONLY
from telemetry.api.alerts import AlertSerializer, RuleSerializer
from telemetry.api.common import Telemetry
from telemetry.api.events import MOST_EVENTS, EventSerializer, happened
from telemetry.models import Alert, AlertDelivery, AlertRule
from tenants.access import scope_of
from tenants.models import Pool


class HurtSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    requests = serializers.IntegerField()
    refused = serializers.IntegerField()
    failed = serializers.IntegerField()
    late = serializers.IntegerField(help_text="Served, and missed their SLO.")
    waited = serializers.IntegerField(help_text="Had to wait for a slot.")


class HurtInAllSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    refused = serializers.IntegerField()
    failed = serializers.IntegerField()
    late = serializers.IntegerField()
    waited = serializers.IntegerField()


class EffectSerializer(serializers.Serializer[Any]):
    to = serializers.DateTimeField()
    whole = serializers.BooleanField(help_text="False: it lasted longer than is summed up.")
    total = HurtInAllSerializer()
    tenants = HurtSerializer(many=True, help_text="The most hurt first.")
    more_tenants = serializers.IntegerField(help_text="That are not listed.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.DateTimeField()} | super().get_fields()


class GrownSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    per_minute = serializers.FloatField(help_text="Requests in the five minutes before.")
    before = serializers.FloatField(
        allow_null=True,
        help_text="Requests per minute in the half hour before those, as far as it is known; null: unknown.",
    )
    longest_prompt = serializers.IntegerField(help_text="Tokens.")


class ActionSerializer(serializers.Serializer[Any]):
    do = serializers.CharField(help_text="What the console has a button for.")
    of = serializers.CharField(help_text="The replica, tenant or pool.")
    text = serializers.CharField()


class DeliverySerializer(serializers.Serializer[Any]):
    channel = serializers.CharField()
    delivered_at = serializers.DateTimeField(allow_null=True)
    resolution_delivered_at = serializers.DateTimeField(allow_null=True)
    problem = serializers.CharField(help_text="Why the last attempt failed; empty: it did not.")


class IncidentSerializer(serializers.Serializer[Any]):
    alert = AlertSerializer()
    effect = EffectSerializer()
    grown = GrownSerializer(many=True, help_text="Whose load had grown before it began.")
    events = EventSerializer(many=True, help_text="From a quarter of an hour before to after its end, oldest first.")
    whole = serializers.BooleanField(help_text="False: there were more events.")
    actions = ActionSerializer(many=True)
    deliveries = DeliverySerializer(many=True)


class IncidentView(Telemetry, APIView):
    """For operators and admins; for members it does not exist: it tells of everybody's requests."""

    @extend_schema(
        summary="An alert: events around it, effect by tenant, and what can be done", operation_id="alert_incident",
        responses=IncidentSerializer,
    )  # fmt: skip
    def get(self, request: Request, pk: int) -> Response:
        if not scope_of(request).sees_all:
            raise Http404
        alert = Alert.objects.select_related("rule").filter(pk=pk).first()
        if alert is None:
            raise Http404
        over = incident.span(alert)
        since, until = over.began - incident.BEFORE, over.until + incident.AFTER
        events = happened(since, until, alert.pool)
        hurt, grown = incident.effect(alert), incident.load(alert)
        deliveries = AlertDelivery.objects.filter(alert=alert).select_related("channel")
        shown = {
            "alert": alert,
            "effect": hurt,
            "grown": grown,
            "events": events[:MOST_EVENTS][::-1],
            "whole": len(events) <= MOST_EVENTS,
            "actions": incident.actions(alert, hurt, grown),
            "deliveries": [
                {
                    "channel": delivery.channel.name,
                    "delivered_at": delivery.delivered_at,
                    "resolution_delivered_at": delivery.resolution_delivered_at,
                    "problem": delivery.problem,
                }
                for delivery in deliveries
            ],
        }
        return Response(IncidentSerializer(shown, context={"request": request}).data)


class FiringSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    subject = serializers.CharField()
    at = serializers.FloatField(help_text="Epoch seconds.")
    until = serializers.FloatField(allow_null=True, help_text="Null: open at the end.")
    value = serializers.FloatField()


class RehearsalSerializer(serializers.Serializer[Any]):
    days = serializers.IntegerField()
    fired = serializers.IntegerField(allow_null=True, help_text="Null: unknown, nothing of that time is stored.")
    known = serializers.FloatField(help_text="Share of the time of which it is known, 0..1.")
    firings = FiringSerializer(many=True, help_text="The newest.")
    left_out = serializers.ListField(child=serializers.CharField(), help_text="Pools that were not looked at.")


class RehearsalView(Telemetry, APIView):
    """Tries a rule on the last seven days, without storing it. For those who may see rules."""

    @extend_schema(
        summary="How often a rule would have fired in the last seven days", operation_id="alert_rule_rehearsal",
        request=RuleSerializer, responses=RehearsalSerializer,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        if not scope_of(request).sees_all:
            raise Http404
        given = RuleSerializer(data=request.data)
        given.fields["name"].validators = []  # a rule that exists is tried under its own name
        given.is_valid(raise_exception=True)
        values = {name: value for name, value in given.validated_data.items() if name != "channels"}
        rule = AlertRule(**values)
        of_pool = {"slug": rule.pool} if rule.pool and rule.kind not in OF_TENANT_ONLY else {}
        pools = list(Pool.objects.filter(**of_pool).order_by("slug").values_list("slug", flat=True))
        rehearsed = rehearsal.rehearse(rule, pools, time.time())
        looked_at = rehearsed.known + rehearsed.unknown
        shown = {
            "days": rehearsal.DAYS,
            "fired": len(rehearsed.firings) if rehearsed.known else None,
            "known": round(rehearsed.known / looked_at, 4) if looked_at else 0.0,
            "firings": rehearsed.firings[: -rehearsal.SHOWN - 1 : -1],
            "left_out": rehearsed.left_out,
        }
        return Response(RehearsalSerializer(shown).data)
