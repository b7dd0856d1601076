"""API keys and access tokens over REST."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django.contrib.auth.models import User
from django.db.models import Model
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import services
from tenants.api import serializers
from tenants.api.base import CatalogViewSet, ChangeableViewSet, Right, described
from tenants.api.filters import Filter
from tenants.models import AccessToken, ApiKey, Tenant


@described("key", "keys", "partial_update")
class KeyViewSet(ChangeableViewSet):
    """API keys for ``/v1``. The secret is in the answer that makes a key, and nowhere else. What a key is called, opens
    of its project, may take and when it ends can change: for admins, and for members of the tenant."""

    model = ApiKey
    related = ("entitlement__tenant", "project__tenant", "created_by")
    serializer_class = serializers.KeySerializer
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[0-9A-Za-z]{12}"
    search_fields: ClassVar = ("public_id", "name")
    filters: ClassVar = {
        "entitlement": Filter("entitlement__slug", "Only keys of this entitlement alone."),
        "project": Filter("project__slug", "Only keys of this project."),
        "user": Filter("user", "Only keys attributed to this user."),
        "tenant": Filter("entitlement__tenant__slug,project__tenant__slug", "Only keys of this tenant."),
        "revoked": Filter("revoked_at__isnull", "Only revoked ones, or only others.", "boolean", negated=True),
    }
    rights: ClassVar = {
        "create": Right.OWN, "partial_update": Right.OWN, "revoke": Right.OWN, "rotate": Right.OWN,
    }  # fmt: skip

    @extend_schema(
        summary="Make a key", request=serializers.KeySerializer, responses={201: serializers.IssuedKeySerializer}
    )
    def create(self, request: Request) -> Response:
        """For admins, and for members of the tenant. Give an entitlement or a project."""
        body = self.get_serializer(data=request.data)
        body.is_valid(raise_exception=True)
        for owner in ("entitlement", "project"):
            if body.validated_data.get(owner) is not None:
                self._check_owner(body.validated_data[owner].tenant)
        issued = services.issue_key(actor=self.actor, **body.validated_data)
        return self._once(issued)

    @extend_schema(
        summary="Revoke a key", operation_id="keys_revoke", request=None, responses=serializers.KeySerializer
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """Ends it now; gateways notice within seconds. Revoking twice changes nothing."""
        key = self.get_object()
        self._check_owner(key.tenant)
        return self.answer(services.revoke_key(actor=self.actor, key=key))

    @extend_schema(
        summary="Rotate a key",
        operation_id="keys_rotate",
        request=serializers.RotateSerializer,
        responses={201: serializers.IssuedKeySerializer},
    )
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, **kwargs: Any) -> Response:
        """Makes a new key of the same name; the old one works on for ``overlap_s`` seconds."""
        key = self.get_object()
        self._check_owner(key.tenant)
        body = serializers.RotateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return self._once(services.rotate_key(actor=self.actor, key=key, overlap_s=body.validated_data["overlap_s"]))

    def check_owner_of(self, instance: Model) -> None:
        self._check_owner(cast(ApiKey, instance).tenant)

    def _check_owner(self, tenant: Tenant) -> None:
        if not self.scope.may_manage_keys(tenant):
            raise PermissionDenied("Only admins and members of the tenant can create, change or revoke its keys.")

    def _once(self, issued: services.Issued) -> Response:
        shown = self.get_serializer(issued.row).data | {"key": issued.credential.text}
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


@described("token", "tokens")
class TokenViewSet(CatalogViewSet):
    """One's own access tokens to this API; admins see and revoke everybody's. The secret is in the answer that makes
    one, and nowhere else."""

    model = AccessToken
    related = ("user", "made_with")
    filters: ClassVar = {
        "user": Filter("user__username", "Only this user's."),
        "revoked": Filter("revoked_at__isnull", "Only revoked ones, or only others.", "boolean", negated=True),
    }
    serializer_class = serializers.TokenSerializer
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[0-9A-Za-z]{12}"
    search_fields: ClassVar = ("public_id", "name")
    rights: ClassVar = {"create": Right.OWN, "revoke": Right.OWN}

    @extend_schema(
        summary="Make an access token",
        request=serializers.TokenSerializer,
        responses={201: serializers.IssuedTokenSerializer},
    )
    def create(self, request: Request) -> Response:
        """It acts in your name, with your rights as they are at each call. One made with a token ends with that token:
        at the same time at the latest (the default), and when that one is revoked."""
        body = self.get_serializer(data=request.data)
        body.is_valid(raise_exception=True)
        asking = request.auth if isinstance(request.auth, AccessToken) else None
        given = body.validated_data
        if asking is not None and "expires_at" not in given:
            given["expires_at"] = asking.expires_at
        issued = services.issue_token(actor=self.actor, user=cast(User, request.user), made_with=asking, **given)
        shown = self.get_serializer(issued.row).data | {"token": issued.credential.text}
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(
        summary="Revoke an access token",
        operation_id="tokens_revoke",
        request=None,
        responses=serializers.TokenSerializer,
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """Ends it and those made with it, now. Admins may end anybody's. Revoking twice changes nothing."""
        return self.answer(services.revoke_token(actor=self.actor, token=self.get_object()))
