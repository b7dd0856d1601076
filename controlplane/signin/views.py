"""The login page, and the two steps of a sign-in at the identity provider."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from django.conf import settings
from django.contrib.auth.forms import BaseUserCreationForm
from django.contrib.auth.views import LoginView, redirect_to_login
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from django.views.generic import FormView

from controlplane.signin import openid
from controlplane.signin.exchange import OtherIssuer, Trouble
from controlplane.signin.second_factor import password_was_right
from controlplane.web import login_attempts
from controlplane.web.error_pages import notice
from controlplane.web.login_attempts import network_of
from tenants import people

log = logging.getLogger(__name__)

BEGUN, WINDOW_S = 30, 300  # sign-ins of one address: each keeps a row until it is over
TRIED = 30  # times that one address opens or answers invitations
UNFINISHED_S = 900
LONGEST = 8_192  # letters of what comes back in the address


class Login(LoginView):
    """Name and password, and the way to the identity provider where there is one."""

    redirect_authenticated_user = True

    def get_redirect_url(self, *args: Any, **kwargs: Any) -> str:
        """Where somebody wants to go on to; this page itself is no such place, and Django would fail."""
        following = super().get_redirect_url(*args, **kwargs)
        return "" if urlsplit(following).path == self.request.path else following

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        provider = settings.QUARTERMASTER_OIDC_NAME if settings.QUARTERMASTER_OIDC_ISSUER else ""
        saml = settings.QUARTERMASTER_SAML_NAME if settings.QUARTERMASTER_SAML_ISSUER else ""
        return super().get_context_data(provider=provider, saml=saml, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        return password_was_right(self.request, form.get_user(), self.get_success_url())


def back_office_login(request: HttpRequest) -> HttpResponse:
    """The back office has no login of its own: there is one place where passwords and codes are asked for."""
    if request.user.is_authenticated:
        return render(request, "403.html", status=403)
    following = request.GET.get("next", "/admin/")
    return redirect_to_login(following if len(following) <= LONGEST else "/admin/")


class JoinForm(BaseUserCreationForm):  # type: ignore[type-arg]  # generic for checkers only
    """User name and password of a new account, by the rules for all passwords."""


class Join(FormView):  # type: ignore[type-arg]  # likewise
    """The page behind an invitation: it makes one account, once."""

    form_class = JoinForm
    template_name = "registration/join.html"
    success_url = "/"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        address = network_of(request.META.get("REMOTE_ADDR", ""))
        if wait_s := login_attempts.take(f"invitation from {address}", TRIED, WINDOW_S):
            text = f"Too many invitations were opened from your address. Try again in {wait_s} seconds."
            return notice(request, 429, "Too many invitations", text, retry_s=wait_s)
        self.invitation = people.invited(kwargs["text"])
        if self.invitation is None:
            return self._over()
        return super().dispatch(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(invitation=self.invitation, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        user = form.save(commit=False)
        try:
            people.accept(text=self.kwargs["text"], user=user)
        except ValidationError as error:
            form.add_error(None, error.messages)
            return self.form_invalid(form)
        user.backend = settings.AUTHENTICATION_BACKENDS[0]
        return password_was_right(self.request, user, self.get_success_url())

    def _over(self) -> HttpResponse:
        text = "This invitation was used, revoked or has expired, or its link is not whole. Ask for a new one."
        return notice(self.request, 410, "This invitation does not work", text)


@require_safe
def sign_in(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Sends a browser to the provider."""
    address = network_of(request.META.get("REMOTE_ADDR", ""))
    if wait_s := login_attempts.take(f"sign-in from {address}", BEGUN, WINDOW_S):
        return notice(
            request,
            429,
            "Too many sign-ins",
            f"Too many sign-ins were begun from your address. Try again in {wait_s} seconds.",
            retry_s=wait_s,
        )
    answer = _provider_answer(request, openid.login, provider_id)
    if not request.user.is_authenticated:
        request.session.set_expiry(UNFINISHED_S)
    return answer


@require_safe
def come_back(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Takes what the provider sent the browser back with."""
    if len(request.META.get("QUERY_STRING", "")) > LONGEST:
        return notice(request, 400, "Not signed in", "This address is too long for one that a provider sends.")
    request.quartermaster_how = "provider"  # type: ignore[attr-defined]  # read when a session begins
    return _provider_answer(request, openid.callback, provider_id)


# What comes of an answer in which something is missing or of another type: allauth reads it as if it were right.
_NOT_OF_THE_PROTOCOL = (
    requests.RequestException, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
    ImproperlyConfigured,  # a subject that is longer than may be
)  # fmt: skip


def _provider_answer(request: HttpRequest, view: Callable[..., Any], provider_id: str) -> HttpResponse:
    try:
        answer: HttpResponse = view(request, provider_id)
    except OtherIssuer as trouble:
        log.warning("sign-in: %s", trouble)
        return notice(
            request,
            502,
            "The identity provider is not the one that was set up",
            "Its answer names another issuer than QUARTERMASTER_OIDC_ISSUER, so nobody can sign in with it, and "
            "waiting does not help. Whoever runs this installation finds both names in the log. Until that is "
            "corrected, use an account of this installation.",
        )
    except Trouble as trouble:
        log.warning("sign-in: %s", trouble)
        return _no_answer(request)
    except _NOT_OF_THE_PROTOCOL as error:
        log.warning("sign-in: the identity provider does not answer as it should (%s)", type(error).__name__)
        return _no_answer(request)
    return answer


def _no_answer(request: HttpRequest) -> HttpResponse:
    return notice(
        request,
        502,
        "The identity provider does not answer",
        "Nobody can sign in with it at the moment. Who is signed in stays so. Try again in a minute, or use an "
        "account of this installation.",
    )
