"""Sends a recorded trace to an instance and reports what came back."""
