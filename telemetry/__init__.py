"""What happened: ledger, live feed, metrics, alerts. It never decides."""
