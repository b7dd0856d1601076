"""Quartermaster behind a LiteLLM proxy: copy this file beside LiteLLM's ``config.yaml`` (docs/guide/litellm.md).

LiteLLM stays what its clients talk to; what they ask of a pool it sends to Quartermaster, which admits, queues, meters
and answers. This file sees to what LiteLLM by itself does not do:

* each request carries the Quartermaster key of *its* team, so that tenants are told apart (:class:`Bridge`);
* a refusal reaches the client as Quartermaster meant it: status, message, ``retry-after`` and ``x-should-retry``;
* Quartermaster away is a 503 that says so;
* clients that have a Quartermaster key may use it with LiteLLM as it is (:func:`auth`).

It needs what LiteLLM brings along and nothing of Quartermaster's own code. Settings, from the environment:

=============================  =====================================================================================
``QUARTERMASTER_URL``          where Quartermaster answers, e.g. ``http://quartermaster:8000``
``QUARTERMASTER_KEYS_FILE``    which team has which key; without it only keys that came in through ``auth`` are known
=============================  =====================================================================================
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml
from fastapi import HTTPException, Request
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import LitellmUserRoles, UserAPIKeyAuth

log = logging.getLogger("quartermaster_litellm")

REREAD_S = 2.0  # how often the file of keys is looked at
CHECKED_S = 10.0  # how long a key that Quartermaster knew is not asked about again
REMEMBERED = 10_000  # keys of that kind; the longest unused is forgotten first
ASK_TIMEOUT_S = 5.0
RETRY_AWAY_S = 2  # what clients are told while Quartermaster does not answer
_FROM_CLIENT = (
    "x-quartermaster-slo-ttft-ms",
    "x-quartermaster-slo-tbt-ms",
    "x-quartermaster-slo-ttlt-ms",
    "idempotency-key",
    "traceparent",
)
_TO_CLIENT = ("retry-after", "retry-after-ms", "x-should-retry")
_PREFIX = "llm_provider-"  # what LiteLLM puts before the headers of whom it asked


class SetUpError(Exception):
    """The bridge cannot work as it is set up; LiteLLM does not start."""


class KeyFile:
    """Which Quartermaster key whose requests carry. Read anew when the file changes; a bad file changes nothing.

    Sections ``keys`` (by LiteLLM's key id, the hash), ``users`` and ``teams`` (by id), and ``default``; the most
    particular wins. Aliases are not looked at: who may make LiteLLM keys chooses their aliases freely, and would choose
    another team's tenant.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._looked_s = time.monotonic()
        self._sections = self._read()

    def key_of(self, user: UserAPIKeyAuth) -> str | None:
        now = time.monotonic()
        if now - self._looked_s >= REREAD_S:
            self._looked_s = now
            try:
                if self._stamp() != self._seen:
                    self._sections = self._read()
            except (OSError, SetUpError) as exc:
                log.error("%s; what it said before still holds", exc)
        for section, name in (("keys", user.token or user.api_key), ("users", user.user_id), ("teams", user.team_id)):
            key = self._sections[section].get(name) if name else None
            if key:
                return key
        return self._sections["default"].get("")

    def _stamp(self) -> tuple[int, int]:
        state = self._path.stat()
        return state.st_mtime_ns, state.st_size

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            self._seen = self._stamp()
            content = yaml.safe_load(self._path.read_text())
        except (OSError, yaml.YAMLError) as exc:
            raise SetUpError(f"QUARTERMASTER_KEYS_FILE {self._path} cannot be read: {exc}") from None
        if not isinstance(content, dict) or set(content) - {"keys", "users", "teams", "default"}:
            raise SetUpError(f"{self._path} has the sections keys, users, teams and default, and no others")
        sections: dict[str, dict[str, str]] = {}
        for section in ("keys", "users", "teams"):
            entries = content.get(section) or {}
            if not isinstance(entries, dict):
                raise SetUpError(f"{self._path}: {section} is a list of `id: key`")
            sections[section] = {str(name): self._secret(value, section) for name, value in entries.items()}
        default = content.get("default")
        sections["default"] = {"": self._secret(default, "default")} if default else {}
        return sections

    def _secret(self, value: Any, section: str) -> str:
        """A key, or the name of the variable that holds it, as LiteLLM writes it: ``os.environ/NAME``."""
        text = str(value)
        if text.startswith("os.environ/"):
            name = text.removeprefix("os.environ/")
            text = os.environ.get(name, "")
            if not text:
                raise SetUpError(f"{self._path}: {section} names the variable {name}, which is not set")
        if not text.startswith("qm-"):
            raise SetUpError(f"{self._path}: a value in {section} is no Quartermaster key (qm-<id>.<secret>)")
        return text


class OwnKeys:
    """Quartermaster keys that clients came with, known to Quartermaster a moment ago; by their hash, never logged."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def key_of(self, digest: str | None) -> str | None:
        entry = self._known.get(digest) if digest else None
        return entry[0] if entry else None

    def fresh(self, digest: str) -> bool:
        entry = self._known.get(digest)
        return entry is not None and time.monotonic() - entry[1] < CHECKED_S

    def add(self, digest: str, key: str) -> None:
        self._known[digest] = (key, time.monotonic())
        self._known.move_to_end(digest)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, digest: str) -> None:
        self._known.pop(digest, None)


class Bridge(CustomLogger):
    """LiteLLM's callback: ``litellm_settings: {callbacks: [quartermaster_litellm.bridge]}``."""

    def __init__(self, url: str, keys: KeyFile | None) -> None:
        super().__init__()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetUpError("QUARTERMASTER_URL is where Quartermaster answers, e.g. http://quartermaster:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._keys = keys
        self.own = OwnKeys()
        self._client: httpx.AsyncClient | None = None

    def ours(self, api_base: object) -> bool:
        """Whether a deployment is Quartermaster: a key of ours is sent nowhere else."""
        if not isinstance(api_base, str):
            return False
        return _place(api_base) == _place(self.url) and api_base.rstrip("/").removesuffix("/v1") == self.url

    async def ask(self, key: str) -> int:
        """The status with which Quartermaster answers to a key. Raises ``httpx.HTTPError`` where it does not."""
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=ASK_TIMEOUT_S)
        answer = await self._client.get(f"{self.url}/v1/models", headers={"authorization": f"Bearer {key}"})
        return answer.status_code

    # --- LiteLLM's hooks

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """A deployment was chosen: to Quartermaster, the request takes its tenant's key and its client's headers."""
        metadata = kwargs.get("metadata") or kwargs.get("litellm_metadata") or {}
        user = metadata.get("user_api_key_auth")
        if not isinstance(user, UserAPIKeyAuth):
            return None  # LiteLLM's own health check: the key in its config.yaml
        own = self.own.key_of(user.api_key)
        if not self.ours(kwargs.get("api_base")):
            if own:
                raise _refusal(403, "permission_denied", "This key is for Quartermaster's models only.", "not_entitled")
            return None
        key = own or (self._keys.key_of(user) if self._keys else None)
        if key is None:
            message = "No Quartermaster key is assigned to this team. Ask whoever runs LiteLLM to add one to its file."
            raise _refusal(403, "permission_denied", message, "not_entitled")
        request = kwargs.get("proxy_server_request") or {}
        sent = {str(name).lower(): value for name, value in (request.get("headers") or {}).items()}
        passed = {name: sent[name] for name in _FROM_CLIENT if name in sent}
        changed = {**kwargs, "api_key": key, "client": None}
        priority = (request.get("body") or {}).get("priority")
        if priority is not None:
            changed["priority"] = priority  # LiteLLM's own queue has taken it out
        if passed:
            changed["extra_headers"] = {**(kwargs.get("extra_headers") or {}), **passed}
        return changed

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: UserAPIKeyAuth,
        traceback_str: str | None = None,
    ) -> HTTPException | None:
        """What Quartermaster refused, as it refused it; LiteLLM would rename the headers that clients act upon."""
        if isinstance(original_exception, HTTPException):
            return original_exception if hasattr(original_exception, "code") else None  # ours: from the hook before
        headers = _headers(original_exception)
        reason = headers.get("x-quartermaster-reason")
        if reason is not None:
            error = _body(str(original_exception))
            status = int(getattr(original_exception, "status_code", 0) or 500)
            message, kind = error.get("message") or str(original_exception), error.get("type")
            passed = {name: headers[name] for name in _TO_CLIENT if name in headers}
            passed |= {name: value for name, value in headers.items() if _passed_on(name)}
            if "x-request-id" in headers:
                passed["x-quartermaster-request-id"] = headers["x-request-id"]
            return _refusal(status, kind, message, reason, passed, error.get("param"))
        metadata = request_data.get("metadata") or request_data.get("litellm_metadata") or {}
        if self.ours(metadata.get("api_base")) and int(getattr(original_exception, "status_code", 0) or 500) >= 500:
            log.error("Quartermaster does not answer at %s: %s", self.url, original_exception)
            return _away()
        return None

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: UserAPIKeyAuth,
        response: object,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, object] | None = None,
    ) -> dict[str, str] | None:
        """What Quartermaster said of a request that it served, under its own names."""
        hidden = getattr(response, "_hidden_params", None) or {}
        headers = {
            str(name).lower().removeprefix(_PREFIX): str(value)
            for name, value in (hidden.get("additional_headers") or {}).items()
            if str(name).startswith(_PREFIX)
        }
        if "x-quartermaster-reason" not in headers and "x-quartermaster-queue-ms" not in headers:
            return None
        passed = {name: value for name, value in headers.items() if _passed_on(name)}
        if "x-request-id" in headers:
            passed["x-quartermaster-request-id"] = headers["x-request-id"]
        return passed


