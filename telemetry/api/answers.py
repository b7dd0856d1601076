"""What answers that are no rows hold, for the OpenAPI schema and the console's types made from it.

The answers themselves are dictionaries made where their figures are; a test compares their keys with these
(``tests/integration/test_answers_schema.py``).
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from telemetry.ledger.statement import KINDS
from telemetry.ledger.usage import COUNTS

IN_FLIGHT = ("waiting", "running")
OPTIONAL = "x-optional"  # in the schema: true, or the fields that may be missing (controlplane/console_types.py)


class HolderSerializer(serializers.Serializer[Any]):
    """A tenant that held slots while a request waited."""

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


class PromptTokensSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    prompt_tokens = serializers.IntegerField()


class EngineWaitsSerializer(serializers.Serializer[Any]):
    """Prompts that were ahead of a tenant's in the same engine (``telemetry/ledger/prefill.py``)."""

    pool = serializers.CharField()
    requests = serializers.IntegerField(help_text="Of the tenant, that had prompts ahead of them.")
    waited_s = serializers.FloatField(help_text="Added up over them, at most [s].")
    tenants = PromptTokensSerializer(many=True, help_text="Whose prompts, the most tokens first.")


class NeighboursSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    minutes = serializers.FloatField()
    received = serializers.IntegerField()
    refused = serializers.DictField(child=serializers.IntegerField(), help_text="By reason.")
    pools = PoolWaitsSerializer(many=True)
    engines = EngineWaitsSerializer(many=True)
    live = serializers.BooleanField(help_text="Whether what waits and runs now could be read.")


TOKENS_UNKNOWN = (
    "Of the requests, those that were lost with their gateway, so that nobody knows their answers: of these, only the "
    "prompt is in the sums and in what is charged, as it was estimated. Null: not known of hours of older releases."
)


class UsageRowSerializer(serializers.Serializer[Any]):
    """Figures of one group; the names it is grouped by stand beside them."""

    slo_met = serializers.IntegerField()
    slo_total = serializers.IntegerField(help_text="Served requests to which an SLO applies.")
    slo_asked = serializers.IntegerField(help_text="These, and such that were refused with 429 or 503.")
    attainment = serializers.FloatField(allow_null=True, help_text="slo_met / slo_asked; null: nothing was asked.")
    attainment_served = serializers.FloatField(allow_null=True, help_text="slo_met / slo_total, without refusals.")
    slo_retries = serializers.IntegerField(
        allow_null=True,
        help_text="Of slo_asked, retries as their clients say; null: not known of hours of older releases.",
    )
    attainment_first = serializers.FloatField(
        allow_null=True,
        help_text="Of slo_asked that are no retries, met / asked; null: not known, or nothing was asked.",
    )
    tokens_unknown = serializers.IntegerField(allow_null=True, help_text=TOKENS_UNKNOWN)
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


class StatementLineSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=KINDS, help_text="Requests, or reserved capacity: used, or idle.")
    tenant = serializers.CharField()
    pool = serializers.CharField()
    model = serializers.CharField()
    project = serializers.CharField()
    key = serializers.CharField()
    user = serializers.CharField()
    entitlement = serializers.CharField(help_text="Of reserved capacity.")
    priced_from = serializers.CharField(help_text="Since when the price held that it was charged by; empty: no price.")
    requests = serializers.IntegerField(help_text="Counted once, on the first of a group's lines.")
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the input.")
    output_tokens = serializers.IntegerField()
    slot_seconds = serializers.CharField(help_text="Exact, as a decimal number.")
    amount = serializers.CharField(help_text="Exact, as a decimal number.")
    currency = serializers.CharField()
    tokens_unknown = serializers.IntegerField(allow_null=True, help_text=TOKENS_UNKNOWN)


class AmountSerializer(serializers.Serializer[Any]):
    amount = serializers.CharField(help_text="Exact, as a decimal number.")
    currency = serializers.CharField()


