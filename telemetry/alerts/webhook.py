"""A signed POST to a program of the operator's: alerts and scaling requests.

Body JSON. ``x-quartermaster-id`` is the same at every attempt of one message, so that a receiver can ignore what it
has had; ``x-quartermaster-signature`` is ``t=<epoch s>,v1=<hex>`` with ``v1`` the HMAC-SHA256 of ``<t>.<body>`` under
``QUARTERMASTER_WEBHOOK_SECRET``. Any 2xx is taken as received.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from typing import Any

import httpx
import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError

from scheduling.tls import authorities, refused
from tenants.validators import check_webhook

TIMEOUT_S = 5.0  # for each step
WHOLE_S = 15.0  # for all of them: an answer that comes byte by byte keeps each within its time
MOST_READ = 400  # bytes of an answer: enough for its reason


class WebhookError(Exception):
    """It was not received; the message says why, in words for people."""


def sign(secret: str, body: bytes, at_s: int) -> str:
    digest = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def verify(secret: str, body: bytes, signature: str, now_s: float, tolerance_s: float = 300.0) -> bool:
    """Whether a signature is right and recent: what a receiver has to do, here for tests and as the reference."""
    parts = dict(part.partition("=")[::2] for part in signature.split(","))
    if not parts.get("t", "").isdigit() or abs(now_s - int(parts["t"])) > tolerance_s:
        return False
    return hmac.compare_digest(sign(secret, body, int(parts["t"])), signature)


def post(
    url: str, secret: str, message_id: str, content: dict[str, Any], *, client: httpx.Client | None = None
) -> None:
    """One attempt, to a host that may be sent to (``tenants.validators.check_webhook``). Redirects are not followed.

    Raises:
        WebhookError: the host may not be sent to, or no 2xx came back.
    """
    try:
        check_webhook(url)
    except ValidationError as error:
        raise WebhookError(" ".join(error.messages)) from error
    body = msgspec.json.encode(content)
    headers = {
        "content-type": "application/json",
        "x-quartermaster-id": message_id,
        "x-quartermaster-signature": sign(secret, body, int(time.time())),
    }
    send(url, body, headers, "the webhook", client=client)


def send(url: str, body: bytes, headers: dict[str, str], whom: str, *, client: httpx.Client | None = None) -> None:
    """One POST, through the configured proxy if there is one. No redirect is followed, no proxy of the environment is
    used, and little of the answer is read.

    Raises:
        WebhookError: no 2xx came back; ``whom`` is named in it.
    """
    over = threading.Event()
    try:
        with client or _client() as session:
            timer = threading.Timer(WHOLE_S, _end, (over, session))
            timer.daemon = True
            timer.start()
            try:
                with session.stream("POST", url, content=body, headers=headers) as answer:
                    reply = _beginning(answer)
            finally:
                timer.cancel()
    except Exception as error:
        if over.is_set():  # what reading from a closed connection raises depends on where it was
            raise WebhookError(f"{whom} did not answer within {WHOLE_S:g} s") from error
        if not isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            raise
        if isinstance(error, httpx.ProxyError):
            raise WebhookError(f"the proxy does not lead to {whom} ({str(error)[:200]})") from error
        raise WebhookError(f"{whom} does not answer ({refused(error) or type(error).__name__})") from error
    if not 200 <= answer.status_code < 300:
        raise WebhookError(f"{whom} answered {answer.status_code}{reply and f': {reply}'}")


def _client() -> httpx.Client:
    if not settings.QUARTERMASTER_WEBHOOK_PROXY:
        return httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=authorities())
    hosts = (host.strip().lower() for host in settings.QUARTERMASTER_WEBHOOK_PROXY_EXCEPT.split(",") if host.strip())
    hosts = (f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in hosts)  # IPv6
    directly = {f"all://{'*' if host.startswith('.') else ''}{host}": None for host in hosts}
    proxy = httpx.Proxy(
        settings.QUARTERMASTER_WEBHOOK_PROXY,
        ssl_context=authorities() if settings.QUARTERMASTER_WEBHOOK_PROXY.startswith("https") else None,
    )
    return httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=authorities(), proxy=proxy, mounts=directly)


def _end(over: threading.Event, session: httpx.Client) -> None:
    over.set()
    session.close()


def _beginning(answer: httpx.Response) -> str:
    """What a failed answer begins with, on one line; of a good one nothing is read."""
    if answer.is_success:
        return ""
    read, until_s = b"", time.monotonic() + TIMEOUT_S
    for part in answer.iter_raw():  # as it comes: pieces of one size would be waited for
        read += part
        if len(read) >= MOST_READ or time.monotonic() > until_s:
            break
    text = read[:MOST_READ].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
