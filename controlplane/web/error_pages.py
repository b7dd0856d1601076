"""Answers that are not a page of their own: one sentence, as a page in the product's look or as JSON for programs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.template.loader import render_to_string
from django.urls import is_valid_path
from django.views.csrf import csrf_failure
from django.views.defaults import page_not_found

from controlplane.web.middleware import Refusing
from telemetry.feed.sources import Outage, sources
from tenants.connections import is_outage, takes_no_writes

log = logging.getLogger(__name__)

DATABASE_RETRY_S = 10
PAGE_RETRY_S = 5  # a page that could not be shown asks again by itself
NAMED_AGAIN_S, MOST_NAMED = 600.0, 100  # a proxy that is not trusted is logged so often; addresses that are remembered


def notice(
    request: HttpRequest,
    status: int,
    title: str,
    text: str,
    *,
    retry_s: int = 0,
    code: str = "",
    outage: Outage | None = None,
) -> HttpResponse:
    """HTML for browsers; ``{"detail": text}``, with ``code`` for programs, under ``/api/`` and for whoever does not
    accept HTML.

    ``outage``: the source that does not answer; programs get its code and since when, browsers ask again by themselves.
    """
    answer: HttpResponse
    if request.path.startswith("/api/") or not request.accepts("text/html"):
        more = {"code": code} if code else {}
        if outage is not None:
            more = {"code": outage.code, **outage.as_json()}
        answer = JsonResponse({"detail": text, **more}, status=status)
    else:
        again_s = PAGE_RETRY_S if outage is not None and request.method == "GET" else 0
        # without context processors: neither session nor database may be needed to say this
        page = render_to_string("notice.html", {"request": request, "title": title, "text": text, "again_s": again_s})
        answer = HttpResponse(page, status=status)
    answer["Cache-Control"] = "no-store"
    if retry_s:
        answer["Retry-After"] = str(retry_s)
    return answer


def unreadable(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler of requests that are none. Most often it is a newcomer's: the host name is not on the list."""
    if isinstance(exception, DisallowedHost):
        text = "This installation does not answer to the host name of this address. Whoever runs it can add the name "
        return notice(request, 400, "Not a host name of this installation", f"{text}to QUARTERMASTER_ALLOWED_HOSTS.")
    return notice(request, 400, "This request cannot be read", "Go back, reload the page, and try again.")


def form_refused(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's handler of forms that fail the check against forgery. Its own page blames the form's age or cookies; a
    proxy that passes another host name on is nobody's fault who fills in forms."""
    if "does not match any trusted origins" not in reason:
        return csrf_failure(request, reason)
    text = (
        "The form was sent from an address that is not the one under which this server was asked. Whoever runs it can "
        "let the proxy pass on the host name with its port, or name the address in QUARTERMASTER_TRUSTED_ORIGINS."
    )
    return notice(request, 403, "The form came from another address", text)


class UntrustedProxy(Refusing):
    """Says so where a proxy's word for HTTPS is not believed: a redirect to HTTPS would lead to the same address,
    again and again. Before the redirect."""

    def __init__(self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock
        self._named: dict[str, float] = {}  # address and when it was logged last, the oldest first

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        said = request.META.get("HTTP_X_FORWARDED_PROTO", "").strip().lower()
        if not settings.SECURE_SSL_REDIRECT or said != "https" or request.is_secure():
            return None
        self._log(request.META.get("REMOTE_ADDR") or "an unknown address")
        text = (
            "A proxy passed this request on that QUARTERMASTER_TRUSTED_PROXIES does not name, so this server does not "
            "know that you came by HTTPS. Whoever runs it finds the proxy's address in the log of the web process."
        )
        return notice(request, 400, "The proxy is not trusted", text)

    def _log(self, address: str) -> None:
        """Once for each address and ten minutes: anybody can send the header, with each request."""
        now = self._clock()
        last = self._named.get(address)
        if last is not None and now - last < NAMED_AGAIN_S:
            return
        if last is None and len(self._named) >= MOST_NAMED:
            oldest, when = next(iter(self._named.items()))
            if now - when < NAMED_AGAIN_S:
                return  # so many are known by now that one more tells nothing
            del self._named[oldest]
        self._named.pop(address, None)
        self._named[address] = now
        log.warning(
            "a proxy at %s says that its client uses HTTPS, and is not named in QUARTERMASTER_TRUSTED_PROXIES; it is "
            "logged once in %d minutes",
            address,
            NAMED_AGAIN_S // 60,
        )


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler of paths that do not exist. Under ``/api/`` a slash too many is forgiven."""
    if not request.path.startswith("/api/"):
        return page_not_found(request, exception)
    bare = request.path.rstrip("/")
    if bare != request.path and is_valid_path(bare):
        query = request.META.get("QUERY_STRING", "")
        return HttpResponsePermanentRedirect(f"{bare}?{query}" if query else bare, preserve_request=True)
    return notice(request, 404, "Page not found", "There is nothing at this path. /api/v1/schema lists the API.")


def database_unavailable(request: HttpRequest) -> HttpResponse:
    """The page shown while the database does not answer: since when, and what still works. The same for everybody,
    since nobody can be identified."""
    outage = sources.database_outage()
    return notice(
        request,
        503,
        "The database does not answer",
        f"The database does not answer, {outage.since_in_words()}. Settings, requests, usage and alerts cannot be read "
        "or changed, nobody can log in, and alert rules are not evaluated. Inference continues with the "
        "last known configuration. Try again in a moment; an open page does so automatically.",
        retry_s=DATABASE_RETRY_S,
        outage=outage,
    )


def database_read_only(request: HttpRequest) -> HttpResponse:
    """The answer to what would change something while PostgreSQL takes no writes."""
    return notice(
        request,
        503,
        "The database takes no changes",
        "The database is read-only, as a PostgreSQL server is whose place another has taken. Nothing was changed, and "
        "nobody can log in. Inference continues with the last known configuration. Try again in a moment; if it "
        "persists, tell your administrator.",
        retry_s=DATABASE_RETRY_S,
        code="database_read_only",
    )


class DatabaseUnavailable(Refusing):
    """Answers at once while the database refuses: each page would wait ten seconds for a connection, and hold a thread.

    By the look that this process takes every two seconds; one that is merely slow is waited for.
    """

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        return database_unavailable(request) if sources.database_refuses else None


def failed(request: HttpRequest) -> HttpResponse:
    """Django's handler of exceptions nobody caught. A database that is away or read-only is not a fault of this
    page: 503."""
    error = sys.exc_info()[1]
    if takes_no_writes(error):
        return database_read_only(request)
    if is_outage(error):
        return database_unavailable(request)
    return notice(
        request,
        500,
        "Something went wrong",
        "The error was logged. Try again; if it persists, tell your administrator when it happened.",
    )
