"""What answers about one request hold (see :mod:`telemetry.api.answers`)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from telemetry.api.answers import IN_FLIGHT, OPTIONAL, RunningSerializer


@extend_schema_serializer(extensions={OPTIONAL: ["value", "limit", "depth", "unit", "note"]})
class StoryCheckSerializer(serializers.Serializer[Any]):
    """A rule of admission (``docs/reference/admission.md``), with what it compared where that was recorded."""

    rule = serializers.CharField()
    state = serializers.ChoiceField(choices=["passed", "failed", "not_reached"])
    value = serializers.FloatField(allow_null=True)
    limit = serializers.FloatField(allow_null=True)
    depth = serializers.FloatField(help_text="Of the token bucket.")
    unit = serializers.CharField()
    note = serializers.CharField()


class StoryFactorsSerializer(serializers.Serializer[Any]):
    service_class = serializers.FloatField()
    slo = serializers.FloatField()
    burst = serializers.FloatField()
    debt = serializers.FloatField()


@extend_schema_serializer(extensions={OPTIONAL: ["weight", "burst", "factors", "class", "slo_mean_s"]})
class StoryWeightSerializer(serializers.Serializer[Any]):
    """The weight of its entitlement when it arrived."""

    at = serializers.FloatField(help_text="Epoch seconds.")
    weight = serializers.FloatField()
    debt = serializers.FloatField()
    burst = serializers.FloatField()
    factors = StoryFactorsSerializer(help_text="Whose product the weight is.")
    slo_mean_s = serializers.FloatField(help_text="Operators and admins only.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"class": serializers.CharField()} | super().get_fields()


class StoryPlaceSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    place = serializers.IntegerField(help_text="In the pool's queue; 0: granted.")


class AheadLastSerializer(serializers.Serializer[Any]):
    """The last request that was granted before it, with the reason given."""

    request_id = serializers.CharField()
    tenant = serializers.CharField()
    tier = serializers.CharField()
    entitlement = serializers.CharField()
    received_at = serializers.DateTimeField()
    granted_at = serializers.DateTimeField()
    policy = serializers.CharField()
    why = serializers.CharField()
    input_tokens_est = serializers.IntegerField()
    output_tokens_est = serializers.FloatField()


@extend_schema_serializer(extensions={OPTIONAL: ["last"]})
class AheadSerializer(serializers.Serializer[Any]):
    """What was granted while a request waited, in hindsight."""

    count = serializers.IntegerField()
    overtook = serializers.IntegerField(help_text="Of these, how many came later.")
    tenants = serializers.DictField(child=serializers.IntegerField(), help_text="Requests by tenant.")
    steps = serializers.ListField(
        child=serializers.ListField(child=serializers.FloatField()),
        help_text="[ms after it was received, how many still went before it]",
    )
    last = AheadLastSerializer()


class RequestCostSerializer(serializers.Serializer[Any]):
    amount = serializers.FloatField(
        allow_null=True, help_text="Null where tokens have a price and nobody knows how many it used."
    )
    currency = serializers.CharField()
    slot_s = serializers.FloatField()
    parts = serializers.DictField(child=serializers.FloatField(), help_text="Of input, output, slot; 0 is missing.")


class StoryEngineSerializer(serializers.Serializer[Any]):
    """The time from grant to first token (``telemetry/ledger/prefill.py``): by what its own prompt was predicted to
    take, else divided by prompt tokens."""

    queue_ms = serializers.FloatField(help_text="Behind other prompts; without a prediction at most.")
    prefill_ms = serializers.FloatField(help_text="Of its own prompt.")
    predicted_ms = serializers.FloatField(
        allow_null=True, help_text="What its own prompt needs; null: unknown, or nothing was ahead."
    )
    requests = serializers.IntegerField(help_text="Ahead of it in the same engine.")
    prompt_tokens = serializers.IntegerField(help_text="Of these.")
    tenants = serializers.DictField(child=serializers.IntegerField(), help_text="Prompt tokens by tenant.")


class StoryNextSerializer(serializers.Serializer[Any]):
    """The next request of the same key."""

    request_id = serializers.CharField()
    after_s = serializers.FloatField(help_text="After the refusal.")
    outcome = serializers.CharField()
    reason = serializers.CharField()


class StoryRetrySerializer(serializers.Serializer[Any]):
    """What a refused client was asked to wait, and when its key came back."""

    told_s = serializers.FloatField(allow_null=True, help_text="Null: no wait was sent, or it was not recorded.")
    least_s = serializers.FloatField(allow_null=True, help_text="The header is spread around it: at least this.")
    most_s = serializers.FloatField(allow_null=True)
    next = StoryNextSerializer(allow_null=True, help_text="Null: none has ended since.")
    early = serializers.IntegerField(help_text="Requests of the key that came before the least of it.")
    obeyed = serializers.BooleanField(allow_null=True, help_text="Null: none came, or it came within the spread.")


class InsteadTierSerializer(serializers.Serializer[Any]):
    tier = serializers.CharField()
    requests = serializers.IntegerField()
    waited_s = serializers.FloatField(help_text="Median wait for a slot.")
    ttft_s = serializers.FloatField(allow_null=True, help_text="Median time to the first token.")


class InsteadSerializer(serializers.Serializer[Any]):
    """What requests of other tiers waited in its pool around the same moment."""

    seconds = serializers.FloatField(help_text="Length of the time looked at.")
    tiers = InsteadTierSerializer(many=True, help_text="The shortest wait first.")
    unknown = serializers.ListField(child=serializers.CharField(), help_text="Tiers with too few requests then.")


class StorySerializer(serializers.Serializer[Any]):
    """What is told of an ended request beside its row (``telemetry/ledger/story.py``)."""

    verdict = serializers.CharField(help_text="How it went and what its time was spent on, in a sentence.")
    engine = StoryEngineSerializer(allow_null=True, help_text="Operators and admins only; null without a first token.")

    retry = StoryRetrySerializer(allow_null=True, help_text="Null where it was not refused.")
    instead = InsteadSerializer(allow_null=True, help_text="Operators and admins only.")
    checks = StoryCheckSerializer(many=True)
    weight = StoryWeightSerializer(allow_null=True, help_text="Null where unknown.")
    positions = StoryPlaceSerializer(many=True, help_text="Operators and admins only; else empty.")
    ahead = AheadSerializer(allow_null=True, help_text="Operators and admins only; null where it did not wait.")
    cost = RequestCostSerializer(allow_null=True, help_text="Null without a price, or where it did not run.")


@extend_schema_serializer(extensions={OPTIONAL: ["backend", "gateway"]})
class AliveSerializer(RunningSerializer):
    """A request that waits or runs."""

    state = serializers.ChoiceField(choices=IN_FLIGHT)
    pool = serializers.CharField()


class AliveRequestSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    alive = AliveSerializer()
