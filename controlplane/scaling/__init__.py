"""The number of a pool's replicas: planned by a loop, carried out by a driver (``docs/guide/scaling.md``)."""
