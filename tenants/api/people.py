"""People over the management API: accounts with their roles, invitations, sessions."""

from __future__ import annotations

from typing import Any, ClassVar

from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import User
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import people, second_factors, services
from tenants.api import serializers as rows
from tenants.api.base import ByNumber, CatalogViewSet, Right
from tenants.api.filters import Filter
from tenants.api.inputs import Moment
from tenants.api.numbers import VeiledNumber
from tenants.models import AccessToken, Invitation, Membership, Tenant
from tenants.models.credentials import TokenScope
from tenants.public_address import public_url

KINDS = ("local", "provider", "service")
SESSION_ID = "[0-9]{1,18}"


class RoleOfPersonSerializer(serializers.ModelSerializer[Membership]):
    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Membership
        fields = ["role", "tenant", "from_groups"]


class TextOfOther(serializers.CharField):
    """Of a row that an account may have or not: without one it is empty, not null."""

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or ""


class PersonSerializer(serializers.ModelSerializer[User]):
    """An account, with what it may do and how it gets in."""

    kind = serializers.SerializerMethodField(
        help_text="local: with a password here; provider: through the identity provider; service: a program's."
    )
    description = TextOfOther(
        source="service_account.description", read_only=True, default="", help_text="Of a service account."
    )
    active = serializers.BooleanField(source="is_active", read_only=True)
    superuser = serializers.BooleanField(source="is_superuser", read_only=True, help_text="Admin by the command line.")
    roles = RoleOfPersonSerializer(source="memberships", many=True, read_only=True)
    provider_groups = serializers.ListField(
        source="identity.groups", child=serializers.CharField(), read_only=True, default=None, allow_null=True,
        help_text="At the identity provider, when it was asked last.",
    )  # fmt: skip
    last_login = serializers.DateTimeField(read_only=True, allow_null=True)
    checked_at = serializers.DateTimeField(
        source="identity.checked_at", read_only=True, default=None, allow_null=True,
        help_text="When the identity provider last confirmed them.",
    )  # fmt: skip
    trouble = TextOfOther(
        source="identity.trouble", read_only=True, default="", help_text="Why it could not be asked since."
    )
    ended_because = TextOfOther(
        source="identity.ended_because", read_only=True, default="", help_text="Why the identity provider ended them."
    )
    second_factor = serializers.BooleanField(
        read_only=True, help_text="Whether a code or a passkey is asked for after their password."
    )
    sessions = serializers.IntegerField(read_only=True, help_text="That were not ended.")
    tokens = serializers.IntegerField(read_only=True, help_text="Access tokens that work.")

    class Meta:
        model = User
        fields = [
            "id", "username", "email", "kind", "description", "active", "superuser", "roles", "provider_groups",
            "last_login", "checked_at", "trouble", "ended_because", "second_factor", "sessions", "tokens",
        ]  # fmt: skip

    @extend_schema_field(serializers.ChoiceField(choices=KINDS))
    def get_kind(self, user: User) -> str:
        if hasattr(user, "service_account"):
            return "service"
        return "provider" if hasattr(user, "identity") else "local"


class ServiceAccountSerializer(rows.Strict):
    username = serializers.CharField(max_length=150, help_text="Its user name, such as 'ci'.")
    description = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)


class TokenForSerializer(rows.Strict):
    """A token for a service account."""

    name = serializers.CharField(max_length=100, help_text="What it is for.")
    scope = serializers.ChoiceField(
        choices=TokenScope.choices, required=False, default=TokenScope.ALL, help_text="What it may be used for."
    )
    expires_at = Moment(required=False, allow_null=True, help_text="Stops working at this time. Empty: never.")


