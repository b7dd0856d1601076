"""What follows from a login, however it was made."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest

from controlplane.signin.adapters import address_of
from tenants import people, second_factors
from tenants.audit import Actor, note


@receiver(user_logged_in)
def _session_began(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    request.session.set_expiry(None)  # as long as any, also where a sign-in that was begun was to end soon
    request.session[second_factors.HOW] = getattr(request, "quartermaster_how", "password")
    if not request.session.session_key:
        request.session.save()
    if request.path:  # not a test's or a command's
        actor = Actor(user.get_username(), "login", user, address=address_of(request))
        note(actor=actor, action="log in", outcome="done", what=request.path)
    people.began(
        user=user,
        session_key=str(request.session.session_key),
        address=address_of(request),
        agent=request.META.get("HTTP_USER_AGENT", ""),
    )


@receiver(user_login_failed)
def _login_failed(sender: Any, credentials: dict[str, Any], request: Any = None, **_: Any) -> None:
    if request is not None:
        actor = Actor(str(credentials.get("username", "")), "login", address=address_of(request))
        note(actor=actor, action="log in", outcome="refused", what=request.path)


@receiver(user_logged_out)
def _logged_out(sender: Any, request: HttpRequest, user: User | None, **_: Any) -> None:
    if user is not None and request.path:
        actor = Actor(user.get_username(), "login", user, address=address_of(request))
        note(actor=actor, action="log out", outcome="done", what=request.path)
