"""``/api/v1/live``: the stored snapshots and their history, for clients without a WebSocket."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import msgspec
from django.conf import settings
from django.http import Http404, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.views import APIView

from telemetry.api.common import RedisUnavailable, Telemetry, Unavailable, viewer_of
from telemetry.feed import history, past, snapshots
from telemetry.feed.rows import MOST_ROWS, ORDERS, ROWS, page
from telemetry.feed.store import KEEP_S, LiveStore, LiveUnavailable


@cache
def store_at(url: str) -> LiveStore:
    """One client per process and server."""
    return LiveStore(url)


def live_store() -> LiveStore:
    """Where the snapshots are.

    Raises:
        Unavailable: no Redis is configured (a bare ``manage.py``).
    """
    if not settings.QUARTERMASTER_REDIS_URL:
        raise Unavailable
    return store_at(settings.QUARTERMASTER_REDIS_URL)


class LiveQuery(serializers.Serializer[Any]):
    pool = serializers.CharField(default="", allow_blank=True)
    tenant = serializers.CharField(default="", allow_blank=True)
    search = serializers.CharField(default="", allow_blank=True, max_length=200)
    rows = serializers.IntegerField(min_value=1, max_value=MOST_ROWS, default=ROWS)
    order = serializers.ChoiceField(choices=list(ORDERS), default="busy")


class LiveView(Telemetry, APIView):
    """The latest snapshot of every visible pool."""

    @extend_schema(
        summary="Live snapshots (docs/reference/feed.md)",
        parameters=[
            OpenApiParameter("pool", str, description="This pool only."),
            OpenApiParameter("tenant", str, description="Rows of this tenant only."),
            OpenApiParameter("search", str, description="Rows whose name or tenant contains this."),
            OpenApiParameter(
                "rows",
                int,
                description=f"Tenants, and entitlements, of a pool at most, 1 to {MOST_ROWS}; default {ROWS}. "
                "`left_out` says how many a snapshot lacks.",
            ),
            OpenApiParameter("order", str, enum=list(ORDERS), description="Which come first; default busy."),
        ],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> HttpResponse:
        query = LiveQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given, viewer = query.validated_data, viewer_of(request)
        try:
            if given["pool"]:
                stored = {given["pool"]: live_store().load(given["pool"])}
            else:
                stored = live_store().load_all()
        except LiveUnavailable as error:
            raise RedisUnavailable(error.refuses) from None
        pools: dict[str, Any] = {}
        for name, pool in stored.items():
            seen = snapshots.visible(pool.snapshot, viewer.tenants) if pool is not None else None
            if seen is not None:
                pools[name] = page(seen, given["rows"], given["order"], given["tenant"], given["search"])
        # Straight to JSON: with all rows of thousands it is megabytes.
        body = msgspec.json.encode({"at": round(time.time(), 3), "pools": pools})
        return HttpResponse(body, content_type="application/json")


MAX_MINUTES = 7 * 24 * 60
MAX_ROWS = 12  # tenants, and entitlements, of a past


class HistoryQuery(serializers.Serializer[Any]):
    pool = serializers.CharField(help_text="Name of the pool.")
    minutes = serializers.IntegerField(min_value=1, max_value=MAX_MINUTES, default=15)
    until = serializers.FloatField(required=False, min_value=0, help_text="Epoch seconds.")


class LiveHistoryView(Telemetry, APIView):
    """A pool's past: a point per second of the last minutes, in coarser steps up to seven days back."""

    @extend_schema(
        summary="History of a pool (docs/reference/feed.md)",
        parameters=[
            OpenApiParameter("pool", str, required=True, description="Name of the pool."),
            OpenApiParameter("minutes", int, description=f"How long, 1 to {MAX_MINUTES}; default 15."),
            OpenApiParameter("until", float, description="End, epoch seconds; default now."),
        ],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> HttpResponse:
        query = HistoryQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given, viewer = query.validated_data, viewer_of(request)
        pool, now_s = given["pool"], time.time()
        until_s = min(given.get("until", now_s), now_s)
        since_s = until_s - given["minutes"] * 60
        step_s = past.step_for(until_s - since_s)
        if step_s == 1 and since_s < now_s - KEEP_S:
            step_s = 10
        points: list[history.Point] = []
        recent: list[history.Point] = []
        try:
            stored = live_store().load(pool)
            if stored is None or snapshots.visible(stored.snapshot, viewer.tenants) is None:
                raise Http404
            if step_s > 1:
                points = past.points(pool, since_s, until_s, step_s, now_s)
                since_s = points[-1]["at"] if points else since_s
            if until_s >= now_s - KEEP_S:  # what is not in the database yet
                recent = live_store().history(pool, min(history.POINTS, int(now_s - since_s) + 5))
        except LiveUnavailable as error:
            raise RedisUnavailable(error.refuses) from None
        if step_s > 1:
            recent = history.in_steps((p for p in recent if p["at"] > since_s), step_s)
        points += [p for p in recent if since_s < p["at"] <= until_s]
        own = (history.visible(p, viewer.tenants_at(p["at"])) for p in points)
        frames = history.narrowed([history.slim(p) for p in own], MAX_ROWS)
        # Straight to JSON: a week of a hundred rows is megabytes.
        body = msgspec.json.encode({"pool": pool, "step_s": step_s, "frames": frames})
        return HttpResponse(body, content_type="application/json")
