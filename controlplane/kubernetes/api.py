"""Calls to the Kubernetes API that kopf does not make for us: statuses, nodes, lease pods."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import kopf

from controlplane.kubernetes.resources import GROUP, VERSION

TIMEOUT_S = 10.0
MERGE = {"content-type": "application/merge-patch+json"}
PAGE = 500
WATCH_S = 240


class Api:
    """The few calls the operator needs. Raises httpx.HTTPStatusError where the API refuses."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object, or None where there is none."""
        answer = await self._client.get(path)
        if answer.status_code == 404:
            return None
        return _checked(answer)

    async def list(self, path: str, labels: str) -> list[dict[str, Any]]:
        """All objects with these labels, page by page."""
        objects: list[dict[str, Any]] = []
        more: dict[str, str | int] = {"labelSelector": labels, "limit": PAGE}
        while True:
            page = _checked(await self._client.get(path, params=more))
            objects += page["items"]
            following = page.get("metadata", {}).get("continue")
            if not following:
                return objects
            more["continue"] = following

    async def watch(self, path: str, labels: str, on_change: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        """Tells all objects with these labels, by uid, whenever one of them changes. Ends where the API ends it: the
        caller asks again, and what was told last stands until then."""
        page = _checked(await self._client.get(path, params={"labelSelector": labels}))
        there = {one["metadata"]["uid"]: one for one in page["items"]}
        on_change(there)
        query = {
            "labelSelector": labels, "watch": "true", "timeoutSeconds": str(WATCH_S),
            "resourceVersion": page["metadata"]["resourceVersion"], "allowWatchBookmarks": "true",
        }  # fmt: skip
        patience = httpx.Timeout(TIMEOUT_S, read=WATCH_S + TIMEOUT_S)
        async with self._client.stream("GET", path, params=query, timeout=patience) as answer:
            if answer.is_error:
                await answer.aread()
                _checked(answer)
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return  # such as 410: what is there is listed again
                if event["type"] == "BOOKMARK":
                    continue
                uid = event["object"]["metadata"]["uid"]
                there = {key: value for key, value in there.items() if key != uid}
                if event["type"] != "DELETED":
                    there[uid] = event["object"]
                on_change(there)

    async def create(self, path: str, body: dict[str, Any]) -> bool:
        """Whether it was made: False where it is there already."""
        answer = await self._client.post(path, json=body)
        if answer.status_code == 409:
            return False
        _checked(answer)
        return True

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        _checked(await self._client.patch(path, json=body, headers=MERGE))

    async def delete(self, path: str, **as_it_is: str) -> None:
        """Deletes an object; one that is gone already is no error. With ``uid`` an object created anew since is left,
        with ``resourceVersion`` one that has changed."""
        options = {"preconditions": as_it_is} if as_it_is else {}
        answer = await self._client.request("DELETE", path, json=options)
        if answer.status_code not in (404, 409):
            _checked(answer)

    async def status(self, plural: str, namespace: str, name: str, status: dict[str, Any]) -> None:
        """Writes the status of one of our resources; one that is gone needs none."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{name}/status"
        answer = await self._client.patch(path, json={"status": status}, headers=MERGE)
        if answer.status_code != 404:
            _checked(answer)


def refusal(error: httpx.HTTPStatusError) -> str:
    """What the API server says where it refuses a call for good: no right, a quota, a policy, a namespace that is not
    there. Empty where the same call may go through a moment later."""
    if error.response.status_code not in (400, 403, 404, 422):
        return ""
    try:
        return str(error.response.json()["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return str(error)[:500]


def same_refusal(error: httpx.HTTPStatusError) -> str:
    """The same text for the same refusal, whatever value it was about: the fields and why, where the API server says
    them, else its message."""
    try:
        said = error.response.json()
        causes = (said.get("details") or {}).get("causes") or []
        named = sorted(f"{cause.get('field')} {cause.get('reason')}" for cause in causes)
    except (ValueError, AttributeError, TypeError):
        named = []
    return f"{error.response.status_code} {'; '.join(named) or refusal(error)}"


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        text = f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:500]}"
        raise httpx.HTTPStatusError(text, request=answer.request, response=answer)
    result: dict[str, Any] = answer.json()
    return result


@asynccontextmanager
async def connect(info: kopf.ConnectionInfo) -> AsyncIterator[Api]:
    """A client with the credentials that kopf logged in with."""
    context: ssl.SSLContext | bool
    if info.insecure:
        context = False
    else:
        data = info.ca_data.decode() if isinstance(info.ca_data, bytes) else info.ca_data
        context = ssl.create_default_context(cafile=info.ca_path, cadata=data)
        if info.certificate_path:
            context.load_cert_chain(info.certificate_path, info.private_key_path)
    headers = {"authorization": f"{info.scheme or 'Bearer'} {info.token}"} if info.token else {}
    async with httpx.AsyncClient(base_url=info.server, headers=headers, verify=context, timeout=TIMEOUT_S) as client:
        yield Api(client)
