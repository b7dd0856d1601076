"""allauth's OpenID Connect, for the issuer that was configured and no other one."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse

from controlplane.signin.exchange import OtherIssuer
from controlplane.signin.provider import check_configuration, same_issuer

OF_AN_ADDRESS = ("process", "next")  # what a link to a sign-in may say


class OneIssuer(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # has no types
    """Takes the provider's configuration only from who is meant: its endpoints get the client's secret, and the issuer
    in it is the one that ID tokens are compared with."""

    @cached_property
    def openid_config(self) -> dict[str, Any]:
        document: dict[str, Any] = super().openid_config
        check_configuration(document, settings.QUARTERMASTER_OIDC_ISSUER)
        return document

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any) -> Any:
        """Who signs in; by the ID token alone where the provider has no userinfo, as user flows of Azure AD B2C."""
        id_token = kwargs["response"].get("id_token")
        if self.openid_config.get("userinfo_endpoint") or not id_token:
            return super().complete_login(request, app, token, **kwargs)
        return self.get_provider().sociallogin_from_response(
            request, {"id_token": self._decode_id_token(app, id_token)}
        )

    def get_provider(self) -> Any:
        provider = super().get_provider()
        provider.oauth2_adapter_class = type(self)  # it makes one of its own for the way to the identity provider
        return provider


def login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Drops all parameters of the address but :data:`OF_AN_ADDRESS`. allauth would take scopes and any parameter for
    the provider from it, so that the author of a link could decide where the answer goes and how somebody has to
    authenticate."""
    kept = request.GET.copy()
    for name in set(kept) - set(OF_AN_ADDRESS):
        del kept[name]
    request.GET = kept  # type: ignore[assignment]
    return _answer(OAuth2LoginView, request, provider_id)


def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Raises:
    OtherIssuer: the answer names another issuer (RFC 9207).
    """
    issuer = request.GET.get("iss")
    if issuer is not None and not same_issuer(issuer, settings.QUARTERMASTER_OIDC_ISSUER):
        raise OtherIssuer(f"An answer to a sign-in is of issuer {issuer!r:.200}.")
    return _answer(OAuth2CallbackView, request, provider_id)


def _answer(view: Any, request: HttpRequest, provider_id: str) -> HttpResponse:
    """Raises:
    OtherIssuer: the provider says that it is another one.
    """
    try:
        answer: HttpResponse = view.adapter_view(OneIssuer(request, provider_id))(request)
    except SocialApp.DoesNotExist as error:
        raise Http404 from error
    return answer
