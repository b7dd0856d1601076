"""What-if runs and the lab's tables and drawings (``docs/lab.md``)."""
