"""Django's part of the site. ``/v1``, ``/ws`` and health never come here (``controlplane.asgi``)."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from controlplane.console import console

urlpatterns = [
    path("admin/", admin.site.urls),
    path("login", auth.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout", auth.LogoutView.as_view(), name="logout"),
    path("api/v1/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
]
for module in ("tenants.api.urls", "telemetry.api.urls"):
    if find_spec(module.rpartition(".")[0]) and find_spec(module):
        urlpatterns.append(path("api/v1/", include(module)))
urlpatterns += [
    path("", console, name="console"),
    re_path(r"^(?!admin/|api/|static/|v1/|ws/)(?P<path>[a-z][\w/.-]*)$", console, name="console-page"),
]
