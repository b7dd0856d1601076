"""REST of telemetry: the live snapshots, the requests' ledger, usage. Read-only and tenant-scoped."""
