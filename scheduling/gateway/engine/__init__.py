"""How a replica is talked to: connections, attempts, streams."""
