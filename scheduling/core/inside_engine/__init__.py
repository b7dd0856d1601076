"""What the scheduler inside an engine decides, and what it is told."""
