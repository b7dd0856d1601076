"""What the identity provider says of a person whom it let in before. Bounded answers, short waits, no state of theirs.

A person is there as long as the access token of their sign-in opens the provider's userinfo; one that has run out is
made anew with the refresh token. Who is removed or disabled there gets neither. Where there is no userinfo, the refresh
token alone says it.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from controlplane.signin.exchange import Exchange, OtherIssuer, Trouble
from tenants.people import Grant

DISCOVERY_S = 600.0
REFUSED = (401, 403)
ASKED_THERE = ("token_endpoint", "userinfo_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class There:
    """The person is there; ``grant`` where the provider gave a new one. ``by``: the same claims by who said them,
    userinfo or a token that was refreshed."""

    claims: dict[str, Any]
    grant: Grant | None = None
    by: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Gone:
    """The provider does not know them any more, or has locked them."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The provider did not say."""

    why: str


class Provider:
    """Asks one issuer, as one client. Safe for several threads."""

    def __init__(self, issuer: str, client_id: str, client_secret: str) -> None:
        self._issuer = issuer.rstrip("/")
        self._client = (client_id, client_secret)
        self._exchange = Exchange()
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}
        self._until_s = 0.0

    def close(self) -> None:
        self._exchange.close()

    def ask(self, subject: str, grant: Grant) -> There | Gone | Unknown:
        """Whether this person is still there."""
        try:
            return self._ask(subject, grant)
        except Trouble as trouble:
            return Unknown(str(trouble))

    def _ask(self, subject: str, grant: Grant) -> There | Gone | Unknown:
        if not self._discovered().get("userinfo_endpoint"):
            return self._ask_by_refreshing(subject, grant)
        status, claims = self._userinfo(grant.access)
        renewed: Grant | None = None
        of_token: dict[str, Any] = {}
        if status in REFUSED:
            if not grant.refresh:
                return Gone("The sign-in ran out, and the identity provider gave no refresh token.")
            answer = self._refresh(grant.refresh)
            if isinstance(answer, Gone):
                return answer
            renewed, of_token = answer
            status, claims = self._userinfo(renewed.access)
            if status in REFUSED:
                return Gone("The identity provider says nothing about them any more.")
        if status != 200:
            raise Trouble(f"The identity provider answers {status} at its userinfo endpoint.")
        if str(claims.get("sub")) != subject:  # a number at providers that do not keep to the standard
            raise Trouble("The identity provider answers about somebody else.")
        return There({**of_token, **claims}, renewed, _by(of_token) | {"userinfo": claims})

    def _ask_by_refreshing(self, subject: str, grant: Grant) -> There | Gone | Unknown:
        """Of a provider without userinfo: it refreshes the sign-in of whoever is there, and of nobody else. Its answer
        need not have a new ID token; then it says nothing of groups."""
        if not grant.refresh:
            return Gone("The identity provider has no userinfo and gave no refresh token.")
        answer = self._refresh(grant.refresh)
        if isinstance(answer, Gone):
            return answer
        renewed, claims = answer
        if str(claims.get("sub", subject)) != subject:
            raise Trouble("The identity provider answers about somebody else.")
        return There(claims, renewed, _by(claims))

    def _userinfo(self, access: str) -> tuple[int, dict[str, Any]]:
        return self._call("GET", self._endpoint("userinfo_endpoint"), headers={"Authorization": f"Bearer {access}"})

    def _refresh(self, token: str) -> tuple[Grant, dict[str, Any]] | Gone:
        form = {"grant_type": "refresh_token", "refresh_token": token}
        methods = self._discovered().get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        auth = None
        if "client_secret_post" in methods:
            form |= {"client_id": self._client[0], "client_secret": self._client[1]}
        else:
            auth = self._client
        status, answer = self._call("POST", self._endpoint("token_endpoint"), data=form, auth=auth)
        if status == 400 and answer.get("error") == "invalid_grant":
            return Gone("The identity provider has ended their sign-in.")
        access, refresh = answer.get("access_token"), answer.get("refresh_token", token)
        if status != 200 or not isinstance(access, str) or not isinstance(refresh, str):
            why = f"{answer.get('error', '')!r:.200}"
            raise Trouble(f"The identity provider answers {status} at its token endpoint: {why}")
        return Grant(access, refresh), _claims(answer.get("id_token"))

    def _endpoint(self, name: str) -> str:
        address = self._discovered().get(name)
        if not isinstance(address, str):
            raise Trouble(f"The identity provider names no {name}.")
        return address

    def _discovered(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() >= self._until_s:
                status, answer = self._call("GET", f"{self._issuer}/.well-known/openid-configuration")
                if status != 200:
                    raise Trouble(f"The identity provider answers {status} when asked for its configuration.")
                check_configuration(answer, self._issuer)
                self._known, self._until_s = answer, time.monotonic() + DISCOVERY_S
            return self._known

    def _call(self, method: str, address: str, **options: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON object; an empty one where the answer is something else."""
        answer = self._exchange.ask(method, address, **options)
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        return answer.status, document if isinstance(document, dict) else {}


def check_configuration(document: object, asked: str) -> None:
    """Whether a provider's configuration is of the issuer that it was asked of (OpenID Connect Discovery 4.3), but for
    a slash at its end, which people leave out, and whether all that is asked there has TLS where the issuer has it:
    the client's secret goes there, and what comes back is believed because of it.

    Raises:
        OtherIssuer: it is another's.
        Trouble: an address of it has no TLS.
    """
    told = document.get("issuer") if isinstance(document, dict) else None
    if not isinstance(told, str) or not same_issuer(told, asked):
        raise OtherIssuer(
            f"The identity provider's configuration is of issuer {told!r:.200}, not of {asked!r}: "
            "QUARTERMASTER_OIDC_ISSUER has to be what it calls itself."
        )
    assert isinstance(document, dict)
    with_tls = asked.lower().startswith("https://")
    for name in ASKED_THERE:
        address = document.get(name)
        if with_tls and isinstance(address, str) and not address.lower().startswith("https://"):
            raise Trouble(f"The identity provider's configuration names {address!r:.200} as {name}: only https://.")


def same_issuer(told: str, asked: str) -> bool:
    return told.removesuffix("/") == asked.removesuffix("/")


def _by(of_token: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"token": of_token} if of_token else {}


def _claims(token: object) -> dict[str, Any]:
    """What an ID token says. It came from the token endpoint itself, so its signature proves nothing more (OpenID
    Connect Core 3.1.3.7)."""
    if not isinstance(token, str) or token.count(".") != 2:
        return {}
    part = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
