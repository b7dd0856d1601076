"""What stands before every page: a content security policy, no caches, a brake on guessed passwords, and a closed
default."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from rest_framework.permissions import BasePermission

from controlplane.web import login_attempts
from controlplane.web.error_pages import notice
from controlplane.web.hashing import RETRY_S, HashingBusy, ahead
from controlplane.web.middleware import Middleware

STRICT = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
# The back office and the API browser are third-party pages with inline scripts and Alpine's evaluated attributes.
RELAXED = STRICT.replace("script-src 'self'", "script-src 'self' 'unsafe-inline' 'unsafe-eval'")
RELAXED_PATHS = ("/admin/", "/api/v1/docs", "/api/v1/schema")

CODE_PATHS = ("/login/code", "/login/second-factor")  # after the password, with the name that it was right for
LOGIN_PATHS = ("/login", *CODE_PATHS)
FIRST_STEP = "qm.first_step"  # of a session: whose password was right, and until when a code is waited for


class Nobody(BasePermission):
    """DRF's default here: a view has to name who may use it."""

    message = "This page is closed. Its permission classes were not set."

    def has_permission(self, request: Any, view: Any) -> bool:
        return False


class ContentSecurityPolicy(Middleware):
    """Adds the policy to every answer that has none."""

    def now(self, request: HttpRequest) -> HttpResponse:
        return self._mark(request, self.passed(request))

    async def later(self, request: HttpRequest) -> HttpResponse:
        return self._mark(request, await self.passed_later(request))

    def _mark(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        relaxed = request.path.startswith(RELAXED_PATHS)
        response.headers.setdefault("Content-Security-Policy", RELAXED if relaxed else STRICT)
        return response


class NotKept(Middleware):
    """Forbids caching unless the view allows it, since an answer depends on who asks."""

    def now(self, request: HttpRequest) -> HttpResponse:
        return self._mark(self.passed(request))

    async def later(self, request: HttpRequest) -> HttpResponse:
        return self._mark(await self.passed_later(request))

    def _mark(self, response: HttpResponse) -> HttpResponse:
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response


class LoginThrottle(Middleware):
    """Stands before every password: what may be tried is counted before it is checked
    (``controlplane.web.login_attempts``), few are checked at the same time, and a hash that could not be made
    in time is no fault of the page's."""

    def now(self, request: HttpRequest) -> HttpResponse:
        if not _has_password(request):
            return self.passed(request)
        address = login_attempts.network_of(request.META.get("REMOTE_ADDR", ""))
        if not places.enter(address):
            if not asking.enter(address):
                return _busy(request)
            try:
                known = _known(request, address)
            finally:
                asking.leave(address)
            if not known or not places.enter(address, known=True):
                return _busy(request)
        try:
            goes = ahead.set(_known(request, address))
            try:
                attempt = self._begin(request, address)
                if isinstance(attempt, HttpResponse):
                    return attempt
                return self._end(request, attempt, self.passed(request))
            finally:
                ahead.reset(goes)
        finally:
            places.leave(address)

    async def later(self, request: HttpRequest) -> HttpResponse:
        if not _has_password(request):
            return await self.passed_later(request)
        address = login_attempts.network_of(request.META.get("REMOTE_ADDR", ""))
        if not places.enter(address):
            if not asking.enter(address):
                return _busy(request)
            try:
                known = await sync_to_async(_known)(request, address)
            finally:
                asking.leave(address)
            if not known or not places.enter(address, known=True):
                return _busy(request)
        try:
            goes = ahead.set(await sync_to_async(_known)(request, address))
            try:
                attempt = await sync_to_async(self._begin)(request, address)
                if isinstance(attempt, HttpResponse):
                    return attempt
                return await sync_to_async(self._end)(request, attempt, await self.passed_later(request))
            finally:
                ahead.reset(goes)
        finally:
            places.leave(address)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Of any page, also of one where a password is changed."""
        return _busy(request) if isinstance(exception, HashingBusy) else None

    def _begin(self, request: HttpRequest, address: str) -> login_attempts.Attempt | HttpResponse:
        attempt, refusal = login_attempts.begin(
            _claimed_name(request), address, password=request.path not in CODE_PATHS
        )
        if attempt is not None:
            return attempt
        assert refusal is not None
        return notice(
            request, 429, "Too many passwords", refusal.text, retry_s=refusal.retry_s, code="too_many_passwords"
        )

    def _end(self, request: HttpRequest, attempt: login_attempts.Attempt, response: HttpResponse) -> HttpResponse:
        # Whoever hangs up before the answer never comes here: that password counts as a wrong one.
        match getattr(request, _OUTCOME, None):
            case "wrong":
                pass
            case "fitted":
                attempt.fitted()
            case "right":
                attempt.right(password=request.path not in CODE_PATHS)
            case _:
                attempt.unchecked()
        return response


_OUTCOME = "_quartermaster_password"


def fitted(request: HttpRequest) -> None:
    """The password of this request was right; what comes next decides whether it lets anybody in."""
    setattr(request, _OUTCOME, "fitted")


places = login_attempts.Places()
asking = login_attempts.Places()  # who found none, and may be known: whether they are is asked of Redis


def _busy(request: HttpRequest) -> HttpResponse:
    return notice(
        request,
        429,
        "Too many passwords at once",
        "Too many passwords are being checked at this moment, and this one was not. Try again in a few seconds.",
        retry_s=RETRY_S,
        code="passwords_busy",
    )


def _has_password(request: HttpRequest) -> bool:
    return (request.method == "POST" and request.path in LOGIN_PATHS) or _basic_name(request) is not None


def _claimed_name(request: HttpRequest) -> str:
    """Whose password or code is tried. Codes count with the passwords of that name."""
    name = _basic_name(request)
    if name is None and request.path in CODE_PATHS:
        name = str(request.session.get(FIRST_STEP, {}).get("name", ""))
    return request.POST.get("username", "") if name is None else name


def _known(request: HttpRequest, address: str) -> bool:
    """Whether the owner of the name has signed in from there lately, and so goes ahead of strangers."""
    return login_attempts.known(_claimed_name(request), address)


def _basic_name(request: HttpRequest) -> str | None:
    """The name that HTTP Basic claims; None for any other request, unreadable credentials included."""
    if not settings.QUARTERMASTER_BASIC_AUTH:
        return None
    scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(text).decode().partition(":")[0]
    except ValueError:
        return None


@receiver(user_login_failed)
def _wrong(sender: Any, credentials: dict[str, Any], request: Any = None, **_: Any) -> None:
    if request is not None:
        setattr(getattr(request, "_request", request), _OUTCOME, "wrong")  # DRF hands over its own request


@receiver(user_logged_in)
def _right(sender: Any, request: HttpRequest, user: Any, **_: Any) -> None:
    setattr(request, _OUTCOME, "right")
