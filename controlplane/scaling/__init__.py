"""Carries out what the planner decided (``controlplane/scaling/planner_loop.py``): replicas come, drain and go. ``docs/scaling.md``."""