@extend_schema_view(list=extend_schema(summary="List people"), retrieve=extend_schema(summary="Read one person"))
class PersonViewSet(ByNumber, CatalogViewSet):
    """Accounts of people and programs. Roles are memberships. For operators and admins."""

    model = User
    serializer_class = PersonSerializer
    search_fields: ClassVar = ("username", "email")
    filters: ClassVar = {
        "active": Filter("is_active", "Only those that may sign in, or may not.", "boolean"),
        "role": Filter("memberships__role", "Only those with this role."),
        "tenant": Filter("memberships__tenant__slug", "Only those of this tenant."),
    }

    def get_queryset(self) -> QuerySet[Any]:
        roles = Membership.objects.select_related("tenant")
        now = timezone.now()
        works = Q(access_tokens__revoked_at__isnull=True) & (
            Q(access_tokens__expires_at__isnull=True) | Q(access_tokens__expires_at__gt=now)
        )
        apps = Authenticator.objects.filter(user=OuterRef("pk"), type__in=second_factors.FACTORS)
        rows: QuerySet[Any] = (
            super()
            .get_queryset()
            .select_related("identity", "service_account")
            .prefetch_related(Prefetch("memberships", roles))
            .annotate(
                second_factor=Exists(apps),
                sessions=Count("usersession", distinct=True),
                tokens=Count("access_tokens", filter=works, distinct=True),
            )
            .order_by("username")
        )
        return rows

    @extend_schema(
        summary="Make a service account", request=ServiceAccountSerializer, responses={201: PersonSerializer}
    )
    def create(self, request: Request) -> Response:
        """An account without a password, for a program. Give it roles as to anybody, and tokens here."""
        body = ServiceAccountSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        user = people.make_service_account(actor=self.actor, **body.validated_data)
        return self.answer(user, status.HTTP_201_CREATED)

    @extend_schema(summary="Disable an account", operation_id="people_disable", request=None)
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, **kwargs: Any) -> Response:
        """Ends its sessions and access tokens, and lets it in no more. Its API keys stay."""
        return self.answer(people.set_active(actor=self.actor, user=self.get_object(), active=False))

    @extend_schema(summary="Enable an account", operation_id="people_enable", request=None)
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, **kwargs: Any) -> Response:
        """Lets a disabled account in again."""
        return self.answer(people.set_active(actor=self.actor, user=self.get_object(), active=True))

    @extend_schema(summary="End all sessions of an account", operation_id="people_end_sessions", request=None)
    @action(detail=True, methods=["post"], url_path="end-sessions")
    def end_sessions(self, request: Request, **kwargs: Any) -> Response:
        """Its browsers have to sign in anew."""
        user = self.get_object()
        people.end_all(actor=self.actor, user=user)
        return self.answer(user)

    @extend_schema(summary="Reset an account's second factor", operation_id="people_reset_second_factor", request=None)
    @action(detail=True, methods=["post"], url_path="reset-second-factor")
    def reset_second_factor(self, request: Request, **kwargs: Any) -> Response:
        """For a lost device: the factor, its recovery codes and all sessions end. A new one is set up after the next
        login, at once where one is required. Make sure of who asks. Doing it twice changes nothing."""
        user = self.get_object()
        if second_factors.remove(actor=self.actor, user=user, action="reset second factor"):
            people.end_all(actor=self.actor, user=user)
        return self.answer(user)

    @extend_schema(
        summary="Make an access token for a service account",
        operation_id="people_token",
        request=TokenForSerializer,
        responses={201: rows.IssuedTokenSerializer},
    )
    @action(detail=True, methods=["post"])
    def token(self, request: Request, **kwargs: Any) -> Response:
        """People make their own: nobody else may act in their name."""
        user = self.get_object()
        if not hasattr(user, "service_account"):
            raise ValidationError({"non_field_errors": "Only service accounts get tokens from admins."})
        body = TokenForSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asking = request.auth if isinstance(request.auth, AccessToken) else None
        issued = services.issue_token(actor=self.actor, user=user, made_with=asking, **body.validated_data)
        shown = rows.TokenSerializer(issued.row).data | {"token": issued.credential.text}
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class InvitationSerializer(rows.CatalogSerializer):
    id = serializers.CharField(source="public_id", read_only=True, help_text="The public part.")
    tenant = rows.Named(Tenant, required=False, allow_null=True, help_text="Null for admins and operators.")
    status = serializers.SerializerMethodField(help_text="open, used, revoked or expired.")
    expires_at = Moment(required=False, help_text="The link works until this time, at most 30 days. Empty: 7 days.")
    created_by = serializers.CharField(source="created_by.username", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Invitation
        fields = [
            "id", "name", "role", "tenant", "status", "created_at", "created_by", "expires_at", "used_at", "used_by",
        ]  # fmt: skip
        read_only_fields = ["used_at", "used_by"]
        validators: ClassVar[list[Any]] = []  # the model's own constraints say it better

    @extend_schema_field(serializers.ChoiceField(choices=["open", "used", "revoked", "expired"]))
    def get_status(self, row: Invitation) -> str:
        return row.status_at(timezone.now())


class IssuedInvitationSerializer(InvitationSerializer):
    """A fresh invitation, with its link for the only time."""

    link = serializers.CharField(read_only=True, help_text="Send it to that person. Shown only in this answer.")

    class Meta(InvitationSerializer.Meta):
        fields = [*InvitationSerializer.Meta.fields, "link"]


@extend_schema_view(
    list=extend_schema(summary="List invitations"), retrieve=extend_schema(summary="Read one invitation")
)
class InvitationViewSet(CatalogViewSet):
    """Links that make one account each, once. Made by admins."""

    model = Invitation
    related = ("tenant", "created_by", "made_with")
    serializer_class = InvitationSerializer
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[0-9A-Za-z]{12}"
    search_fields: ClassVar = ("name", "used_by")
    filters: ClassVar = {"tenant": Filter("tenant__slug", "Only those to this tenant.")}

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().prefetch_related("created_by__memberships")

    @extend_schema(summary="Invite somebody", request=InvitationSerializer, responses={201: IssuedInvitationSerializer})
    def create(self, request: Request) -> Response:
        """The link opens a page where a user name and a password are chosen."""
        body = self.get_serializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = {"tenant": None, "role": "member", **body.validated_data}
        asking = request.auth if isinstance(request.auth, AccessToken) else None
        issued = people.invite(actor=self.actor, made_with=asking, **given)
        path = f"/join/{issued.credential.text}"
        link = public_url(path) or request.build_absolute_uri(path)
        shown = self.get_serializer(issued.row).data | {"link": link}
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(summary="Revoke an invitation", operation_id="invitations_revoke", request=None)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """Its link works no more. Revoking twice changes nothing."""
        return self.answer(people.revoke_invitation(actor=self.actor, invitation=self.get_object()))


class SessionSerializer(VeiledNumber, serializers.ModelSerializer[UserSession]):
    user = serializers.CharField(source="user.username", read_only=True)
    address = serializers.CharField(source="ip", read_only=True, help_text="Where it was begun.")
    agent = serializers.CharField(source="user_agent", read_only=True, help_text="What the browser calls itself.")
    current = serializers.SerializerMethodField(help_text="Whether it is the one that asks.")

    class Meta:
        model = UserSession
        fields = ["id", "user", "address", "agent", "created_at", "current"]

    def get_current(self, row: UserSession) -> bool:
        session = getattr(self.context["request"], "session", None)
        return session is not None and session.session_key == row.session_key


@extend_schema_view(list=extend_schema(summary="List sessions"), retrieve=extend_schema(summary="Read one session"))
class SessionViewSet(CatalogViewSet):
    """Browsers that are signed in: one's own; admins see and end everybody's."""

    model = UserSession
    veiled = True
    related = ("user",)
    serializer_class = SessionSerializer
    lookup_field = "pk"
    lookup_url_kwarg = "id"
    lookup_value_regex = SESSION_ID
    search_fields: ClassVar = ("user__username", "ip")
    filters: ClassVar = {"user": Filter("user__username", "Only this user's.")}
    rights: ClassVar = {"revoke": Right.OWN}

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().order_by("-created_at", "-pk")

    @extend_schema(summary="End a session", operation_id="sessions_revoke", request=None, responses={204: None})
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """That browser has to sign in anew; an open console there is closed within a minute."""
        people.revoke_session(actor=self.actor, session=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
