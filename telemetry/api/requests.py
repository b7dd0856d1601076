"""``/api/v1/requests``: the ledger, one request at a time or filtered; what the "why" drawer shows."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    PolymorphicProxySerializer,
    extend_schema,
    extend_schema_serializer,
)
from rest_framework import generics, serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduling.core.outcomes import Outcome, Reason, outcome_of
from telemetry.api import live
from telemetry.api.answers import OPTIONAL, ExploredSerializer, ExportedSerializer
from telemetry.api.common import RedisUnavailable, Telemetry, Unavailable, viewer_of
from telemetry.api.csv_files import MEDIA_TYPE, CSVRenderer, Line
from telemetry.api.queue import queue_store, running_row, visible_pools
from telemetry.api.reach import NewestFirst, reach_of
from telemetry.api.sent_files import send
from telemetry.api.story_answers import AliveRequestSerializer, StorySerializer
from telemetry.feed.history import Point
from telemetry.feed.store import KEEP_S, LiveUnavailable
from telemetry.ledger import tail
from telemetry.ledger.explore import (
    GROUPS,
    LARGEST_ROWS,
    MOST_READ,
    OPERATORS_ONLY,
    ORDERS,
    SORTS,
    explored,
    exported,
    largest,
)
from telemetry.ledger.queue import QueueUnavailable
from telemetry.ledger.sampling import Reach
from telemetry.ledger.selectors import id_begins, tokens_unknown
from telemetry.ledger.spans import SPANS
from telemetry.ledger.story import story, without_place
from telemetry.models import LedgerEntry
from tenants.api.inputs import Moment
from tenants.csv_cells import plain
from tenants.sealed import seal, unseal

SPAN_ALIASES = {f"{name}_s": span for name, span in SPANS.items()}
_PLACE = "place in the ledger"
UNKNOWN = "null: not known; its gateway was lost while it ran, and had told of no token of the answer."


@extend_schema_serializer(extensions={OPTIONAL: [*OPERATORS_ONLY]})
class RequestSerializer(serializers.ModelSerializer[LedgerEntry]):
    """A ledger entry, with the waits between its moments worked out."""

    queue_ms = serializers.SerializerMethodField(help_text="Wait for a slot, also of one who gave up waiting.")
    ttft_ms = serializers.SerializerMethodField(help_text="First token - received.")
    total_ms = serializers.SerializerMethodField(help_text="Done - received.")

    input_tokens = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Where output_tokens is null: as estimated. Null: not known, of an older release.",
    )
    output_tokens = serializers.IntegerField(read_only=True, allow_null=True, help_text=UNKNOWN)

    class Meta:
        model = LedgerEntry
        exclude = ["id"]

    def to_representation(self, instance: LedgerEntry) -> dict[str, Any]:
        row = super().to_representation(instance)
        if tokens_unknown(instance.reason, instance.granted_at, instance.output_tokens):
            row |= {"input_tokens": instance.input_tokens or None, "output_tokens": None}
        if viewer_of(self.context["request"]).tenants is not None:
            for name in OPERATORS_ONLY:
                del row[name]
            row["why"] = ""  # the policy's words, such as "rank 0 before 3 waiting", count the others' requests
            row["admission"] = without_place(row["admission"])
        return row

    def get_queue_ms(self, entry: LedgerEntry) -> float | None:
        return None if entry.wait_s is None else round(entry.wait_s * 1000, 1)

    def get_ttft_ms(self, entry: LedgerEntry) -> float | None:
        return _ms(entry.received_at, entry.first_token_at)

    def get_total_ms(self, entry: LedgerEntry) -> float | None:
        return _ms(entry.received_at, entry.done_at)


class TailSerializer(serializers.Serializer[Any]):
    results = RequestSerializer(many=True)
    place = serializers.CharField(help_text="To ask with for what is stored after this.")
    whole = serializers.BooleanField(help_text="False: more ended since than are sent; these are the newest.")


class RequestStorySerializer(RequestSerializer):
    """An ended request with its story."""

    story = StorySerializer(read_only=True)


def _ms(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else round((end - start).total_seconds() * 1000, 3)


class RequestsQuery(serializers.Serializer[Any]):
    """Filters; all that are given have to hold."""

    tenant = serializers.CharField(required=False)
    tier = serializers.CharField(required=False)
    entitlement = serializers.CharField(required=False)
    key_id = serializers.CharField(required=False)
    user = serializers.CharField(required=False, help_text="As the requests name it, else the user of their key.")
    instead_of = serializers.CharField(required=False, help_text="Taken over by a fallback from this entitlement.")
    pool = serializers.CharField(required=False)
    model = serializers.CharField(required=False, help_text="As the request named it.")
    backend = serializers.CharField(required=False, help_text="Operators and admins only.")
    outcome = serializers.ChoiceField([o.value for o in Outcome], required=False)
    reason = serializers.ChoiceField([r.value for r in Reason], required=False)
    request_id = serializers.CharField(required=False, help_text="Its beginning is enough.")
    slo_met = serializers.BooleanField(required=False, allow_null=True, default=None)
    waited_over = serializers.FloatField(required=False, min_value=0, help_text="Waited longer for a slot [s].")
    waited_under = serializers.FloatField(required=False, min_value=0)
    ttft_over = serializers.FloatField(required=False, min_value=0, help_text="First token later [s].")
    ttft_under = serializers.FloatField(required=False, min_value=0)
    total_over = serializers.FloatField(required=False, min_value=0, help_text="Took longer in all [s].")
    total_under = serializers.FloatField(required=False, min_value=0)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        # "from" is a word of the language and cannot be a class attribute
        return super().get_fields() | {
            "from": Moment(required=False, help_text="Received at or after this moment."),
            "to": Moment(required=False, help_text="Received before this moment."),
        }

    def narrowed(self, operator: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lookups of the time and of the rest. Raises ValidationError for a filter that makes no sense."""
        self.is_valid(raise_exception=True)
        how = ("group_by", "sort", "order", "heat", "over_time")
        given = {n: value for n, value in self.validated_data.items() if value is not None and n not in how}
        if "backend" in given and not operator:
            raise serializers.ValidationError({"backend": "Only operators and admins can filter by backend."})
        if "reason" in given:  # a reason belongs to one outcome, and both together are an index
            given.setdefault("outcome", outcome_of(Reason(given["reason"])).value)
        times = {"from": "received_at__gte", "to": "received_at__lt"}
        return {times[name]: given.pop(name) for name in times if name in given}, given

    def rows(self, rows: QuerySet[LedgerEntry], operator: bool, ever: bool = False) -> QuerySet[LedgerEntry]:
        """Narrows the visible rows; ``ever``: to all but the time."""
        times, rest = self.lookups(operator)
        rows = rows.alias(**SPAN_ALIASES) if any(name.partition("__")[0] in SPAN_ALIASES for name in rest) else rows
        return rows.filter(**rest) if ever else rows.filter(**times, **rest)

    def lookups(self, operator: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """As :meth:`narrowed`, in the words of a query that has :data:`SPAN_ALIASES`."""
        times, rest = self.narrowed(operator)
        if "request_id" in rest:
            rest |= id_begins(rest.pop("request_id"))
        for name in SPANS:
            for ending, lookup in (("over", "gt"), ("under", "lt")):
                bound = rest.pop(f"{name}_{ending}", None)
                if bound is not None:
                    rest[f"{name}_s__{lookup}"] = bound
        return times, rest


class ListQuery(RequestsQuery):
    """The filters of requests, and in which order."""

    order = serializers.ChoiceField(
        list(ORDERS), required=False, allow_null=True,
        help_text=f"The {LARGEST_ROWS} largest of the newest {MOST_READ:,} that fit, in one page; "
        "default: the newest first.",
    )  # fmt: skip


class RequestsView(Telemetry, generics.ListAPIView[LedgerEntry]):
    """Ended requests, newest first. A page that is not full tells how far back it was searched, if not to the end."""

    serializer_class = RequestSerializer
    pagination_class = NewestFirst
    queryset = LedgerEntry.objects.none()

    def get_queryset(self) -> QuerySet[LedgerEntry]:
        viewer = viewer_of(self.request)
        return RequestsQuery(data=self.request.query_params).rows(viewer.requests(), viewer.tenants is None)

    def searched_to(self, before: str | None) -> datetime | None:
        viewer = viewer_of(self.request)
        times, rest = RequestsQuery(data=self.request.query_params).narrowed(viewer.tenants is None)
        visible_rows = viewer.requests().filter(**times)
        if before is not None:
            visible_rows = visible_rows.filter(received_at__lt=before)
        reach = reach_of(visible_rows, viewer.tenants, rest)
        return None if reach is None else reach.at

    @extend_schema(summary="Ended requests, newest first", parameters=[ListQuery])
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        query = ListQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        order = query.validated_data.get("order")
        if not order:
            return super().get(request, *args, **kwargs)
        operator = viewer_of(request).tenants is None
        ids, end = largest(query.rows(viewer_of(request).requests(), operator), order, _end(request, query))
        by_id = LedgerEntry.objects.in_bulk(ids)
        rows = self.get_serializer([by_id[number] for number in ids if number in by_id], many=True).data
        return Response({"next": None, "previous": None, "results": rows, "searched_to": end})


def _reach(request: Request, query: RequestsQuery) -> Reach | None:
    """How far back rows are looked at for something that is not paged; None: to the ledger's beginning."""
    viewer = viewer_of(request)
    times, rest = query.narrowed(viewer.tenants is None)
    return reach_of(viewer.requests().filter(**times), viewer.tenants, rest) if rest else None


def _end(request: Request, query: RequestsQuery) -> datetime | None:
    reach = _reach(request, query)
    return None if reach is None else reach.at


class ExploreQuery(RequestsQuery):
    """The filters of requests, and how to sum up what fits."""

    group_by = serializers.ChoiceField(list(GROUPS), default="tenant")
    sort = serializers.ChoiceField(list(SORTS), default="requests")
    heat = serializers.ChoiceField(list(SPANS), default="ttft", help_text="Of which duration the heat map is.")
    over_time = serializers.BooleanField(default=False, help_text="With figures over the time that is asked for.")


class ExploreView(Telemetry, APIView):
    """Requests that fit, summed up: counts by each value of a filter, percentiles by group, figures over time.

    At most 20,000 are read. Of a time (`from`) that holds more, an even sample is read: `share` tells how many of them,
    and counts are estimates. Without `from`, and where what fits is rare, these are the newest; `searched_to` tells
    where that ended.
    """

    @extend_schema(
        summary="Ended requests: counts by value, percentiles by group", parameters=[ExploreQuery],
        responses=ExploredSerializer,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        viewer = viewer_of(request)
        query = ExploreQuery(data=request.query_params)
        operator = viewer.tenants is None
        query.is_valid(raise_exception=True)
        given = query.validated_data
        group_by = given["group_by"]
        if group_by == "backend" and not operator:
            raise serializers.ValidationError({"group_by": "Only operators and admins can group by backend."})
        if given["over_time"] and given.get("from") is None:
            raise serializers.ValidationError({"over_time": "Figures over time need a beginning: from."})
        rows = query.rows(viewer.requests(), operator, ever=True)
        between, how = (given.get("from"), given.get("to")), (group_by, given["sort"])
        reach = _reach(request, query)
        seen = viewer.requests() if given["over_time"] else None
        return Response(explored(rows, *how, reach, operator, given["heat"], between, seen))


class TailQuery(RequestsQuery):
    """The filters of requests, and where in the ledger to go on."""

    place = serializers.CharField(required=False, help_text="Of the last answer; without it the newest few are sent.")


class TailView(Telemetry, APIView):
    """Requests that fit, as they are stored: in the order in which they end, the newest first, each once or twice.

    Ask again with `place` for those that were stored since; leave out what you have, by `request_id`.
    """

    @extend_schema(
        summary="Requests that ended since the last answer", parameters=[TailQuery], responses=TailSerializer
    )
    def get(self, request: Request) -> Response:
        viewer = viewer_of(request)
        query = TailQuery(data=request.query_params)
        times, rest = query.lookups(viewer.tenants is None)
        sealed = rest.pop("place", None)
        begin = None if sealed is None else _opened(sealed)
        found = tail.since(Q(**times, **rest), begin, viewer.tenants, viewer.former)
        rows = RequestSerializer(found.rows, many=True, context={"request": request}).data
        # Sealed: from its number a member would learn how many requests others send.
        place = seal(f"{found.place.last} {found.place.late}", _PLACE)
        return Response({"results": rows, "place": place, "whole": found.whole})


def _opened(sealed: str) -> tail.Place:
    text = unseal(sealed, _PLACE)
    if text is None:
        raise serializers.ValidationError({"place": "It is not from an earlier answer."})
    last, late = text.split()
    return tail.Place(int(last), int(late))


class ExportView(Telemetry, APIView):
    """The newest requests that fit as a file: JSON, or CSV with `format=csv`.

    `x-quartermaster-searched-to` tells from when on it is complete, where it does not reach back to the beginning.
    """

    renderer_classes = [JSONRenderer, CSVRenderer]

    @extend_schema(
        summary="Ended requests as a file", parameters=[
            RequestsQuery,
            OpenApiParameter(
                "format", str, enum=["csv", "json"], description=f"At most {MOST_READ:,} rows either way."
            ),
        ],
        responses={(200, "text/csv"): OpenApiTypes.STR, (200, "application/json"): ExportedSerializer},
    )  # fmt: skip
    def get(self, request: Request, format: str | None = None) -> HttpResponseBase:
        query, operator = RequestsQuery(data=request.query_params), viewer_of(request).tenants is None
        query.is_valid(raise_exception=True)
        rows = query.rows(viewer_of(request).requests(), operator)
        columns, chunks, end = exported(rows, _end(request, query), operator)
        answer: HttpResponseBase
        name = f"requests-{timezone.now():%Y%m%dT%H%M%SZ}"
        if getattr(request.accepted_renderer, "format", "") == "csv":
            answer = send(request.user.pk, _lines(columns, chunks), MEDIA_TYPE, f"{name}.csv")
        else:
            records = [dict(zip(columns, row, strict=True)) for chunk in chunks for row in chunk]
            body = msgspec.json.encode({"searched_to": end, "requests": records})
            answer = HttpResponse(body, content_type="application/json")
            answer["Content-Disposition"] = f'attachment; filename="{name}.json"'
        if end is not None:
            answer["x-quartermaster-searched-to"] = end.isoformat()
        return answer


def _lines(columns: list[str], chunks: Iterable[list[tuple[Any, ...]]]) -> Iterator[bytes]:
    writer = csv.writer(Line())
    yield str(writer.writerow(columns)).encode()
    for chunk in chunks:
        yield "".join(str(writer.writerow([_shown(value) for value in row])) for row in chunk).encode()


def _shown(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else plain(value)


class RequestView(Telemetry, APIView):
    """One request's story; someone else's does not exist."""

    @extend_schema(
        summary="One request: estimate, checks of admission, weight, times, outcome, cost, and why",
        responses=PolymorphicProxySerializer(
            "Told", [RequestStorySerializer, AliveRequestSerializer], resource_type_field_name=None
        ),
    )
    def get(self, request: Request, request_id: str) -> Response:
        """An ended request with its story; one that waits or runs as ``{"request_id", "alive"}``."""
        viewer = viewer_of(request)
        row = viewer.requests().filter(request_id=request_id).first()
        if row is None:
            return Response({"request_id": request_id, "alive": self._alive(request, request_id)})
        now_s = time.time()
        recent: list[Point] = []
        if now_s - row.received_at.timestamp() < KEEP_S and row.pool:
            try:
                recent = live.live_store().history(row.pool)
            except (LiveUnavailable, Unavailable):
                recent = []
        shown = RequestSerializer(row, context={"request": request}).data
        return Response(shown | {"story": story(row, recent, now_s, others=viewer.tenants is None)})

    def _alive(self, request: Request, request_id: str) -> dict[str, Any]:
        viewer = viewer_of(request)
        try:
            item = queue_store().find(request_id, visible_pools(request))
        except QueueUnavailable:  # it may run all the same: "there is no such request" would be a guess
            raise RedisUnavailable from None
        except Unavailable:
            raise Http404 from None
        if item is None or not (viewer.tenants is None or item.tenant in viewer.tenants):
            raise Http404
        return {"state": "waiting" if item.waits else "running", "pool": item.pool} | running_row(item, viewer)
