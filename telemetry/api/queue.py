"""``/api/v1/pools/<pool>/queue``: waiting requests in their expected order, running ones, and cancelling one."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import APIException, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.access import Viewer
from telemetry.api.answers import CancelledSerializer, QueueSerializer
from telemetry.api.common import RedisUnavailable, Telemetry, Unavailable, viewer_of
from telemetry.ledger.queue import LiveRequest, QueueStore, QueueUnavailable
from tenants import audit
from tenants.access import scope_of
from tenants.models import Pool, Tenant

# Of a preview, what members see: nothing that others' requests would change. Neither a place among all, nor when it
# would start, nor the policy's words for why there ("before 3 waiting").
_HEAD_FOR_MEMBERS = ("at", "policy", "exact")
_ROW_FOR_MEMBERS = (
    "id", "tenant", "entitlement", "tier", "class", "arrival_s", "expires_s", "deadline_s", "input_tokens",
    "output_tokens", "kv_tokens", "priority", "attempt",
)  # fmt: skip


@cache
def store_at(url: str) -> QueueStore:
    """One client per process and server."""
    return QueueStore(url)


def queue_store() -> QueueStore:
    """Where queue and leases are. Raises :class:`Unavailable` where no Redis is configured."""
    if not settings.QUARTERMASTER_REDIS_URL:
        raise Unavailable
    return store_at(settings.QUARTERMASTER_REDIS_URL)


def visible_pools(request: Request) -> list[str]:
    return list(scope_of(request).visible(Pool).values_list("slug", flat=True))


class NotReached(APIException):
    """409: the gateway that has the request is not connected."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "gateway_away"
    default_detail = (
        "The gateway that has this request does not listen; within ten seconds the request is ended anyway."
    )


class QueueView(Telemetry, APIView):
    """The queue of a pool. Members see their tenants' requests, and each one's place in its entitlement."""

    @extend_schema(summary="What waits, in order, and what runs", operation_id="pools_queue", responses=QueueSerializer)
    def get(self, request: Request, pool: str) -> Response:
        if pool not in visible_pools(request):
            raise Http404
        viewer = viewer_of(request)
        try:
            store = queue_store()
            preview, running, now_s = store.preview(pool), store.running(pool), store.now_s(pool)
        except QueueUnavailable:
            raise RedisUnavailable from None
        return Response(
            {
                "pool": pool,
                "at": round(now_s, 3),
                "preview": preview and seen(preview, viewer),
                "running": [
                    running_row(item, viewer)
                    for item in running
                    if viewer.tenants is None or item.tenant in viewer.tenants
                ],
            }
        )


class CancelView(Telemetry, APIView):
    """Ends a request that waits or runs, for its client with ``operator``. Operators and admins; audited."""

    @extend_schema(
        summary="Cancel a waiting or running request",
        operation_id="requests_cancel",
        request=None,
        responses={202: CancelledSerializer},
    )
    def post(self, request: Request, request_id: str) -> Response:
        if not scope_of(request).may_operate:
            raise PermissionDenied("Only operators and admins can cancel requests.")
        try:
            store = queue_store()
            item = store.find(request_id, visible_pools(request))
            if item is None:
                raise Http404
            tenant = Tenant.objects.filter(slug=item.tenant).first()
            instance = tenant or Pool.objects.get(slug=item.pool)
            state = "waiting" if item.waits else "running"
            with transaction.atomic():
                audit.record(
                    actor=audit.Actor.of(request, "api"), action="cancel request", instance=instance,
                    after={"request": request_id, "pool": item.pool, "entitlement": item.entry.entitlement,
                           "state": state},
                )  # fmt: skip
                if not store.cancel(item):
                    raise NotReached
        except QueueUnavailable:
            raise RedisUnavailable from None
        return Response({"request_id": request_id, "was": state}, status=status.HTTP_202_ACCEPTED)


def seen(preview: dict[str, Any], viewer: Viewer) -> dict[str, Any]:
    """A preview as someone may see it. ``place`` counts everybody's requests for those who see all, and for members
    those of the same entitlement."""
    rows = preview["requests"]
    if viewer.tenants is None:
        return preview | {"requests": [{"place": place, **row} for place, row in enumerate(rows, 1)]}
    own: list[dict[str, Any]] = []
    places: Counter[str] = Counter()
    for row in rows:
        if row["tenant"] in viewer.tenants:
            places[row["entitlement"]] += 1
            shown = {name: row[name] for name in _ROW_FOR_MEMBERS if name in row}
            own.append({"place": places[row["entitlement"]], **shown})
    return {name: preview[name] for name in _HEAD_FOR_MEMBERS if name in preview} | {"requests": own}


def running_row(item: LiveRequest, viewer: Viewer) -> dict[str, Any]:
    entry, r = item.entry, item.entry.queued_request()
    row: dict[str, Any] = {
        "id": item.id,
        "tenant": r.tenant,
        "entitlement": entry.entitlement,
        "tier": r.tier,
        "class": entry.service_class,
        "arrival_s": round(r.arrival_s, 3),
        "granted_s": entry.granted_ms / 1000 if entry.granted_ms else None,
        "input_tokens": r.input_tokens,
        "output_tokens": round(r.output_tokens, 1),
        "output_bound": r.output_bound,
        "served": entry.served,
        "attempt": entry.attempt,
    }
    if viewer.tenants is None:
        row |= {"backend": entry.backend, "gateway": entry.gateway}
    return row
