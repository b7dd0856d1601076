"""How many replicas a pool has: what is planned, and what carries it out (``docs/guide/scaling.md``)."""
