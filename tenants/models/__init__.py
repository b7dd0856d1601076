"""Rows of the catalog. Reads go through ``tenants.access``, writes through ``tenants.services``."""

from tenants.models.accounts import Invitation, ServiceAccount
from tenants.models.backends import Backend
from tenants.models.capacity import Adapter, Pool, ScalingDriver, ScalingMode
from tenants.models.contracts import OverLimit, ServiceClass, Slo, Tier
from tenants.models.credentials import AccessToken, ApiKey
from tenants.models.entitlements import Entitlement, EntitlementState, Lease
from tenants.models.identities import GroupRule, Identity
from tenants.models.metering import Budget, BudgetScope, Price, Quota, QuotaPeriod
from tenants.models.ownership import Owner
from tenants.models.people import Membership, Role, Tenant
from tenants.models.projects import Project
from tenants.models.records import AuditEntry, AuditHead, CatalogVersion, EpochFloor
from tenants.models.tuning import Author, PolicyVersion, Study, StudyState, Trial, TrialState, Tuning, TuningMode

__all__ = [
    "AccessToken",
    "Adapter",
    "ApiKey",
    "AuditEntry",
    "AuditHead",
    "Author",
    "Backend",
    "Budget",
    "BudgetScope",
    "CatalogVersion",
    "Entitlement",
    "EntitlementState",
    "EpochFloor",
    "GroupRule",
    "Identity",
    "Invitation",
    "Lease",
    "Membership",
    "OverLimit",
    "Owner",
    "PolicyVersion",
    "Pool",
    "Price",
    "Project",
    "Quota",
    "QuotaPeriod",
    "Role",
    "ScalingDriver",
    "ScalingMode",
    "ServiceAccount",
    "ServiceClass",
    "Slo",
    "Study",
    "StudyState",
    "Tenant",
    "Tier",
    "Trial",
    "TrialState",
    "Tuning",
    "TuningMode",
]
