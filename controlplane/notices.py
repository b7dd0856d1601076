"""Answers that are not a page of their own: one sentence, as a page in the product's look or as JSON for programs."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.template.loader import render_to_string
from django.urls import is_valid_path
from django.views.defaults import page_not_found

from controlplane.quiet import DATABASE_AWAY

DATABASE_RETRY_S = 10


def notice(
    request: HttpRequest, status: int, title: str, text: str, *, retry_s: int = 0, code: str = ""
) -> HttpResponse:
    """HTML for browsers; ``{"detail": text}``, with ``code`` for programs, under ``/api/`` and for whoever does not
    accept HTML."""
    answer: HttpResponse
    if request.path.startswith("/api/") or not request.accepts("text/html"):
        answer = JsonResponse({"detail": text} | ({"code": code} if code else {}), status=status)
    else:
        # without context processors: neither session nor database may be needed to say this
        page = render_to_string("notice.html", {"request": request, "title": title, "text": text})
        answer = HttpResponse(page, status=status)
    answer["Cache-Control"] = "no-store"
    if retry_s:
        answer["Retry-After"] = str(retry_s)
    return answer


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler of paths that do not exist. Under ``/api/`` a slash too many is forgiven."""
    if not request.path.startswith("/api/"):
        return page_not_found(request, exception)
    bare = request.path.rstrip("/")
    if bare != request.path and is_valid_path(bare):
        query = request.META.get("QUERY_STRING", "")
        return HttpResponsePermanentRedirect(f"{bare}?{query}" if query else bare, preserve_request=True)
    return notice(request, 404, "There is no such page", "There is nothing at this path; /api/v1/schema lists what is.")


def failed(request: HttpRequest) -> HttpResponse:
    """Django's handler of exceptions nobody caught. A database that is away is not a fault of this page: 503."""
    if isinstance(sys.exc_info()[1], DATABASE_AWAY):
        return notice(
            request, 503, "The database does not answer",
            "The database does not answer. Inference goes on meanwhile; try this again in a moment.",
            retry_s=DATABASE_RETRY_S,
        )  # fmt: skip
    return notice(
        request, 500, "Something went wrong here",
        "The fault is ours and was recorded. Try again; if it stays, tell whoever runs this installation when it "
        "happened.",
    )  # fmt: skip
