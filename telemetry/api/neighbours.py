"""``/api/v1/tenants/<tenant>/neighbours``: the tenants that a tenant's requests waited for."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.api.answers import NeighboursSerializer
from telemetry.api.common import Telemetry, Unavailable, viewer_of
from telemetry.api.queue import queue_store
from telemetry.ledger import neighbours
from telemetry.ledger.queue import QueueUnavailable
from tenants.models import Entitlement, Tenant


class NeighboursQuery(serializers.Serializer[Any]):
    minutes = serializers.FloatField(min_value=1, max_value=1440, default=15.0)


class NeighboursView(Telemetry, APIView):
    """Which tenants held the slots while a tenant waited. For operators and admins: members never see other tenants."""

    @extend_schema(
        summary="Who had the slots while a tenant's requests waited",
        operation_id="tenants_neighbours",
        parameters=[NeighboursQuery],
        responses=NeighboursSerializer,
    )
    def get(self, request: Request, tenant: str) -> Response:
        """By pool: how long its requests waited, and by tenant the slot-seconds held meanwhile, the requests that held
        them, and how many of these came later and went first. ``refused``: its refusals by reason. What waits and
        runs now is counted up to now; ``live`` says whether that could be read."""
        query = NeighboursQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        if viewer_of(request).tenants is not None or not Tenant.objects.filter(slug=tenant).exists():
            raise Http404
        minutes = query.validated_data["minutes"]
        until = timezone.now()
        waiting: list[tuple[str, float]] = []
        running: list[tuple[str, neighbours.Run]] = []
        live, now_s = True, time.time()
        pools = Entitlement.objects.filter(tenant__slug=tenant).values_list("pool__slug", flat=True).distinct()
        try:
            for pool in pools:
                store = queue_store()
                late_s = now_s - store.now_s(pool)  # rows of the ledger are told in the time of day
                for item in store.waiting(pool):
                    if item.tenant == tenant:
                        waiting.append((pool, item.entry.queued_request().arrival_s + late_s))
                for item in store.running(pool):
                    r = item.entry.queued_request()
                    granted_s = item.entry.granted_ms / 1000 + late_s
                    run = neighbours.Run(r.tenant, r.arrival_s + late_s, granted_s, now_s)
                    running.append((pool, run))
        except (QueueUnavailable, Unavailable):
            live = False
        report = neighbours.neighbours(tenant, until - timedelta(minutes=minutes), until, waiting, running)
        return Response(report | {"minutes": minutes, "live": live})
