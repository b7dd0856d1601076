"""What predictions are corrected by (``docs/internals/estimates.md``)."""
