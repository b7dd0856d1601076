"""The back office: every model of the catalog, for admins; operators look, change policies and drain.

All writes go through ``tenants.services``, so what is done here is audited and reaches the gateways.
"""

from tenants.admin import catalog, credentials, people, records

__all__ = ["catalog", "credentials", "people", "records"]