class StatementSerializer(serializers.Serializer[Any]):
    month = serializers.CharField()
    to = serializers.CharField()
    final = serializers.BooleanField(help_text="Whether the month has ended and all of it is added up.")
    lines = StatementLineSerializer(many=True)
    totals = AmountSerializer(many=True, help_text="One for each currency; they are never added.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.CharField()} | super().get_fields()


class BudgetSpentSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    tenant = serializers.CharField()
    scope = serializers.CharField()
    name = serializers.CharField()
    currency = serializers.CharField()
    spent = serializers.CharField(help_text="In this month (UTC), exact.")
    forecast = serializers.CharField(
        allow_null=True,
        help_text="At the month's end, at its mean pace so far. Null in the first day: no pace is known.",
    )
    soft_amount = serializers.CharField(allow_null=True)
    hard_amount = serializers.CharField(allow_null=True)
    tokens_unknown = serializers.IntegerField(
        allow_null=True,
        help_text="Requests whose answers nobody knows: what these cost is not in it. Null: not known how many.",
    )
    complete = serializers.BooleanField(
        help_text="False where the budget is a user's and the ledger no longer has all of the month."
    )


class SpendingSerializer(serializers.Serializer[Any]):
    month = serializers.CharField()
    budgets = BudgetSpentSerializer(many=True)


# --- alerts


@extend_schema_serializer(extensions={OPTIONAL: ["at_least", "pool", "refuses"]})
class OutageSerializer(serializers.Serializer[Any]):
    """A source of data that does not answer (``docs/reference/feed.md``)."""

    source = serializers.CharField()  # type: ignore[assignment]  # also an attribute of fields
    since = serializers.FloatField(help_text="Epoch seconds.")
    at_least = serializers.BooleanField(help_text="Present and true: it may have been longer.")
    pool = serializers.CharField(help_text="Missing where it concerns no single pool.")
    refuses = serializers.CharField(help_text="Of Redis, if it answers with an error: the error's code, such as OOM.")


class OpenAlertsSerializer(serializers.Serializer[Any]):
    open = serializers.IntegerField()
    critical = serializers.IntegerField()
    unwatched = OutageSerializer(many=True, help_text="Pools whose alert rules are not evaluated now, and since when.")


# --- estimates


@extend_schema_serializer(extensions={OPTIONAL: ["name"]})
class ErrorsSerializer(serializers.Serializer[Any]):
    """Errors of predictions [tokens], of all judged answers or of one group."""

    name = serializers.CharField(help_text="Of the group; missing over all.")
    requests = serializers.IntegerField()
    actual = serializers.FloatField(help_text="Mean output.")
    expected = serializers.FloatField(help_text="Mean prediction.")
    mae = serializers.FloatField(help_text="Mean absolute error.")
    error = serializers.FloatField(help_text="Mean of actual - expected.")
    input_mae = serializers.FloatField(help_text="Mean absolute error of the prompt's estimate.")
    coverage90 = serializers.FloatField(help_text="Share of answers within the 90 % limit.")


class ErrorsByGroupSerializer(serializers.Serializer[Any]):
    category = ErrorsSerializer(many=True)
    tenant = ErrorsSerializer(many=True)
    model = ErrorsSerializer(many=True)
    source = ErrorsSerializer(many=True)  # type: ignore[assignment]


class LevelSerializer(serializers.Serializer[Any]):
    level = serializers.FloatField(help_text="Quantile that was predicted.")
    share = serializers.FloatField(help_text="Share of answers within it.")


class FactorSerializer(serializers.Serializer[Any]):
    """How predictions of a category are corrected now."""

    scope = serializers.CharField()
    name = serializers.CharField()
    category = serializers.CharField()
    factor = serializers.FloatField()
    observed = serializers.IntegerField()


class LimitFactorSerializer(serializers.Serializer[Any]):
    """How the 90 % limit of a predictor is corrected now."""

    tenant = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # also an attribute of fields
    factor = serializers.FloatField()
    observed = serializers.IntegerField()


class LearnedSerializer(serializers.Serializer[Any]):
    """What the gateways have learned in one pool."""

    predictor = serializers.CharField()
    learned = serializers.IntegerField()
    prompts = serializers.IntegerField()
    factors = FactorSerializer(many=True)
    calibration = LimitFactorSerializer(many=True)


class EstimatesSerializer(serializers.Serializer[Any]):
    to = serializers.CharField()
    overall = ErrorsSerializer(allow_null=True)
    by = ErrorsByGroupSerializer()
    calibration = LevelSerializer(many=True)
    pools = serializers.DictField(
        child=LearnedSerializer(), allow_null=True, help_text="By pool; null while Redis does not answer."
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.CharField()} | super().get_fields()


class ErrorPointSerializer(serializers.Serializer[Any]):
    at = serializers.IntegerField(help_text="Epoch seconds.")
    requests = serializers.IntegerField()
    ratio = serializers.FloatField(allow_null=True, help_text="Actual to expected tokens.")
    mae = serializers.FloatField()
    coverage90 = serializers.FloatField()


class FactorLineSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    scope = serializers.CharField()
    name = serializers.CharField()
    category = serializers.CharField()
    observed = serializers.IntegerField()
    points = serializers.ListField(
        child=serializers.ListField(child=serializers.FloatField()), help_text="[epoch s, factor]"
    )


class EstimatesHistorySerializer(serializers.Serializer[Any]):
    to = serializers.CharField()
    step = serializers.ChoiceField(choices=["minute", "hour", "day"])
    points = ErrorPointSerializer(many=True)
    factors = FactorLineSerializer(many=True)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.CharField()} | super().get_fields()


# --- queue


