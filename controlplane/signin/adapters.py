"""What django-allauth asks of us: who may come in, and what is said to who may not.

Accounts are never joined by e-mail address or name: a provider that lets people choose either could then hand over the
account of somebody else.
"""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address
from typing import Any, NoReturn

import requests
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from allauth.socialaccount.providers.base import AuthProcess
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from controlplane.signin import exchange
from controlplane.signin.provider import same_issuer
from controlplane.web.error_pages import notice
from tenants import people
from tenants.models import Identity
from tenants.sealed import seal, unseal

SECOND_FACTOR = "second factor"  # purpose of the seal
NOT_JOINED = "Accounts here are never joined with one of the identity provider. Go to /login to sign in."
OF_TWO = "The identity provider's token is of another person than what it says of you. Go to /login and try again."
NO_ADDRESS = "0.0.0.0"  # noqa: S104  of a request that came through a socket file


class AccountAdapter(DefaultAccountAdapter):
    """Accounts of our own are made by admins and invitations only."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        return address_of(request)

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """The console says what happened."""

    def respond_user_inactive(self, request: HttpRequest, user: Any) -> HttpResponse:
        return inactive(request)


class ProviderAdapter(DefaultSocialAccountAdapter):
    """People of the identity provider come in when one of their groups has a role here."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True

    def get_requests_session(self) -> requests.Session:
        return exchange.session()

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Refuses before an account is made: strangers of a large directory leave nothing behind."""
        if sociallogin.state.get("process") != AuthProcess.LOGIN:
            # "connect" would open the account that is signed in here to whoever is signed in at the provider
            raise ImmediateHttpResponse(notice(request, 400, "Not signed in", NOT_JOINED))
        if not _about_one(sociallogin):
            raise ImmediateHttpResponse(notice(request, 401, "Not signed in", OF_TWO))
        sociallogin.email_addresses = []  # never a way to an account
        user = sociallogin.user if sociallogin.is_existing else None
        if user is not None:
            identity = Identity.objects.filter(user=user).first()
            if identity is not None and not same_issuer(identity.issuer, _issuer(sociallogin)):
                _refuse(request, "This account belongs to another identity provider. Ask an admin to delete it.")
            if not user.is_active and (identity is None or identity.ended_at is None):
                raise ImmediateHttpResponse(inactive(request))
        groups = _groups(sociallogin)
        if not people.granted(groups) and not (user is not None and people.has_role_by_hand(user)):
            if user is not None and identity is not None:
                people.end(identity, "No group of theirs has a role here any more.")
            _refuse(
                request,
                "You are signed in at the identity provider, but none of your groups there has a role here. "
                "Ask an admin: groups are given roles on the page People.",
            )
        if user is not None:
            self._note(request, sociallogin, user, groups)

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: Any) -> Any:
        """An address that the provider has not verified is not taken: keys that carry it can end with its person."""
        user = super().populate_user(request, sociallogin, data)
        sociallogin.called = data.get("username") or ""  # allauth forgets a name that is taken here
        if _claims(sociallogin).get("email_verified") in (False, "false"):
            user.email = ""
        return user

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> Any:
        if not sociallogin.user.username:
            # The audit log has to tell people apart: not one "user" after the other.
            names = [getattr(sociallogin, "called", ""), sociallogin.user.email, sociallogin.account.uid, "user"]
            sociallogin.user.username = AccountAdapter(request).generate_unique_username(names)
        user = super().save_user(request, sociallogin, form)
        self._note(request, sociallogin, user, _groups(sociallogin))
        return user

    def on_authentication_error(self, request: HttpRequest, provider: Any, **kwargs: Any) -> None:
        raise ImmediateHttpResponse(
            notice(
                request,
                401,
                "Not signed in",
                "The identity provider did not let you in, or the sign-in took too long. Go to /login and try again.",
            )
        )

    def _note(self, request: HttpRequest, sociallogin: SocialLogin, user: User, groups: list[str]) -> None:
        token = sociallogin.token
        grant = people.Grant(token.token, token.token_secret) if token is not None else people.Grant("")
        counts_s = settings.QUARTERMASTER_OIDC_RECHECK_S
        if _by_saml(sociallogin):  # there is nobody to ask again
            counts_s = settings.QUARTERMASTER_SAML_HOURS * 3600
        people.signed_in(
            user=user,
            issuer=_issuer(sociallogin),
            subject=sociallogin.account.uid,
            groups=groups,
            grant=grant,
            due_at=timezone.now() + timedelta(seconds=counts_s),
        )
        user.refresh_from_db()


class SecondFactorAdapter(DefaultMFAAdapter):
    """Secrets of second factors lie sealed in the database. allauth's own login step asks for none: ours does, of
    those who come with a password (``controlplane.signin.second_factor``)."""

    def encrypt(self, text: str) -> str:
        return seal(text, SECOND_FACTOR)

    def decrypt(self, encrypted_text: str) -> str:
        text = unseal(encrypted_text, SECOND_FACTOR)
        if text is None:
            raise ValidationError(
                "This second factor was stored under another QUARTERMASTER_SECRET_KEY. An admin can reset it on the "
                "page People, `manage.py second_factor reset USER` on the host."
            )
        return text

    def is_mfa_enabled(self, user: Any, types: Any = None) -> bool:
        return False

    def get_totp_label(self, user: Any) -> str:
        return str(user.get_username())


def _by_saml(sociallogin: SocialLogin) -> bool:
    return bool(sociallogin.account.provider == "saml")


def _issuer(sociallogin: SocialLogin) -> str:
    """Who vouches for this sign-in."""
    saml = _by_saml(sociallogin)
    return str(settings.QUARTERMASTER_SAML_ISSUER if saml else settings.QUARTERMASTER_OIDC_ISSUER)


def _groups(sociallogin: SocialLogin) -> list[str]:
    """The groups that this sign-in names."""
    if _by_saml(sociallogin):
        data = sociallogin.account.extra_data
        name = settings.QUARTERMASTER_SAML_GROUPS_ATTRIBUTE
        return people.groups_in({name: data.get(name)}, name) or []
    return people.groups_in(_claims(sociallogin), settings.QUARTERMASTER_OIDC_GROUPS_CLAIM) or []


def _claims(sociallogin: SocialLogin) -> dict[str, Any]:
    """What OpenID Connect says of somebody; userinfo is newer than the token."""
    data = sociallogin.account.extra_data
    return {**(data.get("id_token") or {}), **(data.get("userinfo") or {})}


def _about_one(sociallogin: SocialLogin) -> bool:
    """Whether ID token and userinfo are of the same person, as they have to be (OpenID Connect Core 5.3.2)."""
    data = sociallogin.account.extra_data
    told = [data[part].get("sub") for part in ("id_token", "userinfo") if data.get(part)]
    return _by_saml(sociallogin) or len(set(map(str, told))) == 1


def _refuse(request: HttpRequest, text: str) -> NoReturn:
    raise ImmediateHttpResponse(notice(request, 403, "No role here", text))


def inactive(request: HttpRequest) -> HttpResponse:
    return notice(request, 403, "Account disabled", "This account is disabled here. An admin can enable it.")


def address_of(request: HttpRequest) -> str:
    """Where a request came from, as the server (or a proxy it trusts) says."""
    try:
        return str(ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:
        return NO_ADDRESS
