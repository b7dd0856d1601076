"""The login page, and the two steps of a sign-in at the identity provider."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import requests
from allauth.socialaccount.providers.openid_connect import views as openid_connect
from django.conf import settings
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.web import login_attempts
from controlplane.web.error_pages import notice
from controlplane.web.login_attempts import network_of

log = logging.getLogger(__name__)

BEGUN, WINDOW_S = 30, 300  # sign-ins of one address: each keeps a row until it is over
UNFINISHED_S = 900
LONGEST = 8_192  # letters of what comes back in the address


class Login(LoginView):
    """Name and password, and the way to the identity provider where there is one."""

    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        provider = settings.QUARTERMASTER_OIDC_NAME if settings.QUARTERMASTER_OIDC_ISSUER else ""
        return super().get_context_data(provider=provider, **kwargs)


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
    answer = _asked(request, openid_connect.login, provider_id)
    if not request.user.is_authenticated:
        request.session.set_expiry(UNFINISHED_S)
    return answer


@require_safe
def come_back(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Takes what the provider sent the browser back with."""
    if len(request.META.get("QUERY_STRING", "")) > LONGEST:
        return notice(request, 400, "Not signed in", "This address is too long for one that a provider sends.")
    return _asked(request, openid_connect.callback, provider_id)


def _asked(request: HttpRequest, view: Callable[..., Any], provider_id: str) -> HttpResponse:
    try:
        answer: HttpResponse = view(request, provider_id)
    except (requests.RequestException, KeyError) as error:
        log.warning("sign-in: the identity provider does not answer as it should (%s)", type(error).__name__)
        return notice(
            request,
            502,
            "The identity provider does not answer",
            "Nobody can sign in with it at the moment. Who is signed in stays so. Try again in a minute, or use an "
            "account of this installation.",
        )
    return answer
