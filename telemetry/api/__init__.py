"""REST of the telemetry floor: the live snapshots, the requests' ledger, usage. Read-only and tenant-scoped."""
