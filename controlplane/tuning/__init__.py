"""The strategic loop: queues and weights of a pool are tried and kept or taken back (``docs/guide/tuning.md``)."""
