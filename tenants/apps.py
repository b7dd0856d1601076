"""The catalog: tenants, their entitlements, and everything that is configured."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    verbose_name = "Catalog"
    default_auto_field = "django.db.models.BigAutoField"
