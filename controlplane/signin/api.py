"""A user's own second factor over the management API, for signed-in browsers."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import NotFound, PermissionDenied, Throttled, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.signin import challenges
from controlplane.signin.adapters import SECOND_FACTOR, address_of
from controlplane.signin.second_factor import code_was_right, wait_for_codes
from controlplane.web import login_attempts
from tenants import passkeys, people, second_factors
from tenants.api.base import Right, ScopedView
from tenants.api.serializers import Strict
from tenants.sealed import seal, unseal

OFFERED = "qm.second_factor"  # of a session: the secret that was offered, sealed
NO_STORE = {"Cache-Control": "no-store"}


class PasskeySerializer(serializers.Serializer[passkeys.Passkey]):
    """A device that can sign in one's place."""

    id = serializers.IntegerField(read_only=True)
    name = serializers.CharField(read_only=True, help_text="That its owner gave it.")
    since = serializers.DateTimeField(read_only=True)
    used_at = serializers.DateTimeField(read_only=True, allow_null=True)


class SecondFactorSerializer(serializers.Serializer[second_factors.State]):
    """What one's own account has."""

    enabled = serializers.BooleanField(
        read_only=True, help_text="Whether a code or a passkey is asked for after the password."
    )
    mandatory = serializers.BooleanField(read_only=True, help_text="Whether this installation wants one.")
    available = serializers.BooleanField(
        read_only=True, help_text="False: this account has no password here, so there is nothing to add one to."
    )
    since = serializers.DateTimeField(read_only=True, allow_null=True)
    used_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="When one was taken last.")
    codes_left = serializers.IntegerField(read_only=True, help_text="Recovery codes that were not used.")
    app = serializers.BooleanField(read_only=True, help_text="Whether an authenticator app is one.")
    passkeys = PasskeySerializer(many=True, read_only=True)


