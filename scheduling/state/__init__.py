"""What is happening now, for all processes: Redis and the scripts in it (``docs/internals/state.md``)."""
