"""What all views of this package share: permissions, and what is in sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404
from rest_framework.exceptions import APIException, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from telemetry.access import Viewer, viewer_in
from telemetry.feed.sources import sources
from tenants.access import scope_of
from tenants.api.authentication import AUTHENTICATION
from tenants.api.base import as_answer, check_write
from tenants.api.parameters import check_parameters


class MayLook(BasePermission):
    """Anyone who is logged in and has a role; which rows is decided by :func:`viewer_of`."""

    message = "You are not a member of any tenant."

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.is_authenticated) and scope_of(request).role is not None


class Telemetry(APIView):
    """Mixed into views: a session or an access token signs in, any role may look."""

    authentication_classes = AUTHENTICATION
    permission_classes = [MayLook]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        check_parameters(request, self)
        check_write(request)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Two who give the same name at the same moment both pass the check of names; the database refuses one."""
        handler = super().get_exception_handler()
        return lambda error, context: handler(as_answer(error) if isinstance(error, IntegrityError) else error, context)


class OperatorsSeeAdminsWrite:
    """Mixed into views before :class:`Telemetry`: for members they do not exist."""

    only_admins = "Only admins can change this."

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        scope = scope_of(request)
        if not scope.sees_all:
            raise Http404
        if request.method not in ("GET", "HEAD", "OPTIONS") and not scope.may_write:
            raise PermissionDenied(self.only_admins)


class ChangedInTurn:
    """A mixin for views of one row, before DRF's: a change reads the row under its lock. So two people who change
    different fields at the same moment both succeed, and a row deleted meanwhile does not come back."""

    def patch(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        with transaction.atomic():
            rows: QuerySet[Any] = self.queryset.model._default_manager.select_for_update()  # type: ignore[attr-defined]
            rows.filter(pk=kwargs["pk"]).order_by().first()
            answer: Response = super().patch(request, *args, **kwargs)  # type: ignore[misc]
        return answer


class Unavailable(APIException):
    """503: a dependency is down and says nothing about the question."""

    status_code = 503
    default_code = "unavailable"
    default_detail = "What happens now is not known: no Redis is configured here."


class RedisUnavailable(Unavailable):
    """503: Redis does not answer; with a code for programs and since when (``docs/reference/api.md``)."""

    default_code = "redis_away"

    def __init__(self, refuses: str = "") -> None:
        away = sources.redis_outage(refuses)
        said = f"has refused what it is asked ({refuses})" if refuses else "has not answered"
        text = (
            f"Redis {said} {away.since_in_words()}, so what happens now is not known. Running requests are "
            "not affected; new ones are refused with 503."
        )
        super().__init__(text)
        self.detail = {"detail": text, "code": away.code, **away.as_json()}  # type: ignore[dict-item]


def viewer_of(request: Request) -> Viewer:
    """Which tenants the user may see, read once per request."""
    viewer = getattr(request, "_quartermaster_viewer", None)
    if viewer is None:
        viewer = viewer_in(scope_of(request))
        request._quartermaster_viewer = viewer  # type: ignore[attr-defined]
    return viewer