class Answer(serializers.JSONField):
    """What a browser's passkey answered: a bounded object."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise serializers.ValidationError("Send what the browser's passkey answered, as an object.")
        if len(json.dumps(data)) > passkeys.ANSWER_LETTERS:
            raise serializers.ValidationError(f"This is longer than {passkeys.ANSWER_LETTERS} characters.")
        return data


class ProofSerializer(Strict):
    """That it is really you."""

    password = serializers.CharField(
        max_length=200, required=False, default="", allow_blank=True, trim_whitespace=False,
        help_text="Of your account, while it has no second factor.",
    )  # fmt: skip
    code = serializers.CharField(
        max_length=second_factors.LONGEST_CODE, required=False, default="", allow_blank=True,
        help_text="Of the app, or a recovery code, while it has one.",
    )  # fmt: skip
    passkey = Answer(
        required=False, default=None, allow_null=True,
        help_text="In place of the code: what a passkey answered the options of `second-factor/challenge`.",
    )  # fmt: skip


class CodeSerializer(Strict):
    code = serializers.CharField(max_length=second_factors.LONGEST_CODE, help_text="A code that the app shows.")


class SecondFactorOfferSerializer(serializers.Serializer[second_factors.Offer]):
    """A secret for an authenticator app."""

    secret = serializers.CharField(read_only=True, help_text="To type in where no code can be scanned.")
    address = serializers.CharField(read_only=True, help_text="otpauth://, what the drawing says.")
    svg = serializers.CharField(read_only=True, help_text="A QR code.")


class RecoveryCodesSerializer(serializers.Serializer[dict[str, Any]]):
    recovery_codes = serializers.ListField(
        child=serializers.CharField(), read_only=True,
        help_text="Each opens the account once, in place of a code of the app. Shown only in this answer.",
    )  # fmt: skip


class PasskeyOptionsSerializer(serializers.Serializer[dict[str, Any]]):
    options = serializers.DictField(
        child=serializers.JSONField(), read_only=True,
        help_text="As `PublicKeyCredential.parseCreationOptionsFromJSON` and `parseRequestOptionsFromJSON` read them.",
    )  # fmt: skip


class PasskeyNameSerializer(Strict):
    name = serializers.CharField(max_length=passkeys.NAME_LETTERS, help_text="What you call the device.")


class NewPasskeySerializer(PasskeyNameSerializer):
    credential = Answer(help_text="What the browser made of the options, as its `toJSON()` says it.")


class OwnView(ScopedView, APIView):
    """Of whoever is signed in, in a browser."""

    def right(self) -> Right:
        return Right.OWN

    @property
    def user(self) -> User:
        user = self.request.user
        assert isinstance(user, User)
        return user

    def in_a_browser(self) -> None:
        """An access token may be read by programs: it must not take away what protects its owner's login."""
        if not isinstance(self.request.successful_authenticator, SessionAuthentication):
            raise PermissionDenied("Only in a browser that is signed in. Open the page People of the console.")

    def proven(self, password: str = "", code: str = "", passkey: object = None) -> None:
        """Raises where the password or, once there is a factor, the code or passkey is not this user's. Wrong ones are
        counted with those of the login page."""
        if second_factors.enabled(self.user):
            self._factor(code, passkey)
        else:
            self._password(password)

    def _factor(self, code: str, passkey: object) -> None:
        if wait_s := wait_for_codes(self.user):
            raise Throttled(wait_s, "Too many wrong codes were tried for this account.")
        if passkey is not None:
            if not challenges.signed(self.request._request, self.user, passkey):
                self._failed()
                raise ValidationError({"passkey": passkeys.NOT_OURS})
        elif not second_factors.check(actor=self.actor, user=self.user, code=code):
            self._failed()
            raise ValidationError({"code": "This code does not fit, or was used before. Type the newest one."})
        code_was_right(self.user)

    def with_password(self) -> None:
        if not self.user.has_usable_password():
            raise ValidationError(
                {"non_field_errors": "This account has no password here. Its provider asks for more."}
            )

    def begun_anew(self, how: str) -> None:
        """This session has the factor now; others of the account began with less."""
        self.request.session[second_factors.HOW] = how
        people.end_others(user=self.user, but=str(self.request.session.session_key))

    def _password(self, password: str) -> None:
        address = login_attempts.network_of(address_of(self.request))
        attempt, refusal = login_attempts.begin(self.user.get_username(), address)
        if attempt is None:
            assert refusal is not None
            raise Throttled(refusal.retry_s, refusal.text)
        if not self.user.check_password(password):
            self._failed()
            raise ValidationError({"password": "This is not your password."})
        attempt.fitted()

    def _failed(self) -> None:
        """Into the audit log, like a wrong password of the login page."""
        name = self.user.get_username()
        user_login_failed.send(sender=__name__, credentials={"username": name}, request=self.request)


class StateView(OwnView):
    @extend_schema(summary="Read one's own second factor", responses=SecondFactorSerializer)
    def get(self, request: Request) -> Response:
        """Whether there is one, and whether it is required."""
        return Response(SecondFactorSerializer(second_factors.state(self.user)).data)


