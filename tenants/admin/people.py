"""Pages for users and their roles. Django's groups and permissions are not used: a role says it all."""

from __future__ import annotations

from typing import Any, cast

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from unfold.admin import TabularInline
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from tenants import people, services
from tenants.access import scope_for
from tenants.admin.base import CatalogAdmin, RoleRights, actor_of
from tenants.admin.meanwhile import Meanwhile
from tenants.audit import record
from tenants.models import GroupRule, Membership

User = get_user_model()
ROLE_COLOURS = {"admin": "danger", "operator": "warning", "member": "info", "none": "default"}


@admin.register(Membership)
class MembershipAdmin(CatalogAdmin):
    list_display = ("user", "show_role", "show_tenant", "created_at")
    list_filter = ("role", "tenant")
    list_select_related = ("user", "tenant")
    search_fields = ("user__username", "tenant__slug")
    autocomplete_fields = ("user", "tenant")
    fields = ("user", "role", "tenant")

    @display(description="Role", ordering="role", label=ROLE_COLOURS)
    def show_role(self, membership: Membership) -> str:
        return membership.role

    @display(description="Tenant", ordering="tenant__slug")
    def show_tenant(self, membership: Membership) -> str:
        return membership.tenant.slug if membership.tenant else "all"


@admin.register(GroupRule)
class GroupRuleAdmin(CatalogAdmin):
    list_display = ("group", "role", "tenant", "created_at")
    list_filter = ("role", "tenant")
    list_select_related = ("tenant",)
    search_fields = ("group", "tenant__slug")
    autocomplete_fields = ("tenant",)
    fields = ("group", "role", "tenant")


class MembershipInline(RoleRights, TabularInline):
    model = Membership
    form = Meanwhile
    fields = ("role", "tenant")
    extra = 0
    autocomplete_fields = ("tenant",)


admin.site.unregister(Group)
admin.site.unregister(User)
# the page People; no other providers; seeds of second factors are nobody's to read
for _model in (EmailAddress, SocialAccount, SocialApp, SocialToken, UserSession, Authenticator):
    if admin.site.is_registered(_model):
        admin.site.unregister(_model)


@admin.register(User)
class UserAdmin(CatalogAdmin, DjangoUserAdmin):  # type: ignore[misc,type-arg]  # of both looks ours is meant
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    inlines = (MembershipInline,)
    list_display = ("username", "show_role", "email", "is_active", "last_login")
    list_filter = ("is_active", "memberships__role")
    search_fields = ("username", "email")
    ordering = ("username",)
    filter_horizontal = ()
    readonly_fields = ("last_login", "date_joined")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("About", {"fields": ("email", "is_active", "last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2")}),
    )

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool) -> None:
        super().save_model(request, obj, form, change)
        if "is_active" in form.changed_data:
            people.decided_by_hand(obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return User._default_manager.order_by(*self.ordering)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            kwargs["form"] = ModelForm  # Django's own wants a password field
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who only looks gets no password field: a read-only one would show the hash."""
        if obj is not None and not self.has_change_permission(request, obj):
            return ((None, {"fields": ("username",)}), self.fieldsets[1])
        return super().get_fieldsets(request, obj)

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> tuple[Any, ...]:
        return self.inlines if obj is not None else ()  # a user is made first, then given roles

    @display(description="Role", label=ROLE_COLOURS)
    def show_role(self, user: Any) -> str:
        return str(scope_for(user).role or "none")

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with services.change(actor=actor_of(request)):
            answer = super().user_change_password(request, id, form_url)
            if request.method == "POST" and answer.status_code == 302:
                user = self.get_object(request, id)
                record(
                    actor=actor_of(request),
                    action="password",
                    instance=cast(Model, user),
                    after={"password": "(changed)"},
                )
        return answer
