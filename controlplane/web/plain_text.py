"""A NUL in an address is refused before any page or view sees it: PostgreSQL stores none, and every query with one
fails. Bodies are judged where they are read: ``tenants.api.inputs`` for JSON, Django's form fields for forms."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from controlplane.web.error_pages import notice
from controlplane.web.middleware import Refusing

TEXT = "The address holds a NUL character (%00). Leave it out."


class PlainText(Refusing):
    """Middleware: 404 for a path with a NUL in it, 400 for a query."""

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        if "\x00" in request.path_info:
            return notice(request, 404, "Page not found", TEXT)
        query = request.META.get("QUERY_STRING", "")
        if "%00" not in query and "\x00" not in query:
            return None
        return notice(request, 400, "This address cannot be read", TEXT)
