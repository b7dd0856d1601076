"""Who is asking the management API: a session (with CSRF), an access token, or a name with its password.

``Authorization: Bearer qma-<id>.<secret>`` is for automation. HTTP Basic is off unless ``QUARTERMASTER_BASIC_AUTH`` is
on: a password costs a slow hash on each call, and wrong ones are counted with those of the login page
(``controlplane.web.security``).
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import (
    BaseAuthentication,
    BasicAuthentication,
    SessionAuthentication,
    get_authorization_header,
)
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from tenants import keys, second_factors
from tenants.models import AccessToken
from tenants.models.credentials import TokenScope

# The same words for an unknown, expired or revoked token, or one whose owner is gone.
_REFUSED = "This access token is not valid. Make one with `manage.py token USER`, or at /api/v1/tokens when signed in."

_NO_BASIC = (
    "HTTP Basic is switched off here (QUARTERMASTER_BASIC_AUTH). Use an access token: `manage.py token USER` makes one."
)


_CODE_WANTED = (
    "This account has a second factor, or needs one, so its password alone opens nothing here. Use an access token."
)


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
        if row.scope == TokenScope.READ and request.method not in SAFE_METHODS:
            raise PermissionDenied("This access token is for reading only. Make one with the scope 'all' to change.")
        return row.user, row

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="quartermaster"'


class AccessTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells the OpenAPI page about it."""

    target_class = AccessTokenAuthentication
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An access token: qma-<id>.<secret>"}


class PasswordAuthentication(BasicAuthentication):
    """HTTP Basic, asked for by nobody: a browser must not pop up its own login window."""

    www_authenticate_realm = "quartermaster"

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        if settings.QUARTERMASTER_BASIC_AUTH:
            authenticated = super().authenticate(request)
            if authenticated is not None and not second_factors.password_is_enough(authenticated[0]):
                raise AuthenticationFailed(_CODE_WANTED)
            return authenticated
        if get_authorization_header(request).partition(b" ")[0].lower() == b"basic":
            raise AuthenticationFailed(_NO_BASIC)  # nothing was hashed or looked up
        return None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="quartermaster"'


class PasswordScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells the OpenAPI page about it."""

    target_class = PasswordAuthentication
    name = "password"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "basic", "description": "Where QUARTERMASTER_BASIC_AUTH is on."}


# The order decides what a 401 asks for.
AUTHENTICATION = (AccessTokenAuthentication, SessionAuthentication, PasswordAuthentication)
