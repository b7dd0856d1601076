"""Carries out what the planner decided (``telemetry/scaling.py``): replicas come, drain and go. ``docs/scaling.md``."""
