"""Data structures that ordering policies keep their waiting requests in."""
