"""Which requests are those of API clients: at the paths of ``/v1``, and at others by a wrong base URL.

Those have to read an error in the API's form, where the console would answer with a page or lead to its login.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.urls import Resolver404, resolve

from scheduling.gateway.asgi import Scope
from scheduling.gateway.endpoints import AT_ROOT, ELSEWHERE, WITHOUT_V1
from scheduling.gateway.estimate.questions import QUESTIONS

# The gateway's, although they are not below /v1: it serves them, or says which base URL is right.
_KNOWN = AT_ROOT | WITHOUT_V1 | ELSEWHERE | QUESTIONS.keys()
_OTHERS = ("/api/", "/admin/", "/static/", "/ws/", "/.well-known/")
_PAGES = "console-page"  # the pattern that takes whatever has no other
_CREDENTIALS = (b"x-api-key", b"api-key")


def is_gateways(path: str) -> bool:
    return path.startswith(("/v1/", "//v1/")) or path == "/v1" or path in _KNOWN


def is_clients(scope: Scope) -> bool:
    """Whether a client asks at a path that nothing else serves. What a browser is shown stays the console's."""
    path = scope["path"]
    return not path.startswith(_OTHERS) and not _takes_a_page(scope["method"], scope["headers"]) and _is_nobodys(path)


def _is_nobodys(path: str) -> bool:
    try:
        return resolve(path).url_name == _PAGES
    except Resolver404:
        return True


def _takes_a_page(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Browsers name HTML. Who takes anything is taken for one, unless it has a key: proxies in front of the console may
    add a token to what a browser sends, and monitors ask for pages without saying what they take."""
    if method not in ("GET", "HEAD"):
        return False
    said = {name: value.lower() for name, value in headers}
    accept = said.get(b"accept", b"*/*")
    has_key = any(name in said for name in _CREDENTIALS) or said.get(b"authorization", b"").startswith(b"bearer ")
    return b"text/html" in accept or (b"*/*" in accept and not has_key)
