"""One question to an identity provider, and its answer: bounded as a whole in time and in size.

Each read of a socket has its own limit in every HTTP client, so a provider that says a byte now and then would hold a
thread for ever: here the whole exchange, head included, has one. Redirects are not followed, for a question may carry
the client's secret. Nothing is unpacked, for a few bytes may hold gigabytes.
"""

from __future__ import annotations

import asyncio
import io
import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import httpx
import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers

from scheduling.tls import authorities, refused

STEP_S = 5.0  # for each step: connecting, and each read
WHOLE_S = 15.0  # for all of them
MOST_BYTES = 1024 * 1024  # of one answer
ENDED = "This process ends and asks the identity provider nothing more."
_OURS = ("accept-encoding", "connection", "content-length")  # headers that the exchange sets itself


class Trouble(Exception):
    """The provider did not answer, or not with what the protocol wants."""


class OtherIssuer(Trouble):
    """The provider answers as another issuer than the one that was configured."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: httpx.Headers
    body: bytes


class Exchange:
    """Asks from any thread, on a loop in a thread of its own. Connections are kept from one question to the next."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="identity provider", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._closed = False
        self._http = httpx.AsyncClient(timeout=STEP_S, follow_redirects=False, verify=authorities())

    def close(self) -> None:
        """Ends it, and what is being asked."""
        with self._lock:
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, method: str, address: str, **options: Any) -> Answer:
        """``options``: those of httpx.

        Raises:
            Trouble: there is no answer that may be read.
        """
        with self._lock:  # what is asked before the end begins is seen by it
            if self._closed:
                raise Trouble(ENDED)
            asked = asyncio.run_coroutine_threadsafe(self._ask(method, address, options), self._loop)
        try:
            return asked.result()
        except CancelledError as error:
            raise Trouble(ENDED) from error

    async def _end(self) -> None:
        asked = asyncio.all_tasks() - {asyncio.current_task()}
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await self._http.aclose()

    async def _ask(self, method: str, address: str, options: dict[str, Any]) -> Answer:
        headers = {**options.pop("headers", {}), "accept-encoding": "identity"}
        try:
            async with (
                asyncio.timeout(WHOLE_S),
                self._http.stream(method, address, headers=headers, **options) as answer,
            ):
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise Trouble("The identity provider answers in an encoding that was not asked for.")
                body = bytearray()
                async for part in answer.aiter_raw():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise Trouble(f"The identity provider's answer is larger than {MOST_BYTES} bytes.")
                return Answer(answer.status_code, answer.headers, bytes(body))
        except TimeoutError as error:
            raise Trouble(f"The identity provider did not answer within {WHOLE_S:g} s.") from error
        except httpx.HTTPError as error:
            why = refused(error) or type(error).__name__
            raise Trouble(f"The identity provider does not answer ({why}).") from error
        except (httpx.InvalidURL, ValueError, TypeError) as error:  # a host that is no name is a UnicodeError
            raise Trouble(f"The identity provider names an address that is none ({type(error).__name__}).") from error


class _Adapter(BaseAdapter):
    """Sends what a session of ``requests`` has prepared."""

    def __init__(self) -> None:
        super().__init__()
        self._exchange = Exchange()

    def close(self) -> None:
        self._exchange.close()

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OURS}
        try:
            answer = self._exchange.ask(
                str(request.method), str(request.url), headers=headers, content=request.body or b""
            )
        except Trouble as trouble:
            raise requests.ConnectionError(str(trouble), request=request) from trouble
        response = requests.Response()
        response.status_code, response.headers = answer.status, CaseInsensitiveDict(answer.headers)
        response.raw, response.encoding = io.BytesIO(answer.body), get_encoding_from_headers(response.headers)
        response.url, response.request = str(request.url), request
        return response


def session() -> requests.Session:
    """For what asks with ``requests``: django-allauth. Whoever has it closes it."""
    asking = requests.Session()
    asking.max_redirects = 0
    asking.adapters.clear()
    asking.mount("http", _Adapter())  # and https
    return asking
