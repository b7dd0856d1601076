"""Alerts: rules, what breaks them, and who is told (``docs/guide/alerts.md``)."""
