"""``/api/v1/alerts`` and ``/api/v1/alert-rules``: past and open alerts, and the rules that open them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.alerts import lifecycle
from telemetry.alerts.conditions import NO_THRESHOLD, OF_POOL_ONLY, OF_TENANT_ONLY, SHARE
from telemetry.api.answers import OpenAlertsSerializer
from telemetry.api.common import ChangedInTurn, OperatorsSeeAdminsWrite, Telemetry, viewer_of
from telemetry.feed.sources import sources
from telemetry.ledger import whose
from telemetry.models import ONE_TIME, Alert, AlertRule, NotificationChannel, RuleKind, Severity
from tenants import audit
from tenants.access import operators, scope_of
from tenants.api import inputs
from tenants.api.numbers import VeiledNumber
from tenants.api.serializers import Strict
from tenants.models import Pool, Tenant
from tenants.validators import check_webhook

STATES = {
    "open": Q(rule__isnull=False, resolved_at=None),
    "resolved": Q(resolved_at__isnull=False),
    ONE_TIME: Q(rule=None, resolved_at=None),
}


class AlertSerializer(VeiledNumber, serializers.ModelSerializer[Alert]):
    state = serializers.CharField(read_only=True, help_text="open, resolved; told: sent once, it has no end.")
    rule_name = serializers.CharField(source="rule.name", default="", read_only=True)

    class Meta:
        model = Alert
        fields = [
            "id", "at", "kind", "name", "severity", "state", "rule", "rule_name", "subject", "tenant", "pool", "line",
            "value", "threshold", "used_tokens", "limit_tokens", "resolved_at", "resolution", "delivered_at",
            "acknowledged_at", "acknowledged_by", "silenced_until", "silenced_by", "note", "assigned_to", "assigned_by",
            "assigned_at",
        ]  # fmt: skip


class NewestFirst(inputs.NewestFirst):
    ordering = ("-at", "-id")


class _VisibleAlerts(Telemetry):
    def rows(self, request: Request) -> QuerySet[Alert]:
        viewer = viewer_of(request)
        rows = Alert.objects.select_related("rule")
        return rows if viewer.tenants is None else rows.filter(whose.of(viewer.tenants, viewer.former, "at"))


class AlertsView(_VisibleAlerts, generics.ListAPIView[Alert]):
    """Alerts, newest first. Members see those about their tenants."""

    serializer_class = AlertSerializer
    pagination_class = NewestFirst
    queryset = Alert.objects.none()

    def get_queryset(self) -> QuerySet[Alert]:
        rows, state = self.rows(self.request), self.request.query_params.get("state", "")
        if state and state not in STATES:
            raise serializers.ValidationError({"state": f"Use one of {', '.join(STATES)}."})
        return rows.filter(STATES[state]) if state else rows

    @extend_schema(
        summary="Alerts, newest first",
        parameters=[OpenApiParameter("state", str, enum=list(STATES), description="Only those.")],
    )
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)


class AlertsOpenView(_VisibleAlerts, APIView):
    """How many alerts are open, and the pools whose alert rules are not checked now."""

    @extend_schema(summary="Count the open alerts", operation_id="alerts_open", responses=OpenAlertsSerializer)
    def get(self, request: Request) -> Response:
        counts = (
            self.rows(request)
            .filter(STATES["open"])
            .exclude(silenced_until__gt=timezone.now())
            .aggregate(open=Count("id"), critical=Count("id", filter=Q(severity=Severity.CRITICAL)))
        )
        unwatched = [away.as_json() for away in sources.unwatched(viewer_of(request).tenants)]
        return Response(counts | {"unwatched": unwatched})


class NoteSerializer(Strict):
    note = serializers.CharField(max_length=300, default="", allow_blank=True)


class SilenceSerializer(NoteSerializer):
    minutes = serializers.IntegerField(min_value=0, max_value=43_200, help_text="0 ends the silence.")


class _Marks(_VisibleAlerts, APIView):
    """What operators and admins say of an alert; audited."""

    def alert(self, request: Request, pk: int) -> Alert:
        if not scope_of(request).sees_all:
            raise Http404
        if not scope_of(request).may_operate:
            raise PermissionDenied("Only operators and admins can acknowledge or silence alerts.")
        alert = self.rows(request).filter(pk=pk).first()
        if alert is None:
            raise Http404
        return alert


class AssignSerializer(Strict):
    user = serializers.CharField(max_length=150, allow_blank=True, help_text="An operator or admin; empty: nobody.")


class AssignView(_Marks):
    """Says who looks after an alert."""

    @extend_schema(
        summary="Assign an alert to a person", operation_id="alert_assign", request=AssignSerializer,
        responses=AlertSerializer,
    )  # fmt: skip
    def post(self, request: Request, pk: int) -> Response:
        given = AssignSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        alert, name = self.alert(request, pk), given.validated_data["user"]
        if name and name not in operators():
            raise serializers.ValidationError({"user": "There is no operator or admin of this name."})
        lifecycle.assign(alert, audit.Actor.of(request, "api"), name)
        return Response(AlertSerializer(alert, context={"request": request}).data)


class AssigneesSerializer(serializers.Serializer[Any]):
    users = serializers.ListField(child=serializers.CharField())


class AssigneesView(OperatorsSeeAdminsWrite, Telemetry, APIView):
    """Who an alert can be assigned to: operators and admins."""

    @extend_schema(summary="Operators and admins", operation_id="alerts_assignees", responses=AssigneesSerializer)
    def get(self, request: Request) -> Response:
        return Response({"users": operators()})


class AcknowledgeView(_Marks):
    """Says that somebody looks after an alert."""

    @extend_schema(
        summary="Acknowledge an alert", operation_id="alert_acknowledge", request=NoteSerializer,
        responses=AlertSerializer,
    )  # fmt: skip
    def post(self, request: Request, pk: int) -> Response:
        given = NoteSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        alert = self.alert(request, pk)
        lifecycle.acknowledge(alert, audit.Actor.of(request, "api"), given.validated_data["note"])
        return Response(AlertSerializer(alert, context={"request": request}).data)


class SilenceView(_Marks):
    """Stops what is sent of an alert, and of the next ones of the same rule, pool and subject."""

    @extend_schema(
        summary="Silence an alert for some minutes", operation_id="alert_silence", request=SilenceSerializer,
        responses=AlertSerializer,
    )  # fmt: skip
    def post(self, request: Request, pk: int) -> Response:
        given = SilenceSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        alert, minutes = self.alert(request, pk), given.validated_data["minutes"]
        until = timezone.now() + timedelta(minutes=minutes) if minutes else None
        lifecycle.silence(alert, audit.Actor.of(request, "api"), until, given.validated_data["note"])
        return Response(AlertSerializer(alert, context={"request": request}).data)


def _recorded(rule: AlertRule) -> dict[str, Any]:
    """As the audit log shows it."""
    return audit.snapshot(rule) | {"channels": [channel.name for channel in rule.channels.all()]}


class RuleSerializer(Strict, serializers.ModelSerializer[AlertRule]):
    open = serializers.SerializerMethodField(help_text="Its open alerts.")
    for_s = serializers.IntegerField(min_value=0, max_value=86_400, default=60)
    channels = serializers.SlugRelatedField(
        slug_field="name", many=True, required=False, queryset=NotificationChannel.objects.all(),
        help_text="Where its alerts are sent as well, by name. None: the default channels.",
    )  # fmt: skip

    class Meta:
        model = AlertRule
        fields = [
            "id", "name", "kind", "threshold", "clear_threshold", "for_s", "pool", "tenant", "severity", "webhook",
            "channels", "enabled", "open",
        ]  # fmt: skip
        extra_kwargs = {
            "name": {"help_text": "Shown with its alerts and sent to the webhook."},
            "kind": {"help_text": "What the rule measures."},
            "threshold": {
                "help_text": "The alert opens beyond this. A share such as 0.9 for SLO, budget, refusals, failures and "
                "KV cache; seconds for queue and first token; requests for the engine queue; the currency for cost; "
                "debt as on the overview. Empty for backend health and no leader."
            },
            "clear_threshold": {
                "help_text": "The value at which the alert clears. Empty: the threshold. Between the two nothing "
                "changes, so a value that fluctuates raises one alert."
            },
            "pool": {"help_text": "Empty: every pool."},
            "tenant": {
                "help_text": "For SLO, debt, budget, first token, refusals, failures and cost. Empty: the pool as a "
                "whole, or each tenant."
            },
            "severity": {"help_text": "Shown with its alerts and sent to the webhook."},
            "webhook": {
                "help_text": "Only hosts on QUARTERMASTER_WEBHOOK_HOSTS. Empty: QUARTERMASTER_ALERT_WEBHOOK, if it is "
                "set."
            },
            "enabled": {"help_text": "A rule that is not enabled opens no alerts."},
        }

    def get_open(self, rule: AlertRule) -> int:
        return rule.alerts.filter(resolved_at=None).count()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        def value(name: str) -> Any:
            return attrs.get(name, getattr(self.instance, name, None))

        faults: dict[str, str] = {}
        kind, threshold, clear = value("kind"), value("threshold"), value("clear_threshold")
        if kind in NO_THRESHOLD:
            attrs["threshold"] = attrs["clear_threshold"] = None
        elif threshold is None:
            faults["threshold"] = "This kind of rule needs one."
        elif kind in SHARE and not 0 < threshold <= (10 if kind == RuleKind.QUOTA else 1):
            faults["threshold"] = "Use a share, such as 0.9 for 90 %."
        elif clear is not None and (clear < threshold if kind == RuleKind.SLO else clear > threshold):
            side = "at or above" if kind == RuleKind.SLO else "at or below"
            faults["clear_threshold"] = f"It has to be {side} the threshold, or the alert would end before it began."
        if kind in OF_TENANT_ONLY and value("pool"):
            faults["pool"] = "This is of a tenant over all pools; leave it empty."
        if kind in OF_POOL_ONLY and value("tenant"):
            faults["tenant"] = "This is of a pool, not of a tenant; leave it empty."
        for name, model in (("pool", Pool), ("tenant", Tenant)):
            if attrs.get(name) and not model._default_manager.filter(slug=attrs[name]).exists():
                faults[name] = f"There is no {name} of this name."
        if attrs.get("webhook"):
            try:
                check_webhook(attrs["webhook"])
            except ModelValidationError as error:
                faults["webhook"] = " ".join(error.messages)
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


class _Rules(OperatorsSeeAdminsWrite, Telemetry, generics.GenericAPIView[AlertRule]):
    serializer_class = RuleSerializer
    queryset = AlertRule.objects.prefetch_related("channels")
    pagination_class = None
    only_admins = "Only admins can change alert rules."

    def write(self, serializer: serializers.BaseSerializer[AlertRule], action: str) -> None:
        before = _recorded(serializer.instance) if serializer.instance is not None else None
        with transaction.atomic():
            rule = serializer.save()
            shown = audit.difference(before, _recorded(AlertRule.objects.get(pk=rule.pk)))
            actor = audit.Actor.of(self.request, "api")
            audit.record(actor=actor, action=action, instance=rule, before=shown[0], after=shown[1])
            if not rule.enabled:
                lifecycle.resolve(Alert.objects.filter(rule=rule), "The rule was switched off.")


class RulesView(_Rules, generics.ListCreateAPIView[AlertRule]):
    """Rules by name."""

    @extend_schema(summary="Alert rules", operation_id="alert_rules_list")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    def perform_create(self, serializer: serializers.BaseSerializer[AlertRule]) -> None:
        self.write(serializer, "create")


class RuleView(ChangedInTurn, _Rules, generics.RetrieveUpdateDestroyAPIView[AlertRule]):
    """One rule. Deleting it resolves its open alerts; past alerts stay."""

    http_method_names = ["get", "patch", "delete", "head", "options"]

    def perform_update(self, serializer: serializers.BaseSerializer[AlertRule]) -> None:
        self.write(serializer, "change")

    def perform_destroy(self, instance: AlertRule) -> None:
        with transaction.atomic():
            lifecycle.resolve(Alert.objects.filter(rule=instance), "The rule was deleted.")
            actor = audit.Actor.of(self.request, "api")
            audit.record(actor=actor, action="delete", instance=instance, before=_recorded(instance))
            instance.delete()
