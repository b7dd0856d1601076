"""What follows from a login, however it was made."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest

from controlplane.signin.adapters import address_of
from tenants import people


@receiver(user_logged_in)
def _session_began(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    request.session.set_expiry(None)  # as long as any, also where a sign-in that was begun was to end soon
    if not request.session.session_key:
        request.session.save()
    people.began(
        user=user,
        session_key=str(request.session.session_key),
        address=address_of(request),
        agent=request.META.get("HTTP_USER_AGENT", ""),
    )
