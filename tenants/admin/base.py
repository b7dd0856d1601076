"""What all pages of the back office share: rights from ``tenants.access``, writes through ``tenants.services``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import JSONField, Model, ProtectedError, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextareaWidget

from tenants import services
from tenants.access import scope_of
from tenants.admin.meanwhile import Meanwhile
from tenants.audit import Actor


def actor_of(request: HttpRequest) -> Actor:
    return Actor.of(request, "admin")


class Chosen(AutocompleteSelect):
    """What a form or its address names. Django asks the database for it, and fails where it can be no key."""

    def optgroups(self, name: str, value: Sequence[str], attr: Any = None) -> Any:
        key = self.choices.queryset.model._meta.pk

        def may_be(given: str) -> bool:
            try:
                key.run_validators(key.to_python(given))
            except ValidationError:
                return False
            return True

        return super().optgroups(name, [given for given in value if may_be(given)], attr)


class RoleRights:
    """Rights by role instead of by Django's per-model permissions. Telemetry's read-only pages can use it as well."""

    operators_may_change: ClassVar[tuple[str, ...]] = ()  # fields

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """A list whose filter no database can compute, such as the year 1790000000, is one with a wrong parameter:
        Django shows it without filters; so is a time without its zone, where warnings are errors. Raises
        IncorrectLookupParameters."""
        try:
            return super().get_changelist_instance(request)  # type: ignore[misc]
        except (ValueError, OverflowError, DataError, RuntimeWarning) as error:
            raise IncorrectLookupParameters(str(error)) from error

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):  # type: ignore[attr-defined]
            kwargs.setdefault("widget", Chosen(db_field, self.admin_site, using=kwargs.get("using")))  # type: ignore[attr-defined]
        return super().formfield_for_foreignkey(db_field, request, **kwargs)  # type: ignore[misc]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return scope_of(request).sees_all

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return scope_of(request).sees_all

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return scope_of(request).may_write

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        scope = scope_of(request)
        return scope.may_write or (scope.may_operate and bool(self.operators_may_change))

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return scope_of(request).may_write

    def has_operate_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return scope_of(request).may_operate


class CatalogAdmin(RoleRights, ModelAdmin):
    """A page per model whose rows are written through the services."""

    list_per_page = 50
    formfield_overrides = {JSONField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 2})}}
    list_filter_submit = False
    warn_unsaved_form = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        ordering = self.get_ordering(request)
        rows = scope_of(request).visible(self.model)
        return rows.order_by(*ordering) if ordering else rows

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        """Fixed fields once the row exists; for operators everything but what is theirs."""
        declared = tuple(super().get_readonly_fields(request, obj))
        if obj is not None:
            declared += tuple(name for name in getattr(self.model, "fixed", ()) if name not in declared)
        if not scope_of(request).may_write:
            shown = _flatten(self.get_fields(request, obj) if not self.fieldsets else _in_fieldsets(self.fieldsets))
            declared += tuple(n for n in shown if n not in self.operators_may_change and n not in declared)
        return declared

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        made = super().get_form(request, obj, change=change, **kwargs)
        return type(made.__name__, (Meanwhile, made), {}) if change else made

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method != "POST":
            return self._changeform(request, object_id, form_url, extra_context)
        try:
            # The row is read under the lock: a change made meanwhile is not overwritten with what it was before.
            with services.change(actor=actor_of(request)):
                return self._changeform(request, object_id, form_url, extra_context)
        except ValidationError as error:  # a rule that the form did not know
            for message in error.messages:
                messages.error(request, message)
            return HttpResponseRedirect(request.get_full_path())

    def _changeform(self, *given: Any) -> HttpResponse:
        page: HttpResponse = super().changeform_view(*given)
        return page

    def save_model(self, request: HttpRequest, obj: Model, form: ModelForm[Any], change: bool) -> None:
        services.save(actor=actor_of(request), instance=obj)

    def save_formset(self, request: HttpRequest, form: ModelForm[Any], formset: Any, change: bool) -> None:
        changed = formset.save(commit=False)
        for row in formset.deleted_objects:
            services.delete(actor=actor_of(request), instance=row)
        for row in changed:
            services.save(actor=actor_of(request), instance=row)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        services.delete(actor=actor_of(request), instance=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        actor = actor_of(request)
        try:
            with services.change(actor=actor):
                for row in queryset:
                    services.delete(actor=actor, instance=row)
        except ProtectedError as error:
            messages.error(request, f"Nothing was deleted: {error.args[0]}")
        except ValidationError as error:
            messages.error(request, f"Nothing was deleted: {' '.join(error.messages)}")

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        try:
            page: HttpResponse = super().delete_view(request, object_id, extra_context)
            return page
        except ValidationError as error:
            messages.error(request, f"Nothing was deleted: {' '.join(error.messages)}")
            return HttpResponseRedirect(request.get_full_path())

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, set[str], list[Any]]:
        """What goes with an object goes with it: its keys have no delete button, the entitlement has."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected


def _in_fieldsets(fieldsets: Iterable[Any]) -> list[Any]:
    return [name for _, options in fieldsets for name in options["fields"]]


def _flatten(fields: Iterable[Any]) -> list[str]:
    return [name for entry in fields for name in (entry if isinstance(entry, list | tuple) else (entry,))]