@extend_schema_serializer(extensions={OPTIONAL: ["low", "high", "score"]})
class QueuePartSerializer(serializers.Serializer[Any]):
    """A queue, band or bubble of the policy."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=["band", "queue", "bubble", "relegated"])
    waiting = serializers.IntegerField()
    low = serializers.IntegerField(help_text="Shortest prompt [tokens].")
    high = serializers.IntegerField(help_text="Longest prompt [tokens].")
    score = serializers.FloatField()


class _InFlightSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    tenant = serializers.CharField()
    entitlement = serializers.CharField()
    tier = serializers.CharField()
    arrival_s = serializers.FloatField(help_text="State time [s].")
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.FloatField(help_text="Expected.")
    attempt = serializers.IntegerField()
    backend = serializers.CharField(help_text="Operators and admins only.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"class": serializers.CharField()} | super().get_fields()


@extend_schema_serializer(extensions={OPTIONAL: ["expires_s", "deadline_s", "priority", "start_s", "backend", "why"]})
class WaitingSerializer(_InFlightSerializer):
    place = serializers.IntegerField(help_text="Among all; for members within the entitlement.")
    expires_s = serializers.FloatField()
    deadline_s = serializers.FloatField()
    kv_tokens = serializers.IntegerField()
    priority = serializers.IntegerField()
    start_s = serializers.FloatField(help_text="Expected start. Operators and admins only.")
    why = serializers.CharField(help_text="Operators and admins only.")


@extend_schema_serializer(extensions={OPTIONAL: ["backend", "gateway"]})
class RunningSerializer(_InFlightSerializer):
    granted_s = serializers.FloatField(allow_null=True)
    output_bound = serializers.IntegerField()
    served = serializers.IntegerField(help_text="Tokens produced so far.")
    gateway = serializers.CharField(help_text="Operators and admins only.")


@extend_schema_serializer(extensions={OPTIONAL: ["epoch", "waiting", "parked", "occupation_s", "took_ms", "parts"]})
class PreviewSerializer(serializers.Serializer[Any]):
    """The order of the queue, as the pool's leader last computed it."""

    at = serializers.FloatField()
    epoch = serializers.IntegerField()
    policy = serializers.CharField()
    waiting = serializers.IntegerField()
    parked = serializers.IntegerField(help_text="Waiting for a gateway that is not connected.")
    occupation_s = serializers.FloatField(help_text="How long a request holds a slot, mean.")
    took_ms = serializers.FloatField()
    exact = serializers.BooleanField(help_text="False: approximate, because the queue is long.")
    parts = QueuePartSerializer(many=True)
    requests = WaitingSerializer(many=True)


class QueueSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    at = serializers.FloatField(help_text="State time [s].")
    preview = PreviewSerializer(allow_null=True, help_text="Null until the leader has computed one.")
    running = RunningSerializer(many=True)


class CancelledSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    was = serializers.ChoiceField(choices=IN_FLIGHT)


# --- requests summed up


class FacetSerializer(serializers.Serializer[Any]):
    value = serializers.CharField()
    requests = serializers.IntegerField()


class ExploredGroupSerializer(serializers.Serializer[Any]):
    """Requests of one group; durations in seconds, null where none had any."""

    name = serializers.CharField()
    requests = serializers.IntegerField()
    waited_p50 = serializers.FloatField(allow_null=True)
    waited_p95 = serializers.FloatField(allow_null=True)
    ttft_p50 = serializers.FloatField(allow_null=True)
    ttft_p95 = serializers.FloatField(allow_null=True)
    total_p50 = serializers.FloatField(allow_null=True)
    total_p95 = serializers.FloatField(allow_null=True)


class HeatSerializer(serializers.Serializer[Any]):
    """How many requests lie in each cell of time and duration."""

    measure = serializers.CharField()
    to = serializers.FloatField(allow_null=True, help_text="Epoch seconds; null: no request.")
    bins = serializers.IntegerField(help_text="Columns, of equal length.")
    levels_s = serializers.ListField(
        child=serializers.FloatField(), help_text="Upper bounds of the rows [s]; above them is one more."
    )
    cells = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()), help_text="[column, row, requests]"
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.FloatField(allow_null=True)} | super().get_fields()


class ExportedSerializer(serializers.Serializer[Any]):
    searched_to = serializers.DateTimeField(allow_null=True, help_text="Complete from then on; null: all of it.")
    requests = serializers.ListField(child=serializers.DictField())


class OverTimeSerializer(serializers.Serializer[Any]):
    """Figures of requests in equal steps of time; null: unknown."""

    step_s = serializers.FloatField()
    known_s = serializers.ListField(
        child=serializers.FloatField(), help_text="Of each step, the seconds that were looked at; 0: nothing is known."
    )
    figures = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True)),
        help_text="By name, one value for each step: counts of the step, attainment [0..1], percentiles [s].",
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {"from": serializers.FloatField(help_text="Epoch seconds.")} | super().get_fields()


class ExploredSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField(help_text="That fit, and are summed up here.")
    searched_to = serializers.CharField(allow_null=True, help_text="Older ones were not looked at; null: all were.")
    share = serializers.FloatField(help_text="Of these, how many were read [0..1]; below 1, counts are estimates.")
    facets = serializers.DictField(child=FacetSerializer(many=True), help_text="By filter: its commonest values.")
    groups = ExploredGroupSerializer(many=True)
    heat = HeatSerializer()
    over_time = OverTimeSerializer(allow_null=True, help_text="Null: not asked for.")