async def auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    """LiteLLM's ``custom_auth``: clients come with Quartermaster keys, and Quartermaster says which are good.

    It takes the place of LiteLLM's own keys. A key that passed may be used with Quartermaster's models only.
    """
    if not api_key.startswith("qm-"):
        raise HTTPException(401, "Send 'Authorization: Bearer qm-<id>.<secret>' with a Quartermaster key.")
    digest = hashlib.sha256(api_key.encode()).hexdigest()
    if not bridge.own.fresh(digest):
        try:
            status = await bridge.ask(api_key)
        except httpx.HTTPError as exc:
            log.error("Quartermaster does not answer at %s: %r", bridge.url, exc)
            raise _away() from None
        if status >= 500:
            raise _away()
        if status != 200:
            bridge.own.forget(digest)
            raise HTTPException(401, "This API key is not valid.")
        bridge.own.add(digest, api_key)
    # the hash stands for the key wherever LiteLLM logs or counts
    return UserAPIKeyAuth(
        api_key=digest, key_alias=api_key.partition(".")[0], user_role=LitellmUserRoles.INTERNAL_USER_VIEW_ONLY
    )


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _passed_on(name: str) -> bool:
    return name.startswith(("x-quartermaster-", "x-ratelimit-"))


def _headers(exc: Exception) -> dict[str, str]:
    """The headers of the answer that an exception of LiteLLM's stands for."""
    answer = getattr(exc, "response", None)
    headers: Mapping[str, str] = (
        getattr(exc, "litellm_response_headers", None) or getattr(answer, "headers", None) or {}
    )
    return {str(name).lower().removeprefix(_PREFIX): str(value) for name, value in headers.items()}