class OfferView(OwnView):
    @extend_schema(
        summary="Begin to set up a second factor", operation_id="second_factor_offer", request=ProofSerializer,
        responses=SecondFactorOfferSerializer,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """A new secret for an authenticator app; with a code of the present one, for another device. Nothing changes
        before a code of it was sent to `enable`."""
        body = ProofSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        self.with_password()
        self.proven(**body.validated_data)
        offer = second_factors.offer(self.user)
        request.session[OFFERED] = seal(offer.secret, SECOND_FACTOR)
        return Response(SecondFactorOfferSerializer(offer).data, headers=NO_STORE)


class EnableView(OwnView):
    @extend_schema(
        summary="Enable the second factor", operation_id="second_factor_enable", request=CodeSerializer,
        responses={201: RecoveryCodesSerializer},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Takes the app whose code this is. Other sessions of the account end."""
        body = CodeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        secret = unseal(request.session.get(OFFERED, ""), SECOND_FACTOR)
        if secret is None:
            raise ValidationError(
                {"non_field_errors": "Nothing was offered in this session, or it was used. Begin anew."}
            )
        codes = second_factors.enable(actor=self.actor, user=self.user, secret=secret, code=body.validated_data["code"])
        del request.session[OFFERED]
        self.begun_anew("code")
        return _codes(codes, status.HTTP_201_CREATED)


class CodesView(OwnView):
    @extend_schema(
        summary="Make new recovery codes", operation_id="second_factor_codes", request=ProofSerializer,
        responses={201: RecoveryCodesSerializer},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """In place of the old ones, which work no more."""
        body = ProofSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        self.proven(**body.validated_data)
        return _codes(second_factors.new_codes(actor=self.actor, user=self.user), status.HTTP_201_CREATED)


class DisableView(OwnView):
    @extend_schema(
        summary="Disable the second factor", operation_id="second_factor_disable", request=ProofSerializer,
        responses={204: None},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """App, passkeys and recovery codes go; from then on the password alone is enough. Refused where a second
        factor is required."""
        body = ProofSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        if second_factors.required(self.user):
            raise ValidationError({"non_field_errors": "A second factor is required here. You can change the device."})
        self.proven(**body.validated_data)
        second_factors.remove(actor=self.actor, user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ChallengeView(OwnView):
    @extend_schema(
        summary="Begin to prove by a passkey", operation_id="second_factor_challenge", request=None,
        responses=PasskeyOptionsSerializer,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Options for the browser's `navigator.credentials.get`. Its answer is the `passkey` of what asks for a proof;
        it works once, for five minutes."""
        self.in_a_browser()
        if not passkeys.rows_of(self.user).exists():
            raise ValidationError({"non_field_errors": "This account has no passkey."})
        return Response({"options": challenges.to_use(request._request, self.user)}, headers=NO_STORE)


class PasskeyOfferView(OwnView):
    @extend_schema(
        summary="Begin to add a passkey", operation_id="second_factor_passkey_offer", request=ProofSerializer,
        responses=PasskeyOptionsSerializer,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Options for the browser's `navigator.credentials.create`. Nothing changes before its answer was sent."""
        body = ProofSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        self.with_password()
        self.proven(**body.validated_data)
        return Response({"options": challenges.to_make(request._request, self.user)}, headers=NO_STORE)


class PasskeysView(OwnView):
    @extend_schema(
        summary="Add a passkey", operation_id="second_factor_passkey_add", request=NewPasskeySerializer,
        responses={201: RecoveryCodesSerializer},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """With recovery codes where it is the first factor; other sessions of the account end then."""
        body = NewPasskeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        first = not second_factors.enabled(self.user)
        given = body.validated_data
        codes = challenges.made(
            request._request, actor=self.actor, user=self.user, name=given["name"], answer=given["credential"]
        )
        if first:
            self.begun_anew("passkey")
        return _codes(codes, status.HTTP_201_CREATED)


class PasskeyView(OwnView):
    @extend_schema(
        summary="Rename a passkey", operation_id="second_factor_passkey_rename", request=PasskeyNameSerializer,
        responses=PasskeySerializer,
    )  # fmt: skip
    def patch(self, request: Request, passkey: int) -> Response:
        body = PasskeyNameSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        row = passkeys.rename(actor=self.actor, user=self.user, passkey=passkey, name=body.validated_data["name"])
        if row is None:
            raise NotFound("You have no such passkey.")
        return Response(PasskeySerializer(row).data)


class RemovePasskeyView(OwnView):
    @extend_schema(
        summary="Remove a passkey", operation_id="second_factor_passkey_remove", request=ProofSerializer,
        responses={204: None},
    )  # fmt: skip
    def post(self, request: Request, passkey: int) -> Response:
        """The last factor goes with its recovery codes, and not where one is required."""
        body = ProofSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        self.in_a_browser()
        if not passkeys.rows_of(self.user).filter(pk=passkey).exists():
            raise NotFound("You have no such passkey.")
        self.proven(**body.validated_data)
        second_factors.remove_passkey(actor=self.actor, user=self.user, passkey=passkey)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _codes(codes: list[str], code: int) -> Response:
    return Response(RecoveryCodesSerializer({"recovery_codes": codes}).data, status=code, headers=NO_STORE)
