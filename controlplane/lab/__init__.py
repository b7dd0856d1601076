"""What-if runs and the lab's tables and drawings (``docs/guide/lab.md``)."""
