"""How much room is there? Of a pool, and of each replica: slots, KV cache, prefill credit."""
