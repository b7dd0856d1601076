"""What middleware of ours has in common: it stands in synchronous and asynchronous chains alike, without a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse


class Middleware:
    """Built for both chains; a subclass says what is done, in :meth:`now` and in :meth:`later`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self.later(request) if iscoroutinefunction(self) else self.now(request)

    def passed(self, request: HttpRequest) -> HttpResponse:
        """What the rest of a synchronous chain answers."""
        answer: HttpResponse = self.get_response(request)
        return answer

    async def passed_later(self, request: HttpRequest) -> HttpResponse:
        """What the rest of an asynchronous chain answers."""
        answer: HttpResponse = await self.get_response(request)
        return answer

    def now(self, request: HttpRequest) -> HttpResponse:
        """The answer, in a synchronous chain."""
        raise NotImplementedError

    async def later(self, request: HttpRequest) -> HttpResponse:
        """The answer, in an asynchronous chain."""
        raise NotImplementedError


class Refusing(Middleware):
    """Middleware that answers some requests itself and lets the others pass: :meth:`refusal` says which."""

    def now(self, request: HttpRequest) -> HttpResponse:
        return self.refusal(request) or self.passed(request)

    async def later(self, request: HttpRequest) -> HttpResponse:
        return self.refusal(request) or await self.passed_later(request)

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """The answer to a request that may not pass. Must not block: it runs in the event loop."""
        raise NotImplementedError
