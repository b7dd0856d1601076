"""Sessions in the database that outlast a change of ``SECRET_KEY``. For ``SESSION_ENGINE``.

A session says with which key it was begun. Of one of ``SECRET_KEY_FALLBACKS`` Django gives it another name, so that
pages asked for at the same moment are logged out and the list of a person's sessions does not know it; Channels deletes
it. Here it is read as one of the present key, under its own name. A page that only reads it does not store it: that
would begin its time anew. ``manage.py reseal`` does, and leaves it its end.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends import db
from django.utils.crypto import constant_time_compare


class SessionStore(db.SessionStore):
    """As Django's."""

    def load(self) -> dict[str, Any]:
        return self.as_of_now(super().load())

    async def aload(self) -> dict[str, Any]:
        return await sync_to_async(self.as_of_now)(await super().aload())

    @staticmethod
    def as_of_now(data: dict[str, Any]) -> dict[str, Any]:
        """What a session has, as one of the present key."""
        if settings.SECRET_KEY_FALLBACKS and SESSION_KEY in data and (began := data.get(HASH_SESSION_KEY)):
            user = User.objects.filter(pk=data[SESSION_KEY]).first()
            if user is not None and any(constant_time_compare(began, h) for h in user.get_session_auth_fallback_hash()):
                data[HASH_SESSION_KEY] = user.get_session_auth_hash()
        return data
