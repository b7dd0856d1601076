"""What a request will need, by its prompt and by what was learned."""
