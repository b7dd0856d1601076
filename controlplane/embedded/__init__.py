"""``make up``: Redis, engines, web process and worker of one instance, started and ended together."""
