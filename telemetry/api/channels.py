"""``/api/v1/notification-channels``: where alerts are sent, the last delivery, and a test."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from django.db import transaction
from django.db.models import Count, Q
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.alerts import channels, notify
from telemetry.alerts.content import trial
from telemetry.api.common import ChangedInTurn, OperatorsSeeAdminsWrite, Telemetry
from telemetry.models import ChannelKind, NotificationChannel
from tenants import audit
from tenants.api.serializers import Strict


class ChannelSerializer(Strict, serializers.ModelSerializer[NotificationChannel]):
    shown_target = serializers.SerializerMethodField(help_text="The target, without what would let others send there.")
    undelivered = serializers.SerializerMethodField(help_text="Alerts whose last attempt failed.")

    class Meta:
        model = NotificationChannel
        fields = [
            "id", "name", "kind", "target", "shown_target", "for_all", "enabled", "tried_at", "sent_at", "problem",
            "undelivered",
        ]  # fmt: skip
        read_only_fields = ["tried_at", "sent_at", "problem"]
        extra_kwargs = {"target": {"write_only": True, "style": {"input_type": "password"}}}

    def get_shown_target(self, channel: NotificationChannel) -> str:
        return channels.masked_target(channel)

    def get_undelivered(self, channel: NotificationChannel) -> int:
        counted: int | None = getattr(channel, "waiting", None)
        return channel.deliveries.exclude(problem="").count() if counted is None else counted

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        def value(name: str) -> Any:
            return attrs.get(name, getattr(self.instance, name, ""))

        if "kind" in attrs or "target" in attrs:
            try:
                channels.check(value("kind"), value("target"))
            except ModelValidationError as error:
                raise serializers.ValidationError({"target": " ".join(error.messages)}) from error
        return attrs


class _Channels(OperatorsSeeAdminsWrite, Telemetry, generics.GenericAPIView[NotificationChannel]):
    serializer_class = ChannelSerializer
    queryset = NotificationChannel.objects.annotate(waiting=Count("deliveries", filter=~Q(deliveries__problem="")))
    pagination_class = None
    only_admins = "Only admins can change notification channels."

    def write(self, serializer: serializers.BaseSerializer[NotificationChannel], action: str) -> None:
        before = audit.snapshot(serializer.instance) if serializer.instance is not None else None
        with transaction.atomic():
            channel = serializer.save()
            shown = audit.difference(before, audit.snapshot(channel))
            actor = audit.Actor.of(self.request, "api")
            audit.record(actor=actor, action=action, instance=channel, before=shown[0], after=shown[1])


class ChannelsView(_Channels, generics.ListCreateAPIView[NotificationChannel]):
    """Channels by name."""

    @extend_schema(summary="Notification channels", operation_id="notification_channels_list")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    def perform_create(self, serializer: serializers.BaseSerializer[NotificationChannel]) -> None:
        self.write(serializer, "create")


class ChannelView(ChangedInTurn, _Channels, generics.RetrieveUpdateDestroyAPIView[NotificationChannel]):
    """One channel. Rules that name no other after its deletion use the default channels."""

    http_method_names = ["get", "patch", "delete", "head", "options"]

    def perform_update(self, serializer: serializers.BaseSerializer[NotificationChannel]) -> None:
        self.write(serializer, "change")

    def perform_destroy(self, instance: NotificationChannel) -> None:
        with transaction.atomic():
            actor = audit.Actor.of(self.request, "api")
            audit.record(actor=actor, action="delete", instance=instance, before=audit.snapshot(instance))
            instance.delete()


class ChannelTriedSerializer(serializers.Serializer[Any]):
    sent = serializers.BooleanField()
    problem = serializers.CharField(help_text="Why not; empty if it was sent.")


class ChannelTestView(OperatorsSeeAdminsWrite, Telemetry, APIView):
    """Sends a test to a channel and answers with what came of it."""

    only_admins = "Only admins can send a test."

    @extend_schema(
        summary="Send a test to a channel", operation_id="notification_channel_test", request=None,
        responses=ChannelTriedSerializer,
    )  # fmt: skip
    def post(self, request: Request, pk: int) -> Response:
        channel = generics.get_object_or_404(NotificationChannel, pk=pk)
        message = trial()
        problem = notify.try_channel(channel, message)
        if not problem and channel.kind == ChannelKind.PAGERDUTY:  # else the test stays open there
            problem = notify.try_channel(channel, message | {"status": "resolved"})
        return Response({"sent": not problem, "problem": problem})
