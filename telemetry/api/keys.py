"""``/api/v1/keys/last-used``: when each key was last seen, without a write per request.

Hours that were added up say it to the hour from a few rows per key; the newest hours, which are not added up yet, say
it exactly from the ledger.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Max
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.access import Viewer
from telemetry.api.common import Telemetry, viewer_of
from telemetry.ledger import rollup, whose
from telemetry.models import LedgerEntry, UsageHour

FIRST_LOOK = timedelta(days=1)  # of the ledger, while nothing was added up yet


def last_used(viewer: Viewer, tenant: str = "") -> dict[str, datetime]:
    """By key id: the newest request's moment, or the beginning of its hour where that is all that is known."""
    names = viewer.tenants
    if tenant:
        names = frozenset({tenant}) if names is None else names & {tenant}
    seam = rollup.rolled_until() or timezone.now() - FIRST_LOOK
    hours = UsageHour.objects.filter(hour__lt=seam)
    recent = LedgerEntry.objects.filter(received_at__gte=seam)
    if names is not None:
        hours = hours.filter(whose.of(names, viewer.former, "hour"))
        recent = recent.filter(whose.of(names, viewer.former, "received_at"))
    used_at = dict(hours.order_by().values("key_id").annotate(at=Max("hour")).values_list("key_id", "at"))
    used_at |= dict(recent.order_by().values("key_id").annotate(at=Max("received_at")).values_list("key_id", "at"))
    return {key: at.astimezone(UTC) for key, at in used_at.items() if key}


class KeysLastUsedView(Telemetry, APIView):
    """When keys were last used."""

    @extend_schema(
        summary="When keys were last used",
        operation_id="keys_last_used",
        parameters=[OpenApiParameter("tenant", str, description="Only this tenant's.")],
        responses={200: OpenApiTypes.OBJECT},
    )
    def get(self, request: Request) -> Response:
        """Times by key id; a key that is missing was not used as far back as usage is kept."""
        used_at = last_used(viewer_of(request), request.query_params.get("tenant", ""))
        return Response({key: at.isoformat() for key, at in used_at.items()})
