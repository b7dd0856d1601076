"""What the ledger gets of a request, and how it reaches shared state."""
