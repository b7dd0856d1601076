"""Django's part of the site. ``/v1``, ``/ws`` and health never come here (``controlplane.asgi``)."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView

from controlplane.signin import saml, second_factor
from controlplane.signin.views import Join, Login, back_office_login, come_back, sign_in
from controlplane.web.console import console
from tenants.api.description import ApiSchema

handler400 = "controlplane.web.error_pages.unreadable"
handler404 = "controlplane.web.error_pages.missing"
handler500 = "controlplane.web.error_pages.failed"

urlpatterns = [
    path("admin/login/", back_office_login),
    path("admin/", admin.site.urls),
    path("login", Login.as_view(), name="login"),
    path("login", Login.as_view(), name="account_login"),  # as django-allauth calls it
    path("login/code", second_factor.Code.as_view(), name="login-code"),
    path("login/second-factor", second_factor.SetUp.as_view(), name="login-second-factor"),
    path("oidc/<str:provider_id>/login/", sign_in, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", come_back, name="openid_connect_callback"),
    path("saml/<str:organization_slug>/login/", saml.sign_in, name="saml_login"),  # names that allauth's SAML looks up
    path("saml/<str:organization_slug>/acs/", saml.taken, name="saml_acs"),
    path("saml/<str:organization_slug>/acs/finish/", saml.come_back, name="saml_finish_acs"),
    path("saml/<str:organization_slug>/sls/", saml.log_out, name="saml_sls"),
    path("saml/<str:organization_slug>/metadata/", saml.metadata, name="saml_metadata"),
    path("join/<str:text>", Join.as_view(), name="join"),
    path("logout", auth.LogoutView.as_view(), name="logout"),
    path("api/v1/schema", ApiSchema.as_view(), name="schema"),
    path(
        "api/v1/docs",
        SpectacularSwaggerSplitView.as_view(
            url_name="schema", template_name="api_docs.html", template_name_js="api_docs.js"
        ),
        name="docs",
    ),
    path("api/v1/", include("controlplane.signin.urls")),
    path("api/v1/", include("tenants.api.urls")),
    path("api/v1/", include("telemetry.api.urls")),
    path("api/v1/", include("controlplane.batches.urls")),
    path("api/v1/", include("controlplane.lab.urls")),
    path("api/v1/", include("controlplane.scaling.urls")),
    path("api/v1/", include("controlplane.tuning.urls")),
    path("", console, name="console"),
    re_path(r"^(?!admin/|api/|static/|v1/|ws/)(?P<path>[a-z][\w/.-]*)$", console, name="console-page"),
]
