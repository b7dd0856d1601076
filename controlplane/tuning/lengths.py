"""``/api/v1/pools/<pool>/lengths``: how long prompts are, and where a policy cuts its queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import timedelta
from itertools import accumulate
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.tuning import recent
from controlplane.tuning.api import StaffOnly
from scheduling.core.policies.partition import parse_partition

EDGES = tuple(dict.fromkeys(round(2 ** (step / 3)) for step in range(55)))  # three to an octave, up to 262,144 tokens


def counted(lengths: Iterable[int]) -> list[int]:
    """How many lengths [tokens] lie from each of :data:`EDGES` up to the next; longer ones count in the last."""
    counts = [0] * (len(EDGES) - 1)
    for length in lengths:
        counts[min(max(bisect_right(EDGES, length) - 1, 0), len(counts) - 1)] += 1
    return counts


class LengthsQuery(serializers.Serializer[Any]):
    minutes = serializers.FloatField(min_value=0.1, max_value=1440, default=60.0)


class LengthsSerializer(serializers.Serializer[Any]):
    """Requests by prompt length, for the schema."""

    pool = serializers.CharField()
    edges = serializers.ListField(child=serializers.IntegerField(), help_text="Of the bins [tokens].")
    recent = serializers.ListField(child=serializers.IntegerField(), help_text="Requests in each bin.")
    sample = serializers.ListField(child=serializers.IntegerField(), help_text="Of the long-term sample.")
    queues = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()),
        help_text="Of the serving policy: lowest and highest prompt length of each queue.",
    )


class LengthsView(StaffOnly, APIView):
    """The partition picture of a pool."""

    @extend_schema(
        summary="Prompt lengths of a pool and its queues' borders",
        operation_id="pools_lengths",
        parameters=[LengthsQuery],
        responses=LengthsSerializer,
    )
    def get(self, request: Request, pool: str) -> Response:
        """Requests an engine worked on, by prompt length [tokens]: of the last minutes and of the long-term sample.
        ``queues``: lowest and highest length of each queue of the serving policy; empty where it has none."""
        query = LengthsQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        row = self.pool()
        since = timezone.now() - timedelta(minutes=query.validated_data["minutes"])
        last_minutes, sample = counted(recent.recent_lengths(row.slug, since)), counted(recent.lengths(row.slug))
        first, last = _shown([a + b for a, b in zip(last_minutes, sample, strict=True)])
        intervals = parse_partition(str(row.policy_params.get("partition", "")))
        return Response(
            {
                "pool": row.slug,
                "edges": EDGES[first : last + 1],
                "recent": last_minutes[first:last],
                "sample": sample[first:last],
                "queues": [[one.low, one.high] for one in intervals],
            }
        )


def _shown(counts: list[int]) -> tuple[int, int]:
    """Without the empty bins at both ends."""
    total = sum(counts)
    if not total:
        return 0, 0
    sums = list(accumulate(counts))
    return bisect_right(sums, 0), next(i for i, upto in enumerate(sums) if upto == total) + 1
