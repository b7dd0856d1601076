"""What predictions are corrected by (``docs/estimates.md``)."""
