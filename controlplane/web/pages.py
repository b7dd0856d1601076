"""Django behind the web server: a page is made in one visit to a thread.

Django's handler for ASGI leaves the event loop for each synchronous part of a page by itself: most of its middleware on
the way in and on the way out, the view, its template. That is a dozen visits for the page of ``/login``, and each waits
for a turn of the loop and for the interpreter: nothing on a quiet machine, most of a page's time in overload. So the
chain of middleware is built without the loop, and a page passes it as a whole.
"""

from __future__ import annotations

from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest
from django.middleware.security import SecurityMiddleware
from servestatic.middleware import ServeStaticMiddleware

from controlplane.web.security import ContentSecurityPolicy


class Pages(ASGIHandler):
    """Django, set up before, as an ASGI application. Files are read and sent by the event loop, before any page."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware()
        files = ServeStaticMiddleware(self._page)
        self._files = convert_exception_to_response(SecurityMiddleware(ContentSecurityPolicy(files)))

    async def get_response_async(self, request: HttpRequest) -> Any:
        """The answer, as Django's handler asks for it."""
        if request.path_info.startswith(settings.STATIC_URL):
            return await cast(Any, self._files)(request)
        return await self._page(request)

    async def _page(self, request: HttpRequest) -> Any:
        return await sync_to_async(cast(Any, self.get_response))(request)
