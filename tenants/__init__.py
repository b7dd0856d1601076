"""Who may do what: tenants, tiers, entitlements, keys and pools, as Django models with their services."""
