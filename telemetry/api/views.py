"""``/api/v1/saved-views``: queries of requests that a person kept; one's own only."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from telemetry.api.common import Telemetry
from telemetry.models import SavedView
from tenants.api.numbers import VeiledNumber, number_of
from tenants.api.serializers import Strict

MOST_VIEWS = 50  # of one person
MAX_TERMS = 40
LEFT_OUT = frozenset({"request", "id"})  # of an address: which row was open


class SavedViewSerializer(VeiledNumber, Strict, serializers.ModelSerializer[SavedView]):
    name = serializers.CharField(max_length=63)

    class Meta:
        model = SavedView
        fields = ["id", "name", "query", "created_at"]

    def validate_query(self, value: str) -> str:
        try:
            terms = parse_qsl(value.lstrip("?"), max_num_fields=MAX_TERMS)
        except ValueError:
            raise serializers.ValidationError(f"Use {MAX_TERMS} terms at most.") from None
        kept = urlencode([(name, text) for name, text in terms if name not in LEFT_OUT])
        if len(kept) > 1000:
            raise serializers.ValidationError("Use 1,000 characters at most.")
        return kept

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        own = SavedView.objects.filter(user=self.context["request"].user)
        if self.instance is not None:
            own = own.exclude(pk=self.instance.pk)
        elif own.count() >= MOST_VIEWS:
            raise serializers.ValidationError({"name": f"You have {MOST_VIEWS} views; delete one first."})
        if "name" in attrs and own.filter(name=attrs["name"]).exists():
            raise serializers.ValidationError({"name": "You have a view of this name."})
        return attrs


class _Own(Telemetry, generics.GenericAPIView[SavedView]):
    serializer_class = SavedViewSerializer
    pagination_class = None
    queryset = SavedView.objects.none()

    def get_queryset(self) -> QuerySet[SavedView]:
        return SavedView.objects.filter(user=self.request.user.pk)


class SavedViewsView(_Own, generics.ListCreateAPIView[SavedView]):
    """One's own, by name."""

    @extend_schema(summary="Saved views", operation_id="saved_views_list")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        with transaction.atomic():  # views made in several processes at once are counted one after the other
            User.objects.select_for_update().filter(username=request.user.get_username()).first()
            return super().create(request, *args, **kwargs)

    def perform_create(self, serializer: serializers.BaseSerializer[SavedView]) -> None:
        serializer.save(user=self.request.user)


class SavedViewView(_Own, generics.RetrieveUpdateDestroyAPIView[SavedView]):
    """One of one's own; another's does not exist."""

    http_method_names = ["get", "patch", "delete", "head", "options"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.kwargs["pk"] = number_of(request, SavedView, self.kwargs["pk"])
        super().initial(request, *args, **kwargs)