def _body(text: str) -> dict[str, Any]:
    """The error of Quartermaster's that LiteLLM wrote into its own message; empty where it is not there."""
    at = text.find('{"error":')
    if at >= 0:
        try:
            error = json.JSONDecoder().raw_decode(text, at)[0]["error"]
        except (ValueError, KeyError):
            error = None
        if isinstance(error, dict):
            return error
    return {}


def _refusal(
    status: int,
    kind: str | None,
    message: str,
    reason: str,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> HTTPException:
    """An error as LiteLLM sends it on: it reads ``type``, ``param`` and ``code`` from the exception."""
    refusal = HTTPException(status, message, headers={"x-quartermaster-reason": reason, **(headers or {})})
    refusal.type, refusal.param, refusal.code = kind, param, reason  # type: ignore[attr-defined]
    return refusal


def _away() -> HTTPException:
    message = "Quartermaster does not answer; nothing was sent to a model. Try again in a moment."
    return _refusal(503, "service_unavailable", message, "unreachable", {"retry-after": str(RETRY_AWAY_S)})


def _from_environment() -> Bridge:
    path = os.environ.get("QUARTERMASTER_KEYS_FILE")
    return Bridge(os.environ.get("QUARTERMASTER_URL", ""), KeyFile(Path(path)) if path else None)


# LiteLLM loads this file anew for every setting that names it; the callback has to know whom custom_auth let in
_shared: Any = sys.modules.setdefault("_quartermaster_litellm", ModuleType("_quartermaster_litellm"))
bridge: Bridge = getattr(_shared, "bridge", None) or _from_environment()
_shared.bridge = bridge
