"""The second step of a login with a password: a code or a passkey, or setting one up where it is required.

Between the two steps a session holds whose password was right, and nobody is logged in.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import SESSION_KEY, login, logout
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.crypto import constant_time_compare
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.generic import View

from controlplane.signin import challenges
from controlplane.signin.adapters import SECOND_FACTOR, address_of
from controlplane.web import login_attempts
from controlplane.web.error_pages import notice
from controlplane.web.middleware import Middleware
from controlplane.web.security import FIRST_STEP, fitted
from tenants import passkeys, second_factors
from tenants.audit import Actor
from tenants.sealed import seal, unseal

WAITED_S = 600  # for a code after the password
WRONG_CODES, WINDOW_S = 10, 3600  # of one account from all addresses: only who knows its password can use them up

CODE, SET_UP = "/login/code", "/login/second-factor"


def password_was_right(request: HttpRequest, user: Any, following: str) -> HttpResponse:
    """Logs in whom a password is enough for; others go on to the second step."""
    if second_factors.password_is_enough(user):
        login(request, user)
        return redirect(following)
    fitted(request)
    request.session.flush()
    request.session[FIRST_STEP] = {
        "user": user.pk,
        "name": user.get_username(),
        "backend": getattr(user, "backend", settings.AUTHENTICATION_BACKENDS[0]),
        "hash": user.get_session_auth_hash(),
        "until": time.time() + WAITED_S,
        "next": following,
    }
    request.session.set_expiry(WAITED_S)
    return redirect(CODE if second_factors.enabled(user) else SET_UP)


def wait_for_codes(user: User) -> int:
    """Counts a code that is about to be checked; 0, or in how many seconds to come again."""
    return login_attempts.take(f"codes of user {user.pk}", WRONG_CODES, WINDOW_S)


def code_was_right(user: User) -> None:
    login_attempts.forget(f"codes of user {user.pk}")


def actor_of(request: HttpRequest, user: User, via: str = "login") -> Actor:
    return Actor(user.get_username(), via, user, address=address_of(request))


def _goes_on(first: dict[str, Any], user: User) -> bool:
    """Whether a first step still counts: it is fresh, and the password is the one that was typed."""
    typed = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())  # by whichever key
    return time.time() <= first["until"] and any(constant_time_compare(one, first["hash"]) for one in typed)


class SecondStep(View):
    """What both pages share: whose step it is."""

    user: User
    first: dict[str, Any]

    @method_decorator(sensitive_post_parameters())
    @method_decorator(never_cache)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        first = request.session.get(FIRST_STEP) or {}
        user = User.objects.filter(pk=first.get("user", 0), is_active=True).first()
        if user is None or not _goes_on(first, user):
            request.session.pop(FIRST_STEP, None)
            return redirect(settings.LOGIN_URL)
        self.user, self.first = user, first
        if second_factors.enabled(user) != (request.path == CODE):
            return redirect(CODE if second_factors.enabled(user) else SET_UP)
        return super().dispatch(request, *args, **kwargs)

    def let_in(self, how: str = "code") -> str:
        """Logs in. Returns where to go on to."""
        del self.request.session[FIRST_STEP]
        challenges.forget(self.request)
        self.request.quartermaster_how = how  # type: ignore[attr-defined]  # read when the session begins
        login(self.request, self.user, backend=self.first["backend"])
        return str(self.first["next"])

    def typed(self) -> str:
        return self.request.POST.get("code", "")[: second_factors.LONGEST_CODE]


class Code(SecondStep):
    """Asks for a code of the app, a recovery code or a passkey."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._page()

    def post(self, request: HttpRequest) -> HttpResponse:
        if wait_s := wait_for_codes(self.user):
            text = f"Too many wrong codes were tried for this account. Try again in {-(-wait_s // 60)} minutes."
            return notice(request, 429, "Too many wrong codes", text, retry_s=wait_s)
        how = "passkey" if request.POST.get("passkey") else "code"
        try:
            right = self._signed() if how == "passkey" else self._code()
        except ValidationError as error:
            return notice(request, 409, "This code cannot be checked", " ".join(error.messages))
        if right:
            code_was_right(self.user)
            return redirect(self.let_in(how))
        user_login_failed.send(sender=__name__, credentials={"username": self.first["name"]}, request=request)
        return self._page(wrong=how)

    def _code(self) -> bool:
        return second_factors.check(actor=actor_of(self.request, self.user), user=self.user, code=self.typed())

    def _signed(self) -> bool:
        return challenges.signed(self.request, self.user, challenges.read(self.request.POST["passkey"]))

    def _page(self, wrong: str = "") -> HttpResponse:
        options = challenges.to_use(self.request, self.user) if passkeys.rows_of(self.user).exists() else None
        told = {
            "wrong": wrong,
            "options": json.dumps(options) if options else "",
            "app": second_factors.state(self.user).app,
        }
        return render(self.request, "registration/code.html", told)


class SetUp(SecondStep):
    """Where a second factor is required and there is none yet: an app or a passkey is set up before anybody is logged
    in."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._page()

    def post(self, request: HttpRequest) -> HttpResponse:
        how, actor = "passkey" if request.POST.get("passkey") else "code", actor_of(request, self.user)
        try:
            if how == "passkey":
                answer = challenges.read(request.POST["passkey"])
                codes = challenges.made(request, actor=actor, user=self.user, name="First passkey", answer=answer)
            else:
                codes = second_factors.enable(actor=actor, user=self.user, secret=self._secret(), code=self.typed())
        except ValidationError as error:
            return self._page(" ".join(error.messages))
        following = self.let_in(how)
        return render(request, "registration/recovery_codes.html", {"codes": codes, "following": following})

    def _secret(self) -> str:
        """The one that was offered; a new one where none was, or under another key."""
        secret = unseal(self.first.get("secret", ""), SECOND_FACTOR)
        if secret is None:
            secret = second_factors.offer(self.user).secret
            self.request.session[FIRST_STEP] = self.first | {"secret": seal(secret, SECOND_FACTOR)}
        return secret

    def _page(self, wrong: str = "") -> HttpResponse:
        offer = second_factors.offer(self.user, self._secret())
        drawing = b64encode(offer.svg.encode()).decode()
        options = challenges.to_make(self.request, self.user)
        context = {"offer": offer, "drawing": drawing, "wrong": wrong, "options": json.dumps(options)}
        return render(self.request, "registration/second_factor.html", context)


class Enforced(Middleware):
    """Ends sessions that began with a password alone, of users for whom that is not enough (any more)."""

    def now(self, request: HttpRequest) -> HttpResponse:
        if settings.QUARTERMASTER_SECOND_FACTOR != "optional":
            _end_if_not_enough(request)
        return self.passed(request)

    async def later(self, request: HttpRequest) -> HttpResponse:
        if settings.QUARTERMASTER_SECOND_FACTOR != "optional":
            await sync_to_async(_end_if_not_enough)(request)
        return await self.passed_later(request)


def _end_if_not_enough(request: HttpRequest) -> None:
    if SESSION_KEY not in request.session:
        return
    user = request.user
    if isinstance(user, User) and not second_factors.is_enough(user, request.session.get(second_factors.HOW)):
        logout(request)
