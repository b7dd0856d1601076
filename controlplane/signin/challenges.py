"""Challenges for passkeys: made for one session and one account, kept there, used once and for five minutes."""

from __future__ import annotations

import json
import time
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest

from controlplane.signin.adapters import address_of
from tenants import passkeys, second_factors
from tenants.audit import Actor

KEPT = "qm.passkey"  # of a session
WAITED_S = 300
MAKE, USE = "make", "use"


def site_of(request: HttpRequest) -> passkeys.Site:
    """Where this browser is, as the server (or a proxy it trusts) says; hosts are those of ALLOWED_HOSTS."""
    host = request.get_host()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return passkeys.Site(name, {f"{request.scheme}://{host}", *settings.CSRF_TRUSTED_ORIGINS})


def to_make(request: HttpRequest, user: User) -> dict[str, Any]:
    """What a browser needs to make a passkey. Raises ValidationError where there are too many."""
    options, state = passkeys.ask_for_new(site_of(request), user)
    _keep(request, user, MAKE, state)
    return options


def to_use(request: HttpRequest, user: User) -> dict[str, Any]:
    """What a browser needs to use one."""
    options, state = passkeys.ask_for_use(site_of(request), user)
    _keep(request, user, USE, state)
    return options


def made(request: HttpRequest, *, actor: Actor, user: User, name: str, answer: Any) -> list[str]:
    """Takes up the passkey that the browser made: recovery codes, if it is the first factor."""
    state = _taken(request, user, MAKE)
    site = site_of(request)
    return second_factors.add_passkey(actor=actor, site=site, user=user, name=name, state=state, answer=answer)


def signed(request: HttpRequest, user: User, answer: Any) -> bool:
    """Whether a passkey of this user signed the challenge of this session, which is used up by that."""
    actor = Actor(user.get_username(), "login", user, address=address_of(request))
    state = _taken(request, user, USE)
    return passkeys.check(actor=actor, site=site_of(request), user=user, state=state, answer=answer)


def forget(request: HttpRequest) -> None:
    """What a page asked for and nobody answered."""
    request.session.pop(KEPT, None)


def read(text: str) -> Any:
    """What a form sent as JSON; None where it is none."""
    if len(text) > passkeys.ANSWER_LETTERS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _keep(request: HttpRequest, user: User, purpose: str, state: dict[str, Any]) -> None:
    request.session[KEPT] = {"user": user.pk, "for": purpose, "until": time.time() + WAITED_S, "state": state}


def _taken(request: HttpRequest, user: User, purpose: str) -> dict[str, Any] | None:
    kept = request.session.pop(KEPT, None) or {}
    if kept.get("user") != user.pk or kept.get("for") != purpose or time.time() > kept.get("until", 0):
        return None
    state: dict[str, Any] = kept["state"]
    return state
