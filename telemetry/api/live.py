"""``/api/v1/live``: the stored snapshots and their history, for those who do not keep a socket open."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from django.conf import settings
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry import feed, history
from telemetry.api.common import Telemetry, Unavailable, viewer_of
from telemetry.live_store import LiveStore, LiveUnavailable


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


class LiveView(Telemetry, APIView):
    """The latest snapshot of every pool in sight."""

    @extend_schema(summary="Live snapshots (docs/feed.md)", responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        viewer = viewer_of(request)
        try:
            stored = live_store().load_all()
        except LiveUnavailable:
            raise Unavailable from None
        pools: dict[str, Any] = {}
        for name, found in stored.items():
            seen = feed.visible(found.snapshot, viewer.tenants) if found is not None else None
            if seen is not None:
                pools[name] = seen
        return Response({"at": round(time.time(), 3), "pools": pools})


class HistoryQuery(serializers.Serializer[Any]):
    pool = serializers.CharField(help_text="Name of the pool.")
    minutes = serializers.IntegerField(min_value=1, max_value=15, default=15, help_text="How far back, 1 to 15.")


class LiveHistoryView(Telemetry, APIView):
    """One point per second of a pool's last minutes."""

    @extend_schema(
        summary="Live history of a pool (docs/feed.md)",
        parameters=[
            OpenApiParameter("pool", str, required=True, description="Name of the pool."),
            OpenApiParameter("minutes", int, description="How far back, 1 to 15."),
        ],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> Response:
        query = HistoryQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        pool, minutes = query.validated_data["pool"], query.validated_data["minutes"]
        viewer = viewer_of(request)
        try:
            stored = live_store().load(pool)
            if stored is None or feed.visible(stored.snapshot, viewer.tenants) is None:
                raise Http404
            points = live_store().history(pool, minutes * 60)
        except LiveUnavailable:
            raise Unavailable from None
        return Response({"pool": pool, "frames": [history.visible(p, viewer.tenants) for p in points]})
