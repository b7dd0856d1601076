"""How good predictors are, on recorded prompts and answers."""
