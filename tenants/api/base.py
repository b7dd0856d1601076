"""What all views of the management API share: permissions, what is in sight, and how a write is made and refused."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NoReturn

from django.core.exceptions import NON_FIELD_ERRORS
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import IntegrityError
from django.db.models import Model, ProtectedError, QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, status, viewsets
from rest_framework.exceptions import APIException, NotFound, Throttled, ValidationError
from rest_framework.filters import SearchFilter
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from tenants import audit, preview, services
from tenants.access import Scope, scope_of
from tenants.api.authentication import AUTHENTICATION
from tenants.api.filters import Filter, ListedFilters
from tenants.api.inputs import Page
from tenants.api.numbers import number_of
from tenants.api.parameters import check_parameters
from tenants.audit import Actor

WRITES = ("create", "partial_update", "destroy")
ENDS = ("destroy", "revoke")


def described(one: str, many: str, *verbs: str) -> Any:
    """Operation summaries for a viewset, so that the browsable page reads as sentences."""
    texts = {
        "list": f"List {many}",
        "retrieve": f"Read one {one}",
        "create": f"Make a {one}",
        "partial_update": f"Change a {one}",
        "destroy": f"Delete a {one}",
    }
    trial = OpenApiParameter("dry_run", bool, description="true: say what it would do to the pools, and keep nothing.")
    described = {verb: extend_schema(summary=texts[verb]) for verb in ("list", "retrieve")}
    described |= {verb: extend_schema(summary=texts[verb], parameters=[trial]) for verb in verbs}
    return extend_schema_view(**described)


class Right(Enum):
    """What an action needs."""

    SEE = "see"  # any role; rows out of sight do not exist
    OPERATE = "operate"  # operator or admin
    WRITE = "write"  # admin
    OWN = "own"  # any role; the action itself checks whose row it is

    def given_to(self, scope: Scope) -> bool:
        match self:
            case Right.WRITE:
                return scope.may_write
            case Right.OPERATE:
                return scope.may_operate
            case _:
                return scope.role is not None


class Allowed(BasePermission):
    """Grants what the view's ``rights`` say; an action that is not listed needs the highest right."""

    message = "Your role does not allow this. An admin can do it, or give you a role that may."

    def has_permission(self, request: Request, view: Any) -> bool:
        right: Right = view.right()
        return right.given_to(scope_of(request))


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class ScopedView(APIView):
    """Mixed into views: authentication, permission, and the model's own errors as HTTP answers."""

    authentication_classes = AUTHENTICATION
    permission_classes = [Allowed]
    rights: ClassVar[dict[str, Right]] = {}
    trials: ClassVar[tuple[str, ...]] = ()  # actions that heed ``?dry_run=true``

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        check_parameters(request, self)
        check_write(request, trial=getattr(self, "action", None) in self.trials)
        self.check_pace(request)

    def check_pace(self, request: Request) -> None:
        """Members make and change so much in a minute. They may always end what there is: it was made before."""
        changes = request.method not in SAFE_METHODS and getattr(self, "action", None) not in ENDS
        if changes and not self.scope.sees_all and audit.are_many(self.actor, "done", audit.WRITES_A_MINUTE):
            raise Throttled(60, f"You have made {audit.WRITES_A_MINUTE} changes in a minute, the most.")

    def right(self) -> Right:
        action = getattr(self, "action", None)
        if action in ("list", "retrieve", "metadata", None):  # None: a verb the route does not have
            return Right.SEE
        return self.rights.get(action, Right.WRITE)

    @property
    def scope(self) -> Scope:
        return scope_of(self.request)

    @property
    def actor(self) -> Actor:
        return Actor.of(self.request, "api")

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Writes refused attempts of signed-in users into the audit log."""
        user = getattr(request, "user", None)
        if response.status_code == status.HTTP_403_FORBIDDEN and user is not None and user.is_authenticated:
            what = f"{request.method} {request.path}"
            audit.note(actor=Actor.of(request, "api"), action="refuse", outcome="refused", what=what)
        return super().finalize_response(request, response, *args, **kwargs)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        handler = super().get_exception_handler()
        return lambda error, context: handler(as_answer(error), context)


class ByNumber:
    """A viewset whose rows have no name: they are asked for by their number."""

    lookup_field = "pk"
    lookup_url_kwarg: str | None = "id"
    lookup_value_regex = "[0-9]{1,18}"


class CatalogViewSet(ScopedView, mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Any]):
    """Reading one model, within the scope of whoever asks."""

    model: ClassVar[type[Model]]
    related: ClassVar[tuple[str, ...]] = ()  # for select_related
    filters: ClassVar[dict[str, Filter]] = {}
    search_fields: ClassVar[tuple[str, ...]] = ("slug", "description")
    filter_backends = [ListedFilters, SearchFilter]
    pagination_class = Page
    lookup_field = "slug"
    lookup_value_regex = "[a-z0-9-]{1,63}"
    veiled: ClassVar[bool] = False  # its rows' numbers are, for members

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        name = self.lookup_url_kwarg or self.lookup_field
        if self.veiled and name in self.kwargs:
            self.kwargs[name] = number_of(request, self.model, self.kwargs[name])
        super().initial(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):  # the schema is drawn without a user
            return self.model._default_manager.none()
        rows = self.scope.visible(self.model)
        return rows.select_related(*self.related) if self.related else rows

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """Out of sight comes before forbidden: a foreign id must look like one that never was."""
        key = self.kwargs.get(self.lookup_url_kwarg or self.lookup_field)
        has_role = self.scope.role is not None
        if key is not None and has_role and not self.get_queryset().filter(**{self.lookup_field: key}).exists():
            raise NotFound
        super().permission_denied(request, message, code)

    def answer(self, instance: Model, code: int = status.HTTP_200_OK) -> Response:
        """The row as it is now: binding may have changed it after it was written."""
        return Response(self.get_serializer(self.get_queryset().get(pk=instance.pk)).data, status=code)


def is_trial(request: Request) -> bool:
    """``?dry_run=true``: everything is checked and nothing is kept."""
    raw = request.query_params.get("dry_run", "false")
    return bool(Filter("", "", "boolean").parse("dry_run", raw))


def check_write(request: Request, *, trial: bool = False) -> None:
    """Refuses query parameters of a write other than ``dry_run``, and that one too where nothing can be tried
    (``trial`` false). A misspelled one would be ignored, and the write done although the caller wanted a trial."""
    if request.method in SAFE_METHODS:
        return
    unknown = next((name for name in request.query_params if name != "dry_run"), None)
    if unknown is not None:
        raise ValidationError({unknown: ["Nothing was done: writes have no such parameter, only dry_run=true."]})
    if not trial and is_trial(request):
        raise ValidationError({"dry_run": ["Nothing was done: this cannot be tried only. Leave dry_run out to do it."]})


class ChangeableViewSet(CatalogViewSet):
    """... and changing rows, through ``tenants.services``. With ``?dry_run=true`` the answer says what would happen."""

    trials: ClassVar[tuple[str, ...]] = ("partial_update",)

    def given(self, request: Request) -> Any:
        """What is to be written. Looked at before anything is locked."""
        return request.data

    def check_owner_of(self, instance: Model) -> None:
        """Whether this row in sight is one that the user may change, where the role alone does not say so."""

    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        data = self.given(request)

        def change() -> Model:
            # The row is read under the lock: a change made meanwhile is not overwritten with what it was before.
            with services.change(actor=self.actor):
                instance: Model = self.get_object()
                self.check_owner_of(instance)
                serializer = self.get_serializer(instance, data=data, partial=True)
                serializer.is_valid(raise_exception=True)
                for name, value in serializer.validated_data.items():
                    setattr(instance, name, value)
                return services.save(actor=self.actor, instance=instance)

        return self._tried(change) if is_trial(request) else self.answer(change())

    def _tried(self, write: Callable[[], object]) -> Response:
        return Response(preview.effects(self.actor, write).as_dict())


class WritableViewSet(ChangeableViewSet):
    """... and making and deleting them."""

    trials: ClassVar[tuple[str, ...]] = WRITES

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        data = self.given(request)

        def make() -> Model:
            with services.change(actor=self.actor):
                serializer = self.get_serializer(data=data)
                serializer.is_valid(raise_exception=True)
                return services.save(actor=self.actor, instance=self.model(**serializer.validated_data))

        return self._tried(make) if is_trial(request) else self.answer(make(), status.HTTP_201_CREATED)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        def remove() -> None:
            with services.change(actor=self.actor):
                services.delete(actor=self.actor, instance=self.get_object())

        if is_trial(request):
            return self._tried(remove)
        remove()
        return Response(status=status.HTTP_204_NO_CONTENT)


def as_answer(error: Exception) -> Exception:
    """Errors of the catalog as errors of HTTP."""
    match error:
        case ModelValidationError():
            if hasattr(error, "error_dict"):
                details = dict(error.message_dict)
                general = details.pop(NON_FIELD_ERRORS, None)
                return ValidationError(details | ({"non_field_errors": general} if general else {}))
            return ValidationError({"non_field_errors": error.messages})
        case ProtectedError():
            needed_by = sorted({f"{row._meta.verbose_name} {row}" for row in error.protected_objects})
            shown = ", ".join(needed_by[:10]) + (f" and {len(needed_by) - 10} more" if len(needed_by) > 10 else "")
            return Conflict(f"This is still used by: {shown}. Delete or change those first.")
        case services.Replaced():
            return Conflict(str(error))
        case IntegrityError():
            return Conflict("Someone else changed this at the same moment. Read it again and retry.")
        case _:
            return error
