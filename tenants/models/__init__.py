"""Rows of the books. Reads go through ``tenants.access``, writes through ``tenants.services``."""

from tenants.models.capacity import Backend, Pool
from tenants.models.contracts import OverLimit, ServiceClass, Slo, Tier
from tenants.models.credentials import AccessToken, ApiKey
from tenants.models.entitlements import Entitlement, EntitlementState
from tenants.models.people import Membership, Role, Tenant
from tenants.models.records import AuditEntry, CatalogVersion, EpochFloor

__all__ = [
    "AccessToken",
    "ApiKey",
    "AuditEntry",
    "Backend",
    "CatalogVersion",
    "Entitlement",
    "EntitlementState",
    "EpochFloor",
    "Membership",
    "OverLimit",
    "Pool",
    "Role",
    "ServiceClass",
    "Slo",
    "Tenant",
    "Tier",
]
