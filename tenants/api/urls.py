"""Routes of the catalog under ``/api/v1/``. A slash at the end may be there or not."""

from django.urls import path, re_path
from rest_framework.routers import SimpleRouter

from tenants.api import (
    credentials,
    people,
    schema,  # noqa: F401  registers what it says of fields
    setup,
    views,
)

router = SimpleRouter()
router.trailing_slash = "/?"  # the constructor knows only with or without
router.register("tenants", views.TenantViewSet, "tenant")
router.register("slos", views.SloViewSet, "slo")
router.register("tiers", views.TierViewSet, "tier")
router.register("pools", views.PoolViewSet, "pool")
router.register("backends", views.BackendViewSet, "backend")
router.register("adapters", views.AdapterViewSet, "adapter")
router.register("projects", views.ProjectViewSet, "project")
router.register("entitlements", views.EntitlementViewSet, "entitlement")
router.register("quotas", views.QuotaViewSet, "quota")
router.register("budgets", views.BudgetViewSet, "budget")
router.register("prices", views.PriceViewSet, "price")
router.register("keys", credentials.KeyViewSet, "key")
router.register("tokens", credentials.TokenViewSet, "token")
router.register("memberships", views.MembershipViewSet, "membership")
router.register("people", people.PersonViewSet, "person")
router.register("invitations", people.InvitationViewSet, "invitation")
router.register("sessions", people.SessionViewSet, "session")
router.register("group-rules", views.GroupRuleViewSet, "group-rule")
router.register("audit", views.AuditViewSet, "audit")
router.register("owners", views.OwnerViewSet, "owner")

sections = tuple(prefix for prefix, _, _ in router.registry)

urlpatterns = [
    path("", views.RootView.as_view({"get": "list"}, sections=sections), name="api-root"),
    re_path(r"^me/?$", views.MeView.as_view(), name="me"),
    re_path(r"^policies/?$", views.PolicyListView.as_view(), name="policies"),
    re_path(r"^engine-check/?$", setup.EngineCheckView.as_view(), name="engine-check"),
    re_path(r"^setup/?$", setup.SetupView.as_view(), name="setup"),
    *router.urls,
]
