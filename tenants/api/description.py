"""The description of the management API (OpenAPI), made once in a process for each form: it is the same for everybody,
and to make it takes half a second of CPU, two as YAML, beside all requests of that process."""

from __future__ import annotations

from threading import Lock
from typing import Any

from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

_making = Lock()
_made: dict[str, bytes] = {}  # by media type


def described(renderer: Any) -> bytes:
    """In the form of one of REST framework's renderers. Who asks while it is being made waits for it."""
    with _making:
        if renderer.media_type not in _made:
            generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
            document = generator.get_schema(request=None, public=True)
            _made[renderer.media_type] = bytes(renderer.render(document, renderer.media_type, {}))
        return _made[renderer.media_type]


class ApiSchema(SpectacularAPIView):
    """Has no parameters but ``format``: what an address says does not get into the answer or its headers."""

    def _get_schema_response(self, request: Request) -> HttpResponse:
        renderer = request.accepted_renderer
        answer = HttpResponse(described(renderer), content_type=f"{renderer.media_type}; charset=utf-8")
        answer["Content-Disposition"] = f'inline; filename="quartermaster-api.{renderer.format}"'
        return answer
