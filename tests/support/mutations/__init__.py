"""Formulas broken on purpose (``catalog``), and how each is run (``run``)."""
