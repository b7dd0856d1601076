"""What a request will need: prompt tokens, the length of its answer, KV cache."""
