"""``Authorization: Bearer qma-<id>.<secret>``: how automation signs in to the management API."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from tenants import keys
from tenants.models import AccessToken

# The same words for an unknown, expired or revoked token, or one whose owner is gone.
_REFUSED = "This access token is not valid. Make one with `manage.py token USER`, or at /api/v1/tokens when signed in."


class AccessTokenAuthentication(BaseAuthentication):
    """Acts in the name of the token's owner. A browser never sends it by itself, so it needs no CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, AccessToken] | None:
        scheme, _, text = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        credential = keys.parse(text.strip().decode("latin-1"))
        if credential is None or credential.prefix != keys.TOKEN_PREFIX:
            raise AuthenticationFailed(_REFUSED)
        row = (
            AccessToken.active_at(timezone.now()).select_related("user").filter(public_id=credential.public_id).first()
        )
        if row is None or not keys.matches(credential, row.digest) or not row.user.is_active:
            raise AuthenticationFailed(_REFUSED)
        return row.user, row

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="quartermaster"'


class AccessTokenScheme(OpenApiAuthenticationExtension):
    """Tells the OpenAPI page about it."""

    target_class = AccessTokenAuthentication
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An access token: qma-<id>.<secret>"}
