"""A NUL in an address is refused before any page or view sees it: PostgreSQL stores none, and every query with one
fails. Bodies are judged where they are read: ``tenants.api.inputs`` for JSON, Django's form fields for forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from controlplane.notices import notice

TEXT = "The address holds a NUL character (%00). Leave it out."


class PlainText:
    """Middleware: 404 for a path with a NUL in it, 400 for a query."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._later(request)
        return _refused(request) or self.get_response(request)

    async def _later(self, request: HttpRequest) -> HttpResponse:
        found: HttpResponse = _refused(request) or await self.get_response(request)
        return found


def _refused(request: HttpRequest) -> HttpResponse | None:
    if "\x00" in request.path_info:
        return notice(request, 404, "There is no such page", TEXT)
    query = request.META.get("QUERY_STRING", "")
    if "%00" not in query and "\x00" not in query:
        return None
    return notice(request, 400, "This address cannot be read", TEXT)
