"""What answers that are no rows hold, for the OpenAPI schema and the console's types made from it.

The answers themselves are dictionaries made where their figures are; a test compares their keys with these
(``tests/integration/test_answers_schema.py``).
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from telemetry.ledger.usage import COUNTS


class HolderSerializer(serializers.Serializer[Any]):
    """Who had slots while somebody waited."""

    tenant = serializers.CharField()
    slot_s = serializers.FloatField(help_text="Slot-seconds held meanwhile.")
    share = serializers.FloatField(help_text="Of all slot-seconds held meanwhile, 0..1.")
    requests = serializers.IntegerField()
    overtook = serializers.IntegerField(help_text="Of these, how many came later and went first.")


class PoolWaitsSerializer(serializers.Serializer[Any]):
    """The waits of a tenant's requests in one pool."""

    pool = serializers.CharField()
    requests = serializers.IntegerField()
    waited_s = serializers.FloatField(help_text="Time in which at least one of them waited [s].")
    wait_p50_s = serializers.FloatField()
    wait_p95_s = serializers.FloatField()
    longest_s = serializers.FloatField()
    held = HolderSerializer(many=True)
    whole = serializers.BooleanField(help_text="False: there was more than is read.")


class NeighboursSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    minutes = serializers.FloatField()
    received = serializers.IntegerField()
    refused = serializers.DictField(child=serializers.IntegerField(), help_text="By reason.")
    pools = PoolWaitsSerializer(many=True)
    live = serializers.BooleanField(help_text="Whether what waits and runs now could be read.")


class UsageRowSerializer(serializers.Serializer[Any]):
    """Figures of one group; the names it is grouped by stand beside them."""

    slo_met = serializers.IntegerField()
    slo_total = serializers.IntegerField()
    slot_s = serializers.FloatField()
    cost = serializers.FloatField(allow_null=True, help_text="Null where currencies are mixed.")
    currency = serializers.CharField()

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {name: serializers.IntegerField() for name in COUNTS} | super().get_fields()


class UsageSerializer(serializers.Serializer[Any]):
    to = serializers.CharField()
    columns = serializers.ListField(child=serializers.CharField())
    rows = UsageRowSerializer(many=True)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        # "from" is a word of the language and cannot be a class attribute
        return {"from": serializers.CharField()} | super().get_fields()
