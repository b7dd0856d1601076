"""What stands before every page: a content security policy, a brake on guessed passwords, and a closed default."""

from __future__ import annotations

import logging
import time
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.cache import cache
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from rest_framework.permissions import BasePermission

from controlplane.notices import notice

log = logging.getLogger(__name__)

STRICT = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
# The back office and the API browser are third-party pages with inline scripts and Alpine's evaluated attributes.
RELAXED = STRICT.replace("script-src 'self'", "script-src 'self' 'unsafe-inline' 'unsafe-eval'")
RELAXED_PATHS = ("/admin/", "/api/v1/docs", "/api/v1/schema")

FAILURES, WINDOW_S = 10, 300  # wrong passwords for one name from one address
LOGIN_PATHS = ("/login", "/admin/login/")


class Nobody(BasePermission):
    """DRF's default here: a view has to name who may use it."""

    message = "This page is closed. Its permission classes were not set."

    def has_permission(self, request: Any, view: Any) -> bool:
        return False


class ContentSecurityPolicy:
    """Adds the policy to every answer that has none."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._later(request)
        return self._mark(request, self.get_response(request))

    async def _later(self, request: HttpRequest) -> HttpResponse:
        return self._mark(request, await self.get_response(request))

    def _mark(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        relaxed = request.path.startswith(RELAXED_PATHS)
        response.headers.setdefault("Content-Security-Policy", RELAXED if relaxed else STRICT)
        return response


class LoginThrottle:
    """Refuses further passwords for a name from an address after ten wrong ones in five minutes."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        guarded = (request.method == "POST" and request.path in LOGIN_PATHS) or _basic_name(request) is not None
        if iscoroutinefunction(self):
            return self._later(request, guarded)
        return (self._refusal(request) if guarded else None) or self.get_response(request)

    async def _later(self, request: HttpRequest, guarded: bool) -> HttpResponse:
        refusal = await sync_to_async(self._refusal)(request) if guarded else None
        return refusal or await self.get_response(request)

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        name = _basic_name(request)
        if _counted(_bucket(request, request.POST.get("username", "") if name is None else name)) < FAILURES:
            return None
        return notice(
            request, 429, "Too many wrong passwords",
            "Too many wrong passwords were tried for this name. Wait five minutes, then try again.", retry_s=WINDOW_S,
        )  # fmt: skip


def _basic_name(request: HttpRequest) -> str | None:
    """The name that HTTP Basic claims; None for any other request, unreadable credentials included."""
    scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(text).decode().partition(":")[0]
    except ValueError:
        return None


@receiver(user_login_failed)
def _count(sender: Any, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    if request is not None:
        key = _bucket(request, str(credentials.get("username", "")))
        _with_cache(lambda: cache.set(key, _counted(key) + 1, WINDOW_S), key)


@receiver(user_logged_in)
def _forget(sender: Any, request: HttpRequest, user: Any, **_: Any) -> None:
    key = _bucket(request, user.get_username())
    _with_cache(lambda: cache.delete(key), key)


# While Redis is away, each process counts for itself: guessing must not become free because a cache died.
_local: dict[str, tuple[int, float]] = {}
_cache_away = False


def _bucket(request: HttpRequest, username: str) -> str:
    address = request.META.get("REMOTE_ADDR", "")
    return "login:" + sha256(f"{address}\n{username.lower()}".encode()).hexdigest()[:32]


def _counted(key: str) -> int:
    local, since = _local.get(key, (0, 0.0))
    if time.monotonic() - since > WINDOW_S:
        local = 0
    try:
        return max(local, int(cache.get(key, 0)))
    except Exception:
        return local


def _with_cache(operation: Callable[[], Any], key: str) -> None:
    global _cache_away
    try:
        operation()
        _local.pop(key, None)
        _cache_away = False
    except Exception:
        if len(_local) > 10_000:
            _local.clear()
        count, _ = _local.get(key, (0, 0.0))
        _local[key] = (count + 1, time.monotonic())
        if not _cache_away:
            log.warning("the cache is away; wrong passwords are counted in this process only")
        _cache_away = True
