"""Pages for API keys and access tokens. A secret is on the page that answers its making, and nowhere else.

It does not travel through a message or a redirect: those are stored (in a cookie or the session table).
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.decorators import action, display

from tenants import services
from tenants.access import scope_of
from tenants.admin.base import CatalogAdmin, actor_of
from tenants.models import AccessToken, ApiKey
from tenants.models.limits import ALL_OF_KEY

STATUS_COLOURS = {"active": "success", "expired": "info", "revoked": "danger"}


class CredentialForm(forms.ModelForm):  # type: ignore[type-arg]  # generic for checkers only
    def clean_expires_at(self) -> Any:
        expires_at = self.cleaned_data["expires_at"]
        if expires_at is not None and expires_at != self.instance.expires_at and expires_at <= timezone.now():
            raise ValidationError("This time has passed. Give a later one, or leave it empty.")
        return expires_at


class CredentialAdmin(CatalogAdmin):
    """Makes, shows and ends. A secret never changes, and the row stays for the audit."""

    form = CredentialForm
    actions: ClassVar[tuple[str, ...]] = ("revoke",)
    what: ClassVar = "key"

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_end_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_add_permission(request)

    @display(description="Status", label=STATUS_COLOURS)
    def show_status(self, row: Any) -> str:
        return str(row.status_at(timezone.now()))

    @display(description="Id", ordering="public_id")
    def show_id(self, row: Any) -> str:
        return str(row)

    def issue(self, request: HttpRequest, obj: Any) -> services.Issued:
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool) -> None:
        issued = self.issue(request, obj)
        obj.pk, obj.public_id = issued.row.pk, issued.row.public_id
        request.issued_once = [issued]  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> HttpResponse:
        return self.shown_once(request, request.issued_once)  # type: ignore[attr-defined]

    def shown_once(self, request: HttpRequest, issued: list[services.Issued]) -> TemplateResponse:
        context = self.admin_site.each_context(request) | {
            "title": f"Copy the {self.what} now",
            "what": self.what,
            "opts": self.model._meta,
            "issued": issued,
        }
        answer = TemplateResponse(request, "tenants/shown_once.html", context)
        answer.headers["Cache-Control"] = "no-store"
        return answer


@admin.register(ApiKey)
class ApiKeyAdmin(CredentialAdmin):
    list_display = (
        "show_id", "name", "entitlement", "project", "user", "show_tenant", "show_status", "created_at", "expires_at",
    )  # fmt: skip
    list_filter = ("entitlement__tenant", "project", "entitlement__pool", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("entitlement__tenant", "project__tenant")
    search_fields = ("public_id", "name", "user", "entitlement__slug", "project__slug")
    autocomplete_fields = ("entitlement", "project")
    actions: ClassVar[tuple[str, ...]] = ("revoke", "rotate")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ("entitlement", "project", "entitlements", "name", "user", *ALL_OF_KEY, "expires_at")
        return (
            "show_id", "name", "entitlement", "project", "entitlements", "user", *ALL_OF_KEY, "show_status",
            "created_at", "created_by", "expires_at", "revoked_at",
        )  # fmt: skip

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        ended = isinstance(obj, ApiKey) and obj.revoked_at is not None
        return not ended and scope_of(request).may_write

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        return ("show_id", "show_status", "created_at", "created_by", "entitlement", "project", "revoked_at")

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool) -> None:
        if change:
            services.save(actor=actor_of(request), instance=obj)
        else:
            super().save_model(request, obj, form, change)

    @display(description="Tenant", ordering="entitlement__tenant__slug")
    def show_tenant(self, key: ApiKey) -> str:
        return key.tenant.slug

    def issue(self, request: HttpRequest, obj: ApiKey) -> services.Issued:
        given = {name: getattr(obj, name) for name in services.KEPT_ON_ROTATION}
        return services.issue_key(actor=actor_of(request), **given)

    @action(description="Revoke now", permissions=["end"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for key in queryset:
            services.revoke_key(actor=actor_of(request), key=key)
        messages.success(request, f"Revoked: {', '.join(str(key) for key in queryset)}.")

    @action(description="Rotate: new key now, the old one works on for a day", permissions=["end"])
    def rotate(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        actor = actor_of(request)
        try:
            with services.change(actor=actor):
                issued = [services.rotate_key(actor=actor, key=key, overlap_s=86_400) for key in queryset]
        except ValidationError as error:
            messages.error(request, f"Nothing was rotated. {' '.join(error.messages)}")
            return None
        return self.shown_once(request, issued)


@admin.register(AccessToken)
class AccessTokenAdmin(CredentialAdmin):
    """One's own tokens; for admins everybody's, to look and to revoke."""

    what = "token"
    list_display = ("show_id", "name", "user", "show_status", "created_at", "expires_at")
    list_filter = ("user", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("user",)
    search_fields = ("public_id", "name", "user__username")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_view_permission(request)  # operators automate as well, with an operator's rights

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ("name", "expires_at")
        return ("show_id", "name", "user", "show_status", "created_at", "made_with", "expires_at", "revoked_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.get_fields(request, obj) if obj is not None else ()

    def issue(self, request: HttpRequest, obj: AccessToken) -> services.Issued:
        return services.issue_token(
            actor=actor_of(request), user=cast(User, request.user), name=obj.name, expires_at=obj.expires_at
        )

    @action(description="Revoke now", permissions=["end"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for token in queryset:
            services.revoke_token(actor=actor_of(request), token=token)
        messages.success(request, f"Revoked: {', '.join(str(token) for token in queryset)}.")
