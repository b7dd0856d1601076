"""The live feed: snapshots of each pool, their history, and the sockets that show them (``docs/reference/feed.md``)."""
