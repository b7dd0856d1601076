"""One step of a pool's leader: which waiting requests run now, and where."""
