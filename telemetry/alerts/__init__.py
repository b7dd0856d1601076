"""Alerts: rules, what breaks them, and where they are sent (``docs/guide/alerts.md``)."""
